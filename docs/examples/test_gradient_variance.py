# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A measurement is tested on a trainer whose gradients are known."""

from __future__ import annotations

import pytest
import torch
from gradient_variance import gradient_variance
from helpers.small_trainers import Point, trainer_of

from monai_fairfl.measurements import Memory, TrainingProbe

WEIGHTS = {"w": torch.tensor([5.0, 7.0], dtype=torch.float64)}


def half_square(predicted: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Its gradient is ``predicted - target``."""
    return 0.5 * (predicted - target).square().sum()


def probe_of(*targets: tuple[float, float]) -> TrainingProbe:
    """A model that predicts its weights, and one batch for each target."""
    network = Point([0.0, 0.0])
    batches = [{"image": torch.zeros(1, 1), "label": torch.tensor([target])} for target in targets]
    optimizer = torch.optim.SGD(network.parameters(), 1.0)
    return TrainingProbe(trainer_of(network, batches, half_square, optimizer))


def test_it_is_the_variance_of_the_targets_where_the_gradient_is_the_way_to_them() -> None:
    value = gradient_variance(probe_of((3.0, 0.0), (-3.0, 4.0)), WEIGHTS, Memory(), {})
    assert value == pytest.approx(3.0**2 + 2.0**2)


def test_equal_batches_have_none_and_a_single_batch_is_not_measured() -> None:
    same = (0.1, 0.7)
    assert gradient_variance(probe_of(same, same, same), WEIGHTS, Memory(), {}) == 0.0
    assert gradient_variance(probe_of((3.0, 1.0)), WEIGHTS, Memory(), {}) is None
