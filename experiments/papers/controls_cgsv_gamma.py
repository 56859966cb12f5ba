# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""CGSV, round by round: where a longer fixed step sends the agent that has all classes.

Ten agents, the first with one digit, the last with all ten (CLA). What agents received and their
reputation, with updates of length 0.15 and 0.5, which the paper has for CIFAR-10 and MNIST.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from classification.summaries import chosen, spread
from reading import markdown, measurement

LENGTHS = ("0.15", "0.5")
WATCHED = ("one class", "five classes", "ten classes")
"""The agents that were watched, by the classes that they have."""
EVERY = 10
SHOWN = (20, 40, 80)


def table() -> str:
    """Write a row per length and number of rounds."""
    runs = measurement("controls_cgsv_gamma")["runs"]
    rows = []
    for length in LENGTHS:
        found = chosen(runs, length=length)
        for done in SHOWN:
            rows.append([length, done, *_cells(found, done)])
    head = ["length of updates", "rounds", "length that clients sent"]
    for classes in WATCHED:
        head.append(f"{classes}: accuracy")
    head += [
        "reputation of one class",
        "of five classes",
        "of ten classes",
        "cosine of ten classes with the step",
    ]
    return markdown(head, rows)


def _cells(found: Sequence[Mapping[str, Any]], done: int) -> list[str]:
    cells = [spread([run["update lengths"][done - 1] for run in found])]
    for index in range(len(WATCHED)):
        cells.append(spread([100 * run["received"][index][done // EVERY - 1] for run in found], 1))
    for index in range(len(WATCHED)):
        cells.append(spread([run["reputation"][index][done - 1] for run in found], 3))
    # Single rounds are noisy: the mean of the last ten.
    cosines = []
    for run in found:
        cosines.append(np.mean(run["cosine"][-1][done - EVERY : done]))
    cells.append(spread(cosines))
    return cells
