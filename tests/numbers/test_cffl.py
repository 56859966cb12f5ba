# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""CFFL: reputations of the scores, and who loses its say."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.driving import (
    GOLDEN,
    UPDATES,
    agree,
    play,
    reported,
    values,
)

from monai_fairfl.strategies import CFFL

WORKED = GOLDEN["cffl"]
SCORES = reported("local_score", WORKED["val_acc"])


def test_reputations_are_the_worked_ones() -> None:
    strategy = CFFL()
    strategy.rounds_planned = WORKED["fl_epochs"]
    first, second = play(strategy, [UPDATES] * 2, [SCORES] * 2)
    agree(first.aggregation, WORKED["reputation_round0"])
    agree(second.aggregation, WORKED["reputation_round1"])


def test_the_papers_form_fades_by_half_and_its_alpha_stays() -> None:
    results = play(CFFL(variant="paper"), [UPDATES] * 2, [SCORES] * 2)
    share = np.array(WORKED["val_acc"]) / sum(WORKED["val_acc"])
    reputation = np.zeros(3)
    for result in results:
        reputation = np.sinh(5 * (reputation + share) / 2)
        reputation /= reputation.sum()
        agree(result.aggregation, reputation, 1e-12)


def test_a_client_below_the_threshold_loses_its_say_for_good() -> None:
    poor = reported("local_score", [0.8, 0.7, 0.1])  # a positive score, below the threshold
    good = reported("local_score", [0.1, 0.1, 0.9])
    for result in play(CFFL(), [UPDATES] * 2, [poor, good]):
        assert values(result.aggregation)[2] == 0 and set(result.notes) == {"3"}
        assert sum(values(result.aggregation)) == pytest.approx(1)
