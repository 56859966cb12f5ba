# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""An estimate with its confidence interval."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from monai_fairfl.errors import ConfigError


class Interval(NamedTuple):
    """An estimate with the ends of its confidence interval; NaN where unknown."""

    estimate: float
    low: float
    high: float

    @classmethod
    def read(cls, data: Mapping[str, float | None]) -> Interval:
        """From JSON, which has ``null`` for what is unknown."""

        def number(name: str) -> float:
            value = data.get(name)
            return math.nan if value is None else float(value)

        return cls(number("estimate"), number("low"), number("high"))

    def words(self, digits: int) -> str:
        """The estimate, with its interval where that is known.

        >>> Interval(0.5, 0.25, 0.75).words(2)
        '0.50 (0.25 to 0.75)'
        >>> Interval.read({"estimate": 0.5}).words(2), Interval.read({}).words(2)
        ('0.50', 'undefined')
        """
        if math.isnan(self.estimate):
            return "undefined"
        text = f"{self.estimate:.{digits}f}"
        if math.isnan(self.low) or math.isnan(self.high):
            return text
        return f"{text} ({self.low:.{digits}f} to {self.high:.{digits}f})"


def check_level(level: float) -> None:
    """Refuse a confidence level that is not between 0 and 1, such as 95."""
    if not 0 < level < 1:
        raise ConfigError(f"level must be between 0 and 1, got {level}.")
