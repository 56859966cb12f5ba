# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
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
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from monai_fairfl.strategies import AFL
from monai_fairfl.strategies.afl import project_to_simplex

WORKED = GOLDEN["afl"]
LOSSES = reported("global_loss", WORKED["losses"])


@pytest.mark.parametrize(("step", "key"), [(0.1, "projected"), (1.0, "gamma1_projected")])
def test_the_mixture_climbs_the_losses_for_the_next_round(step: float, key: str) -> None:
    first, second = play(AFL(step=step), [UPDATES] * 2, [LOSSES] * 2, COMMON["w0"])
    assert values(first.aggregation) == pytest.approx([1 / 3] * 3)
    np.testing.assert_allclose(values(second.aggregation), WORKED[key], atol=2e-6)


@pytest.mark.parametrize("strategy", [AFL(form="worst_client"), AFL(variant="released")])
def test_the_worst_clients_model_can_be_taken_over(strategy: AFL) -> None:
    (result,) = play(strategy, [UPDATES], [LOSSES], COMMON["w0"])
    assert values(result.aggregation) == [0, 0, 1]


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=5))
def test_the_projection_is_the_nearest_point_of_the_simplex(point: list[float]) -> None:
    names = [str(i) for i in range(len(point))]
    projected = np.array(list(project_to_simplex(dict(zip(names, point, strict=True))).values()))
    assert projected.sum() == pytest.approx(1) and projected.min() >= 0

    # No point of the simplex that SLSQP finds is nearer.
    found = minimize(
        lambda x: ((x - point) ** 2).sum(),
        np.full(len(point), 1 / len(point)),
        method="SLSQP",
        bounds=[(0, 1)] * len(point),
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1},
    )
    assert ((projected - point) ** 2).sum() <= found.fun + 1e-6


def test_the_share_of_a_client_that_joined_late_and_misses_a_round_stays() -> None:
    """It changes by the mean loss alone, which the projection to the simplex takes out again."""
    strategy = AFL(step=0.1)
    strategy.start({"w": vector([0.0] * 4)}, ["1", "2"], SPEC)
    updates = {client: [0.1] * 4 for client in ("1", "2", "3")}
    losses = {"1": {"global_loss": 1.0}, "2": {"global_loss": 1.0}, "3": {"global_loss": 2.0}}
    play_round(strategy, updates, losses)
    # A federation knows every client that it has asked once.
    strategy.clients = ["1", "2", "3"]
    joined = dict(strategy.mixture)
    assert joined["3"] == pytest.approx(0.4)

    present = {client: updates[client] for client in ("1", "2")}
    play_round(strategy, present, losses)
    assert strategy.mixture == pytest.approx(joined)
    assert play_round(strategy, updates, losses).aggregation == pytest.approx(joined)


def test_a_client_that_is_no_longer_known_leaves_its_share() -> None:
    strategy = AFL(step=0.1)
    strategy.start({"w": vector([0.0] * 4)}, ["1", "2", "3"], SPEC)
    updates = {client: [0.1] * 4 for client in ("1", "2", "3")}
    losses = {client: {"global_loss": 1.0} for client in updates}
    play_round(strategy, updates, losses)
    strategy.clients = ["1", "2"]
    play_round(strategy, {client: updates[client] for client in ("1", "2")}, losses)
    assert strategy.mixture == pytest.approx({"1": 0.5, "2": 0.5})
