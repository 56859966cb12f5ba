# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""An estimate with its confidence interval."""

from __future__ import annotations

import math
from typing import NamedTuple


class Interval(NamedTuple):
    """An estimate with the ends of its confidence interval; NaN where unknown."""

    estimate: float
    low: float
    high: float

    def words(self, digits: int) -> str:
        """The estimate, with its interval where that is known.

        >>> Interval(0.5, 0.25, 0.75).words(2)
        '0.50 (0.25 to 0.75)'
        >>> Interval(0.5, math.nan, math.nan).words(2), Interval(math.nan, 0, 1).words(2)
        ('0.50', 'undefined')
        """
        if math.isnan(self.estimate):
            return "undefined"
        text = f"{self.estimate:.{digits}f}"
        if math.isnan(self.low) or math.isnan(self.high):
            return text
        return f"{text} ({self.low:.{digits}f} to {self.high:.{digits}f})"
