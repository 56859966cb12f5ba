# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""AFL: the mixture climbs the losses, and is projected to the simplex."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.driving import (
    COMMON,
    GOLDEN,
    SPEC,
    UPDATES,
    play,
    play_round,
    reported,
    values,
    vector,
)

from monai_fairfl.strategies import AFL

WORKED = GOLDEN["afl"]
LOSSES = reported("global_loss", WORKED["losses"])


def test_the_mixture_climbs_the_losses_for_the_next_round() -> None:
    steps = {0.1: WORKED["projected"], 1.0: WORKED["gamma1_projected"], 1e6: [0, 0, 1]}
    for step, expected in steps.items():
        first, second = play(AFL(step=step), [UPDATES] * 2, [LOSSES] * 2, COMMON["w0"])
        assert values(first.aggregation) == pytest.approx([1 / 3] * 3)
        np.testing.assert_allclose(values(second.aggregation), expected, atol=2e-6)


def test_the_worst_clients_model_can_be_taken_over() -> None:
    for strategy in (AFL(variant="released"),):
        (result,) = play(strategy, [UPDATES], [LOSSES], COMMON["w0"])
        assert values(result.aggregation) == [0, 0, 1]


def test_an_absent_client_climbs_by_the_mean_loss_and_a_newcomer_shares() -> None:
    """By the mean loss a share stays: the projection to the simplex takes it out again."""
    strategy = AFL(step=0.1)
    strategy.start({"w": vector([0.0])}, ["1", "2"], SPEC)
    updates = {client: [0.1] for client in ("1", "2", "3")}
    losses = {"1": {"global_loss": 1.0}, "2": {"global_loss": 1.0}, "3": {"global_loss": 2.0}}
    assert values(play_round(strategy, updates, losses).aggregation) == pytest.approx([1 / 3] * 3)
    # A federation knows every client that it has asked once.
    strategy.clients = ["1", "2", "3"]
    present = {client: updates[client] for client in ("1", "2")}
    assert play_round(strategy, present, losses).aggregation == {"1": 0.5, "2": 0.5}
    back = play_round(strategy, updates, losses)
    assert values(back.aggregation) == pytest.approx([0.3, 0.3, 0.4])

    # A client that is no longer known leaves its share.
    strategy.clients = ["1", "2"]
    equal = {client: {"global_loss": 1.0} for client in updates}
    for _ in range(2):
        left = play_round(strategy, present, equal)
    assert left.aggregation == pytest.approx({"1": 0.5, "2": 0.5})
