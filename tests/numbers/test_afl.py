# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""AFL: the mixture climbs the losses, and is projected to the simplex."""

from __future__ import annotations

import pytest
from helpers.driving import (
    GOLDEN,
    UPDATES,
    agree,
    play,
    reported,
    values,
)

from monai_fairfl.strategies import AFL

WORKED = GOLDEN["afl"]
LOSSES = reported("global_loss", WORKED["losses"])


def test_the_mixture_climbs_the_losses_for_the_next_round() -> None:
    steps = {0.1: WORKED["projected"], 1.0: WORKED["gamma1_projected"], 1e6: [0, 0, 1]}
    for step, expected in steps.items():
        first, second = play(AFL(step=step), [UPDATES] * 2, [LOSSES] * 2)
        assert values(first.aggregation) == pytest.approx([1 / 3] * 3)
        agree(second.aggregation, expected)


def test_the_worst_clients_model_can_be_taken_over() -> None:
    (result,) = play(AFL(variant="released"), [UPDATES], [LOSSES])
    assert values(result.aggregation) == [0, 0, 1]
