# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Numbers of several seeds, written into cells; and predicates that were fixed beforehand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from agreement import pearson

SEEDS = (0, 1, 2)
"""Seed 0 is the one that settings were chosen on."""


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Write the mean of the seeds and their standard deviation.

    >>> spread([0.25, 0.5, 0.75])
    '0.50 ± 0.25'
    >>> spread([90.0, math.nan, 92.0], 0)
    'not defined in 1 of 3 seeds'
    """
    undefined = sum(math.isnan(value) for value in values)
    if undefined == len(values):
        return "not defined"
    if undefined:
        return f"not defined in {undefined} of {len(values)} seeds"
    deviation = float(np.std(values, ddof=1))
    return f"{np.mean(values):.{digits}f} ± {deviation:.{digits}f}"


def each(values: Sequence[float], digits: int = 2) -> str:
    """Write the number of every seed.

    >>> each([0.25, math.nan, 1.0])
    '0.25, not defined, 1.00'
    """
    shown = []
    for value in values:
        if math.isnan(value):
            shown.append("not defined")
        else:
            shown.append(f"{value:.{digits}f}")
    return ", ".join(shown)


def fairness(alone: Sequence[float], together: Sequence[float]) -> float:
    """Compute CGSV's fairness: 100 times Pearson's correlation over clients.

    Args:
        alone: every client's accuracy after training alone.
        together: its accuracy with what the federation gave it.

    Returns:
        -100 to 100; NaN where all clients have the same accuracy.

    >>> fairness([0.2, 0.4, 0.6], [0.7, 0.8, 0.9])
    100.0
    >>> fairness([0.2, 0.4, 0.6], [0.7, 0.7, 0.7])
    nan
    """
    return round(100 * pearson(alone, together), 6)


def answer(of_seeds: Sequence[bool]) -> str:
    """Write whether a predicate holds: yes only where it holds for every seed.

    >>> answer([True, True, True]), answer([True, False, True])
    ('yes (3 of 3 seeds)', 'no (2 of 3 seeds)')
    """
    word = "no"
    if all(of_seeds):
        word = "yes"
    return f"{word} ({sum(of_seeds)} of {len(of_seeds)} seeds)"


def chosen(runs: Iterable[Mapping[str, Any]], **wanted: Any) -> list[Mapping[str, Any]]:
    """Return the runs whose values are the wanted ones, in the order of their seeds."""
    found = []
    for run in runs:
        if all(run[name] == value for name, value in wanted.items()):
            found.append(run)
    return sorted(found, key=lambda run: run["seed"])
