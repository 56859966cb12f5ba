# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""CFFL: reputations of the scores, and who loses its say."""

from __future__ import annotations

import json

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

from monai_fairfl.strategies import CFFL

WORKED = GOLDEN["cffl"]
SCORES = reported("local_score", WORKED["val_acc"])


def of_ten_rounds(strategy: CFFL | None = None) -> CFFL:
    strategy = strategy or CFFL()
    strategy.rounds_planned = WORKED["fl_epochs"]
    return strategy


def test_reputations_are_the_worked_ones() -> None:
    first, second = play(of_ten_rounds(), [UPDATES] * 2, [SCORES] * 2, COMMON["w0"])
    np.testing.assert_allclose(values(first.aggregation), WORKED["reputation_round0"], atol=2e-6)
    np.testing.assert_allclose(values(second.aggregation), WORKED["reputation_round1"], atol=2e-6)


def test_the_papers_form_fades_by_half_and_its_alpha_stays() -> None:
    results = play(CFFL(variant="paper"), [UPDATES] * 2, [SCORES] * 2, COMMON["w0"])
    share = np.array(WORKED["val_acc"]) / sum(WORKED["val_acc"])
    reputation = np.zeros(3)
    for result in results:
        reputation = np.sinh(5 * (reputation + share) / 2)
        reputation /= reputation.sum()
        np.testing.assert_allclose(values(result.aggregation), reputation, atol=1e-12)


def test_a_client_below_the_threshold_loses_its_say_for_good() -> None:
    poor = reported("local_score", [0.8, 0.7, 0.1])  # a positive score, below the threshold
    good = reported("local_score", [0.1, 0.1, 0.9])
    for result in play(CFFL(), [UPDATES] * 2, [poor, good], COMMON["w0"]):
        assert values(result.aggregation)[2] == 0 and set(result.notes) == {"3"}
        assert sum(values(result.aggregation)) == pytest.approx(1)


def test_the_threshold_is_a_third_of_the_even_share() -> None:
    """With sinh almost linear, a share of the scores is the reputation."""
    for third, keeps_its_say in ((0.1115, True), (0.1105, False)):
        rest = (1 - third) / 2
        scores = reported("local_score", [rest, rest, third])
        strategy = CFFL(alpha=0.001)
        (result,) = play(strategy, [UPDATES], [scores], COMMON["w0"])
        assert (values(result.aggregation)[2] > 0) == keeps_its_say


def test_an_excluded_client_stays_so_when_the_reputable_ones_are_absent() -> None:
    poor = reported("local_score", [0.9, 0.2, 0.15])
    strategy = of_ten_rounds()
    results = play(strategy, [UPDATES] * 2, [poor] * 2, COMMON["w0"])
    assert values(results[1].aggregation) == [1.0, 0.0, 0.0]
    others = play_round(strategy, {c: UPDATES[c] for c in ("2", "3")}, poor)
    assert others.aggregation == {"2": 0.5, "3": 0.5} and not others.notes
    assert values(play_round(strategy, UPDATES, poor).aggregation) == [1.0, 0.0, 0.0]


def test_the_largest_alpha_overflows_in_no_round() -> None:
    """It has almost doubled in the last one, when one client has all of the reputation."""
    alone = reported("local_score", [0.9, 0.0, 0.0])
    strategy = of_ten_rounds(CFFL(alpha=300))
    results = play(strategy, [UPDATES] * 10, [alone] * 10, COMMON["w0"])
    assert values(results[-1].aggregation) == [1.0, 0.0, 0.0]


def test_a_run_that_is_resumed_before_a_site_joins_gives_the_same_bits() -> None:
    """The checkpoint's keys are sorted, and a newcomer gets the mean of all reputations."""
    scores = [
        {"2": 0.6, "4": 0.77},
        {"1": 0.77, "2": 0.84, "4": 0.57},
        {"1": 0.59, "2": 0.56, "3": 0.59, "4": 0.79},
    ]

    def last_weights(resumed: bool) -> dict[str, float]:
        strategy = of_ten_rounds()
        strategy.start({"w": vector([0.0] * 4)}, ("2", "4"), SPEC)
        for of_round in scores:
            if resumed:
                state = json.loads(json.dumps(strategy.state_dict(), sort_keys=True))
                strategy.load_state_dict(state)
            updates = dict.fromkeys(of_round, UPDATES["1"])
            measured = {client: {"local_score": score} for client, score in of_round.items()}
            result = play_round(strategy, updates, measured)
        return dict(result.aggregation)  # type: ignore[arg-type]

    assert last_weights(resumed=True) == last_weights(resumed=False)
