# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The smallest count of cases behind a number that leaves a site."""

from __future__ import annotations

from monai_fairfl.errors import ConfigError

DEFAULT_LEAST = 5
"""Cases."""

SMALLEST_LEAST = 3
"""Of two cases, a reader who knows one learns the other."""


def check_least(least: int) -> int:
    """``least`` itself, where it protects a case.

    Raises:
        ConfigError: where it is below :data:`SMALLEST_LEAST`.
    """
    if least < SMALLEST_LEAST:
        raise ConfigError(
            f"--least is {least}, and must be at least {SMALLEST_LEAST}: with two cases, anybody "
            "who knows one can compute the other"
        )
    return least
