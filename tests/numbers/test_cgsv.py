# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""CGSV: two worked rounds, the sparsified rewards of every variant, and the paper's baselines."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.driving import (
    CLIENTS,
    COMMON,
    GOLDEN,
    SAMPLES,
    UPDATES,
    agree,
    play,
    values,
)

from monai_fairfl import RoundResult
from monai_fairfl.strategies import CGSV

WORKED = GOLDEN["cgsv"]
SECOND = dict(zip(CLIENTS, GOLDEN["fedce"]["updates_round1"], strict=True))
W0 = np.array(COMMON["w0"])


def first(**arguments: object) -> RoundResult:
    strategy = CGSV(**arguments)  # type: ignore[arg-type]
    (result,) = play(strategy, samples=SAMPLES)
    return result


def kept(result: RoundResult) -> list[float]:
    """How many of the four entries each client received."""
    return [4 * share for share in values(result.details["kept"])]


def test_two_rounds_give_the_worked_steps_cosines_and_reputations() -> None:
    one, two = play(CGSV(), [UPDATES, SECOND], [{}, {}], samples=SAMPLES)
    agree(one.weights["w"] - W0, WORKED["u_N_round1"])
    agree(two.weights["w"] - one.weights["w"], WORKED["u_N_round2"])
    for result, cosine, reputation in ((one, "psi", "r_round1"), (two, "psi_round2", "r_round2")):
        agree(result.details["cosine"], WORKED[cosine])
        for found in (result.details["reputation"], result.contributions):
            agree(found, WORKED[reputation])
    # The step is averaged with the previous reputations.
    agree(two.aggregation, WORKED["r_round1"])


def test_each_client_keeps_the_worked_number_of_entries() -> None:
    for variant, key in (
        ("paper", "paper_floor"),
        ("recommended", "ceil_no_cap"),
        ("released", "code_ceil_cap_len_minus_1"),
    ):
        for beta in (1, 2):
            result = first(beta=beta, variant=variant)
            np.testing.assert_allclose(kept(result), WORKED[f"kept_beta{beta}_{key}"])


def test_the_rewards_are_the_worked_ones_and_the_best_gets_the_whole_step() -> None:
    for beta in (1, 2):
        result = first(beta=beta, variant="paper")
        assert result.rewards is not None
        for client, reward in zip(CLIENTS, WORKED[f"reward_beta{beta}_paper_floor"], strict=True):
            agree(result.rewards[client]["w"] - W0, reward)


def test_the_exact_contribution_is_the_worked_shapley_value() -> None:
    exact = values(first(exact=True).details["cosine"])
    agree(exact, WORKED["exact_cosine_shapley"])


def test_baselines_of_the_reward() -> None:
    expected = [math.floor(4 * q) for q in WORKED["DW_q"]]
    assert kept(first(reward="data_size", variant="paper")) == expected
    expected = [math.floor(4 * q) for q in WORKED["EU_q_one_minus_share_over_max"]]
    assert kept(first(reward="euclidean", variant="paper")) == expected
    assert first(reward=None).rewards is None

    results = play(CGSV(reward="round_robin"), [UPDATES] * 4, samples=SAMPLES)
    receivers = [int(np.argmax(kept(result))) for result in results]
    assert receivers == WORKED["RR_receiver_rounds_1_to_4"]
    others = results[0].rewards
    assert others is not None
    np.testing.assert_allclose(others["2"]["w"], W0 + UPDATES["2"])
    # Its weights are the shares of images in every round.
    assert values(results[3].aggregation) == pytest.approx(COMMON["p"])
