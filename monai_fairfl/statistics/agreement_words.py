# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The agreement of two sets of shares in words, which follow its sign and its size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from monai_fairfl.statistics.intervals import Interval

CLEAR = 50.0
"""From this correlation on, of 100, shares are said to agree, and from its negative to oppose."""


@dataclass(frozen=True)
class Measure:
    """How a measure of agreement is shown: its name, its decimals, and what follows the number."""

    name: str
    digits: int
    scale: str = ""


MEASURES = {
    "pearson": Measure("Pearson", 1, " of 100"),
    "spearman": Measure("Spearman", 1, " of 100"),
    "euclidean": Measure("Euclid", 3),
    "cosine": Measure("cosine", 3),
}


def agreement_words(found: Mapping[str, Interval]) -> str:
    """How well some shares agree with others: a verb, then the numbers.

    Args:
        found: name of each of :data:`MEASURES` -> value; correlations times 100.

    >>> found = {"pearson": Interval(-56.1, math.nan, math.nan), "spearman": Interval(-40, -80, 0),
    ...          "euclidean": Interval(0.2, 0.1, 0.3), "cosine": Interval(0.9, 0.8, 1)}
    >>> print(agreement_words(found))
    are opposed to these: Pearson -56.1 of 100, Spearman -40.0 (-80.0 to 0.0) of 100, \
Euclid 0.200 (0.100 to 0.300), cosine 0.900 (0.800 to 1.000)
    """
    numbers = []
    for key, measure in MEASURES.items():
        numbers.append(f"{measure.name} {found[key].words(measure.digits)}{measure.scale}")
    return f"{_verb(found['pearson'].estimate)}: {', '.join(numbers)}"


def _verb(pearson: float) -> str:
    """What a correlation, times 100, says."""
    if math.isnan(pearson):
        return "have no correlation with these that is defined"
    if pearson >= CLEAR:
        return "agree with these"
    if pearson > -CLEAR:
        return "hardly agree with these"
    return "are opposed to these"
