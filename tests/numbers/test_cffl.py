# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""CFFL: reputations of the scores, and who loses its say."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.driving import (
    COMMON,
    GOLDEN,
    UPDATES,
    play,
    play_round,
    reported,
    values,
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


def test_an_excluded_client_stays_so_when_the_reputable_ones_are_absent() -> None:
    poor = reported("local_score", [0.9, 0.2, 0.15])
    strategy = of_ten_rounds()
    results = play(strategy, [UPDATES] * 2, [poor] * 2, COMMON["w0"])
    assert values(results[1].aggregation) == [1.0, 0.0, 0.0]
    others = play_round(strategy, {c: UPDATES[c] for c in ("2", "3")}, poor)
    assert others.aggregation == {"2": 0.5, "3": 0.5} and not others.notes
    assert values(play_round(strategy, UPDATES, poor).aggregation) == [1.0, 0.0, 0.0]
