# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A probe gives a measurement the network's outputs, and their way to probabilities."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.small_evaluators import cases_of, evaluator_of
from ignite.engine import Events
from monai.data import MetaTensor
from monai.engines.utils import IterationEvents
from monai.inferers import SliceInferer
from monai.transforms import Activationsd, AsDiscreted, Compose, RandGaussianNoised
from torch import nn

from monai_fairfl.measurements.loading import loaded
from monai_fairfl.measurements.probe import Probe

SIGMOID = Activationsd("pred", sigmoid=True)
SOFTMAX = Activationsd("pred", softmax=True)
THRESHOLD = AsDiscreted("pred", threshold=0.5)


class Affine(nn.Module):
    """Predicts two channels from an image; what it gives in training is another thing."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(2))
        self.dropout = nn.Dropout(0.9)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.dropout(images * self.gain[:, None, None])


def volumes(number: int = 3) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 4, 4, 3, generator=generator) for _ in range(number)]


def probe_of(**arguments: Any) -> Probe:
    """Volumes that are predicted slice by slice."""
    inferer = SliceInferer(roi_size=(4, 4), sw_batch_size=2, spatial_dim=2)
    return Probe(evaluator_of(Affine(), cases_of(volumes()), inferer=inferer, **arguments))


def weights(first: float, second: float) -> dict[str, torch.Tensor]:
    return {"gain": torch.tensor([first, second])}


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_outputs_are_the_networks_of_each_case_whatever_the_batches(batch_size: int) -> None:
    outputs = list(probe_of(batch_size=batch_size).outputs(weights(2.0, -3.0)))
    assert len(outputs) == 3
    for image, output in zip(volumes(), outputs, strict=True):
        assert torch.equal(output, torch.cat([2 * image, -3 * image]))
        assert not isinstance(output, MetaTensor) and not output.requires_grad


@pytest.mark.slow
def test_outputs_are_those_that_the_evaluator_scores() -> None:
    # MONAI shows its handlers the output before it decollates and postprocesses it.
    probe = probe_of(batch_size=2, postprocessing=SIGMOID)
    evaluator = probe.engine
    seen: list[torch.Tensor] = []
    evaluator.add_event_handler(
        IterationEvents.FORWARD_COMPLETED,
        lambda engine: seen.extend(engine.state.output["pred"].clone()),
    )
    with loaded(evaluator.network, weights(2.0, -3.0)):
        evaluator.run()

    outputs = list(probe.outputs(weights(2.0, -3.0)))
    assert len(outputs) == len(seen) == 3
    for output, expected in zip(outputs, seen, strict=True):
        assert torch.equal(output, expected)


def test_random_transforms_give_both_models_the_same_images() -> None:
    probe = probe_of(transform=RandGaussianNoised("image", prob=1.0))
    first = list(probe.outputs(weights(1.0, -1.0)))
    second = list(probe.outputs(weights(2.0, -2.0)))
    for output, doubled, image in zip(first, second, volumes(), strict=True):
        assert not torch.equal(output[:1], image)
        assert torch.equal(2 * output, doubled)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("read", [1, 3])
def test_weights_mode_random_state_and_handlers_are_as_before(training: bool, read: int) -> None:
    """Also when a measurement stops at the first case."""
    noise = RandGaussianNoised("image", prob=1.0)
    transform = Compose([noise])
    probe = probe_of(transform=transform)
    probe.engine.add_event_handler(Events.STARTED, lambda: pytest.fail("the evaluator has run"))
    network = probe.engine.network.train(training)
    random_state = torch.get_rng_state()
    noise_state = noise.R.get_state()[1].tolist()  # type: ignore[index]

    for number, _ in enumerate(probe.outputs(weights(2.0, -3.0)), start=1):
        assert torch.is_grad_enabled()
        if number == read:
            break

    assert network.training == training
    assert network.state_dict()["gain"].tolist() == [1, 1]
    assert torch.equal(torch.get_rng_state(), random_state)
    assert probe.engine.data_loader.dataset.transform is transform
    assert noise.R.get_state()[1].tolist() == noise_state  # type: ignore[index]


def test_two_models_outputs_come_one_after_the_other() -> None:
    probe = probe_of()
    first, second = probe.outputs(weights(1.0, 1.0)), probe.outputs(weights(2.0, 2.0))
    next(first)
    with pytest.raises(RuntimeError, match="first model to its end"):
        next(second)
    # The refusal has not disturbed the first model, and afterwards there is room for another.
    assert torch.equal(next(first), volumes()[1].expand(2, -1, -1, -1))
    first.close()
    assert torch.equal(next(probe.outputs(weights(2.0, 2.0)))[:1], 2 * volumes()[0])


class Deep(nn.Module):
    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        return [images, images]


def test_outputs_of_a_network_that_gives_several_tensors_are_refused() -> None:
    probe = Probe(evaluator_of(Deep(), cases_of(volumes())))
    with pytest.raises(ValueError, match="gives a list.*inferer return that tensor"):
        list(probe.outputs({}))


def test_without_cases_there_are_no_outputs() -> None:
    assert list(Probe(evaluator_of(Affine(), [])).outputs({})) == []


@pytest.mark.parametrize(
    ("postprocessing", "activation"),
    [
        (SIGMOID, "sigmoid"),
        (Compose([SOFTMAX, AsDiscreted("pred", argmax=True)]), "softmax"),
        (Compose([Compose([SIGMOID]), THRESHOLD]), "sigmoid"),
        (Activationsd(["label", "pred"], sigmoid=[True, False], softmax=[False, True]), "softmax"),
        (Activationsd("label", sigmoid=True), None),
        (Compose([Activationsd("pred", other=torch.tanh), SIGMOID]), "sigmoid"),
        (THRESHOLD, None),
        (Compose([]), None),
        (None, None),
    ],
)
def test_the_activation_is_that_of_the_postprocessing(
    postprocessing: Any, activation: str | None
) -> None:
    assert probe_of(postprocessing=postprocessing).activation() == activation
    assert probe_of(postprocessing=postprocessing, decollate=False).activation() == activation
