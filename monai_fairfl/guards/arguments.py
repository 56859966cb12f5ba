# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The check of guards' thresholds: one that can never be passed would guard nothing."""

from __future__ import annotations

import math

from monai_fairfl.errors import ConfigError
from monai_fairfl.utils.settings import is_number


def check_threshold(
    guard: object, argument: str, value: float, above: float, most: float = math.inf
) -> None:
    """Refuse a threshold that is not above one number and at most another, or not finite.

    Args:
        guard: whose it is, for the message.
        argument: its name.
        value: what the user gave.
        above: it must be larger than this.
        most: it may be as large as this.

    Raises:
        ConfigError: naming the guard, the argument and what it may be.

    >>> from monai_fairfl.guards import TooLong
    >>> TooLong(times=0.5)
    Traceback (most recent call last):
    monai_fairfl.errors.ConfigError: TooLong: times must be a finite number above 1, got 0.5
    """
    if is_number(value) and above < value <= most and math.isfinite(value):
        return
    limit = "" if math.isinf(most) else f" and at most {most:g}"
    raise ConfigError(
        f"{type(guard).__name__}: {argument} must be a finite number above {above:g}{limit}, got "
        f"{value!r}"
    )
