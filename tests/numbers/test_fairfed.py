# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FairFed: weights move against the gap of a client's score."""

from __future__ import annotations

import numpy as np
from helpers.driving import GOLDEN, SAMPLES, UPDATES, agree, play, reported

from monai_fairfl.strategies import FairFed

WORKED = GOLDEN["fairfed"]
SCORES = reported("global_score", WORKED["acc"])


def test_weights_follow_the_worked_gaps() -> None:
    strategy = FairFed(WORKED["beta"])
    first, second = play(strategy, [UPDATES] * 2, [SCORES] * 2, samples=SAMPLES)
    agree(first.details["gap"], WORKED["gap"])
    agree(first.aggregation, WORKED["weights"])
    step = WORKED["beta"] * (np.array(WORKED["gap"]) - np.mean(WORKED["gap"]))
    expected = np.maximum(np.array(WORKED["weights"]) - step, 0)
    agree(second.aggregation, expected / expected.sum())


def test_the_released_gap_is_the_worked_one() -> None:
    strategy = FairFed(WORKED["beta"], variant="released")
    (first,) = play(strategy, [UPDATES], [SCORES], samples=SAMPLES)
    agree(first.details["gap"], WORKED["buggy_ffl4mia_gap"])
    agree(first.aggregation, WORKED["buggy_weights"])
