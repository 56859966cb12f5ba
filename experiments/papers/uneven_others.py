# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Uneven hospitals: each of the other hospitals in turn has a quarter of the training volumes.

Of the models that the sites receive, and of those that they use after their last mile.
"""

from __future__ import annotations

import uneven
from reading import NotFinished
from study import Study

STUDIES = ("uneven_others",)


def table() -> str:
    """A part per hospital that is small, a row per method; gains are over FedAvg."""
    parts = []
    for small in Study.read(STUDIES[0]).settings:
        try:
            found = uneven.complete(STUDIES[0], [small])
        except NotFinished:
            continue
        for model, word in uneven.MODELS.items():
            values = {name: uneven.by_seed(results, model) for name, results in found.items()}
            parts.append(f"{small} is small, models {word}:\n\n{uneven.table_of(values, small)}")
    if not parts:
        raise NotFinished("a method with all seeds")
    return "\n\n".join(parts)
