# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a client measures: outputs and scores of a network, losses and sharpness of training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.driving import GOLDEN
from helpers.small_evaluators import cases_of, evaluator_of
from helpers.small_trainers import (
    ONE_BATCH,
    Point,
    half_mean_square,
    least_squares,
    trainer_of,
)
from monai.data import MetaTensor
from monai.engines.utils import IterationEvents
from monai.handlers import (
    HausdorffDistance,
    from_engine,
)
from monai.inferers import SliceInferer
from monai.transforms import (
    Activationsd,
)
from torch import nn

from monai_fairfl.measurements import Memory, Probe, TrainingProbe
from monai_fairfl.messages import MEASUREMENTS

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


def volumes() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 4, 4, 3, generator=generator) for _ in range(3)]


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


# ---- scores


def test_a_distance_is_no_score() -> None:
    """Where lower is better, FedCE would take the worst client for the best."""
    label = torch.zeros(1, 8, 8)
    label[..., 2:4, 2:4] = 1
    items = [{"image": label, "label": each} for each in (label, torch.roll(label, 3, dims=1))]
    distance = HausdorffDistance(include_background=True, output_transform=PREDICTION_AND_LABEL)
    evaluator = evaluator_of(nn.Identity(), items, key_val_metric={"distance": distance})
    with pytest.raises(ValueError, match="'distance' gives .*3.0"):
        Probe(evaluator).score({})


# ---- losses and sharpness of training


QUADRATIC = GOLDEN["fedism"]["quadratic"]


def quadratic(predicted: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return 0.5 * (torch.tensor(QUADRATIC["H_diag"], dtype=torch.float64) * predicted.square()).sum()


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
    losses = 0.5 * (x.sum(1, keepdim=True) - y).square()
    found, sharpness = {}, []
    for size in (12, 5, 4):
        network = nn.Linear(3, 1, bias=False, dtype=torch.float64)
        loader = [{"image": a, "label": b} for a, b in zip(x.split(size), y.split(size))]
        optimizer = torch.optim.SGD(network.parameters(), 0.1)
        probe = TrainingProbe(trainer_of(network, loader, half_mean_square, optimizer))
        found[size] = probe.loss(weights)
        assert found[size].value == pytest.approx(float(losses.mean()))
        sharpness.append(probe.sharpness(weights, 0.3))
    assert sharpness == pytest.approx([sharpness[0]] * 3)
    assert found[12].stderr is None and found[12].n == 1
    of_batches = [float(batch.mean()) for batch in losses.split(4)]
    assert found[4].n == 3
    assert found[4].stderr == pytest.approx(np.std(of_batches, ddof=1) / 3**0.5)
