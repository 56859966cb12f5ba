# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Faults in the middle of a training or an evaluation."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any


def broken(function: Callable[..., Any], at: int, error: Exception) -> Callable[..., Any]:
    """``function``, whose call number ``at`` raises."""
    calls = count(1)

    def call(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == at:
            raise error
        return function(*args, **kwargs)

    return call
