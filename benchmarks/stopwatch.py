# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Times a step of a benchmark."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any


def milliseconds(step: Callable[[], Any], repeats: int) -> float:
    """Measure the median CPU time of ``step`` after one warm-up."""
    step()
    times = []
    for _ in range(repeats):
        begun = time.process_time()
        step()
        times.append(1000 * (time.process_time() - begun))
    return statistics.median(times)
