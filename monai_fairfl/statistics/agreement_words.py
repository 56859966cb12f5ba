# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The agreement of two sets of shares in words, which follow its sign and its size."""

from __future__ import annotations

import math
from collections.abc import Mapping

from monai_fairfl.statistics.intervals import Interval

CLEAR = 50.0
"""From this correlation on, of 100, shares are said to agree, and from its negative to oppose."""


MEASURES = ("pearson", "spearman", "euclidean", "cosine")
"""Measures of the agreement, see :class:`~monai_fairfl.valuation.agreement.Fidelity`."""


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
    correlation = found["pearson"]
    if math.isnan(correlation.estimate):
        verb = "have no correlation with these that is defined"
    elif correlation.estimate >= CLEAR:
        verb = "agree with these"
    elif correlation.estimate > -CLEAR:
        verb = "hardly agree with these"
    else:
        verb = "are opposed to these"
    return (
        f"{verb}: Pearson {correlation.words(1)} of 100, "
        f"Spearman {found['spearman'].words(1)} of 100, "
        f"Euclid {found['euclidean'].words(3)}, cosine {found['cosine'].words(3)}"
    )
