# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a client measures: outputs and scores of a network, losses and sharpness of training."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from helpers.driving import GOLDEN
from helpers.small_evaluators import Scaled, cases_of, evaluator_of
from helpers.small_trainers import (
    ONE_BATCH,
    Point,
    conv_net,
    half_mean_square,
    image_batches,
    least_squares,
    trainer_of,
)
from ignite.engine import Events
from monai.data import DataLoader, Dataset, MetaTensor
from monai.engines.utils import IterationEvents
from monai.handlers import (
    HausdorffDistance,
    MeanDice,
    from_engine,
)
from monai.inferers import SliceInferer
from monai.losses import DiceCELoss
from monai.transforms import (
    Activationsd,
    Compose,
    RandGaussianNoised,
)
from torch import nn

from monai_fairfl import Estimate
from monai_fairfl.measurements import Memory, Probe, TrainingProbe
from monai_fairfl.messages import MEASUREMENTS
from monai_fairfl.metrics import SpacedHausdorff

PREDICTION_AND_LABEL = from_engine(["pred", "label"])
SIGMOID = Activationsd("pred", sigmoid=True)


def measured(name: str, probe: Any, model: Any, **context: float) -> Any:
    return MEASUREMENTS[name](probe, model, Memory(), context)


# ---- a network's outputs


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


def test_outputs_are_those_that_the_evaluator_scores_whatever_the_batches() -> None:
    # MONAI shows its handlers the output before it decollates and postprocesses it.
    probe = probe_of(batch_size=2, postprocessing=SIGMOID)
    outputs = list(probe.outputs(weights(2.0, -3.0)))
    seen: list[torch.Tensor] = []
    evaluator = probe.engine
    evaluator.add_event_handler(
        IterationEvents.FORWARD_COMPLETED,
        lambda engine: seen.extend(engine.state.output["pred"].clone()),
    )
    evaluator.network.load_state_dict(weights(2.0, -3.0))
    evaluator.run()
    for image, output, expected in zip(volumes(), outputs, seen, strict=True):
        assert torch.equal(output, torch.cat([2 * image, -3 * image]))
        assert torch.equal(output, expected)
        assert not isinstance(output, MetaTensor) and not output.requires_grad


@pytest.mark.parametrize(("training", "read"), [(True, 1), (False, 3)])
def test_both_models_see_the_same_noise_and_all_is_as_before(training: bool, read: int) -> None:
    """Also when a measurement stops at the first case."""
    noise = RandGaussianNoised("image", prob=1.0)
    transform = Compose([noise])
    probe = probe_of(transform=transform)
    probe.engine.add_event_handler(Events.STARTED, lambda: pytest.fail("the evaluator has run"))
    network = probe.engine.network.train(training)
    random_state = torch.get_rng_state()
    noise_state = noise.R.get_state()[1].tolist()  # type: ignore[index]

    seen = []
    for factor in (1.0, 2.0):
        outputs = probe.outputs(weights(factor, -3.0))
        for _ in range(read):
            last = next(outputs)
            assert torch.is_grad_enabled()
        outputs.close()
        seen.append(last[:1] / factor)
    assert torch.equal(*seen) and not torch.equal(seen[0], volumes()[read - 1])

    assert network.training == training
    assert network.state_dict()["gain"].tolist() == [1, 1]
    assert torch.equal(torch.get_rng_state(), random_state)
    assert probe.engine.data_loader.dataset.transform is transform
    assert noise.R.get_state()[1].tolist() == noise_state  # type: ignore[index]


# ---- scores


def test_nothing_is_measured_on_a_part_without_cases(caplog: pytest.LogCaptureFixture) -> None:
    model = {"scale": torch.ones(())}
    memory = Memory(previous=model, present=model)
    metrics = {"hd95": SpacedHausdorff(output_transform=PREDICTION_AND_LABEL)}
    dice = MeanDice(output_transform=PREDICTION_AND_LABEL)
    probe = Probe(
        evaluator_of(Scaled(), [], key_val_metric={"dice": dice}, additional_metrics=metrics)
    )
    for name, entry in MEASUREMENTS.items():
        if entry.data != "training":
            assert entry(probe, model, memory, {"previous_weight": 0.5}) is None, name
    assert sum("'validation'" in message for message in caplog.messages) <= 1
    mean = probe.score({})["mean"]
    assert isinstance(mean, Estimate) and math.isnan(mean.value) and mean.n == 0
    assert probe.cases == {}


class Counting(MeanDice):
    """Mean Dice that counts its batches."""

    def __init__(self) -> None:
        super().__init__(output_transform=from_engine(["pred", "label"]))
        self.batches = 0

    def update(self, output: Any) -> None:
        self.batches += 1
        super().update(output)


def probe_with(key_metric: Any, further: Any) -> Probe:
    """A probe of two cases, whose evaluator has a further metric."""
    label = torch.zeros(1, 4, 4)
    label[:, 1:3] = 1
    items = [{"image": image, "label": label} for image in (label, torch.ones(1, 4, 4))]
    evaluator = evaluator_of(
        Scaled(),
        items,
        key_val_metric={"dice": key_metric},
        additional_metrics={"further": further},
    )
    return Probe(evaluator)


def test_a_score_computes_the_key_metric_alone_also_where_it_is_made_of_others() -> None:
    key_metric, further = Counting(), Counting()
    probe = probe_with(key_metric, further)
    mean = probe.score({})["mean"]
    assert isinstance(mean, Estimate) and mean.value == pytest.approx((1 + 2 / 3) / 2)
    assert (key_metric.batches, further.batches) == (2, 0)
    # A model that may have changed is scored again.
    probe.score({})
    assert key_metric.batches == 4
    # The bundle's own evaluation computes both.
    probe.engine.run()
    assert further.batches == 2
    # Without such a metric there is no surface distance.
    assert measured("test_hd95", probe, {}) is None

    dice = Counting()
    mean = probe_with(dice * 0.5, dice).score({})["mean"]
    assert isinstance(mean, Estimate) and mean.value == pytest.approx((1 + 2 / 3) / 4)
    assert dice.batches == 2


def test_a_distance_is_no_score() -> None:
    """Where lower is better, FedCE would take the worst client for the best."""
    label = torch.zeros(1, 8, 8)
    label[..., 2:4, 2:4] = 1
    items = [{"image": label, "label": each} for each in (label, torch.roll(label, 3, dims=1))]
    distance = HausdorffDistance(include_background=True, output_transform=PREDICTION_AND_LABEL)
    evaluator = evaluator_of(nn.Identity(), items, key_val_metric={"distance": distance})
    with pytest.raises(ValueError, match="'distance' is 3"):
        Probe(evaluator).score({})


# ---- losses and sharpness of training


QUADRATIC = GOLDEN["fedism"]["quadratic"]


def quadratic(predicted: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return 0.5 * (torch.tensor(QUADRATIC["H_diag"], dtype=torch.float64) * predicted.square()).sum()


def noisy_trainer() -> Any:
    """A net with BatchNorm and dropout on shuffled images with random noise."""
    network = conv_net()
    data = [
        {"image": image, "label": (image > 0).float()} for image in image_batches(2)[0]["image"]
    ]
    transform = Compose([RandGaussianNoised("image", prob=1.0, std=0.5)])
    transform.set_random_state(11)
    batches = DataLoader(Dataset(data, transform), batch_size=2, shuffle=True)
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    return trainer_of(network, batches, DiceCELoss(sigmoid=True), optimizer)  # type: ignore[arg-type]


def test_sharpness_and_loss_of_the_golden_quadratic_are_the_worked_ones() -> None:
    network = Point([0.0, 0.0])
    trainer = trainer_of(network, ONE_BATCH, quadratic, torch.optim.SGD(network.parameters(), 1.0))
    probe = TrainingProbe(trainer)
    model = {"w": torch.tensor(QUADRATIC["w"], dtype=torch.float64)}
    # 0.05 where the server sends no radius.
    assert measured("sharpness", probe, model) == pytest.approx(QUADRATIC["sharpness"], abs=1e-6)
    assert measured("global_loss", probe, model).value == pytest.approx(QUADRATIC["loss"])
    first_order = 1e-4 * float(np.linalg.norm(QUADRATIC["grad"]))
    small = measured("sharpness", probe, model, sam_rho=1e-4)
    assert small == pytest.approx(first_order, rel=1e-3)
    # Of a model without gradient, the perturbation is nothing.
    flat = {"w": torch.zeros(2, dtype=torch.float64)}
    assert measured("sharpness", probe, flat) == 0
    assert network.w.tolist() == [0.0, 0.0] and network.w.grad is None


def test_loss_and_sharpness_are_of_the_whole_data_set_whatever_its_batches() -> None:
    x, y = least_squares()
    weights = {"weight": torch.ones(1, 3, dtype=torch.float64)}

    def probe_of(size: int) -> TrainingProbe:
        network = nn.Linear(3, 1, bias=False, dtype=torch.float64)
        loader = [{"image": a, "label": b} for a, b in zip(x.split(size), y.split(size))]
        optimizer = torch.optim.SGD(network.parameters(), 0.1)
        return TrainingProbe(trainer_of(network, loader, half_mean_square, optimizer))

    losses = 0.5 * (x.sum(1, keepdim=True) - y).square()
    whole, parts = probe_of(12), probe_of(5)
    assert whole.loss(weights) == Estimate(pytest.approx(float(losses.mean())), None, 1)
    assert parts.loss(weights).value == pytest.approx(float(losses.mean()))
    assert parts.sharpness(weights, 0.3) == pytest.approx(whole.sharpness(weights, 0.3))
    even = probe_of(4).loss(weights)
    of_batches = [float(batch.mean()) for batch in losses.split(4)]
    assert even.n == 3 and even.stderr == pytest.approx(np.std(of_batches, ddof=1) / 3**0.5)


def test_a_training_that_was_probed_is_bit_equal_to_one_that_was_not() -> None:
    states = []
    for probed in (False, True):
        trainer = noisy_trainer()
        weights = {k: v.clone() for k, v in trainer.network.state_dict().items()}
        torch.manual_seed(3)
        for _ in range(2):
            if probed:
                TrainingProbe(trainer).loss(weights)
                TrainingProbe(trainer).sharpness(weights, 0.05)
            trainer.state.max_epochs = trainer.state.epoch + 1
            trainer.run()
        states.append({**trainer.network.state_dict(), "random": torch.random.get_rng_state()})
    assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])
