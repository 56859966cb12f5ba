# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What honest sites reach in every round: a default guard's threshold must be beyond all of it.

No number comes from a guard's own code: all cosines are of the whole updates, and not of sketches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reading import NOTHING, markdown, measurement

OF_ROUNDS = {
    "length": "length / median of the others",
    "in_common": "T (random numbers: 1)",
    "nearest": "cosine with the nearest other",
    "with_others": "cosine with the mean of the others",
    "last_step": "cosine with the last step",
    "another_previous": "cosine with another's previous update",
    "own_previous": "cosine with its own previous update",
    "variances": "ratio of variances",
    "means": "shift of means",
}
OF_OWN_MODELS = {
    "last_step": "cosine with the last step",
    "own_previous": "cosine with its own previous update",
    "left": "length of the step that its own previous update does not explain",
    "rest": "cosine of update and step, with the direction of the own previous update removed",
}
"""Key of a measurement -> title of a column."""
HEAD = ("training", "strategy", "client-rounds", "verdicts")


def honest_ranges() -> str:
    """The extremes of each quantity: FedAvg where all sites are as they are, else FedCE's sum."""
    rows = []
    for name, found in measurement("guards_honest_ranges").items():
        if name != "minutes":
            strategy = "FedCE-sum" if "small" in name else "FedAvg"
            rows.append([name, strategy, *_cells(found, OF_ROUNDS)])
    return markdown([*HEAD, *OF_ROUNDS.values()], rows)


def own_models() -> str:
    """The same of methods that give each site a model of its own.

    The last step that a site knows is then the difference of the two models that it was sent
    itself, much of it its own update: a guard may not take that for a repetition.
    """
    rows = []
    for name, of_strategies in measurement("guards_own_models").items():
        if name != "minutes":
            for strategy, found in of_strategies.items():
                rows.append([name, strategy, *_cells(found, OF_OWN_MODELS)])
    return markdown([*HEAD, *OF_OWN_MODELS.values()], rows)


def _cells(found: Mapping[str, Any], quantities: Mapping[str, str]) -> list[str]:
    ranges = [_extremes(found[key]) for key in quantities]
    return [str(len(found["last_step"])), str(found["verdicts"]), *ranges]


def _extremes(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{min(known):.3g} to {max(known):.3g}" if known else NOTHING


TABLES: Mapping[str, Any] = {
    "guards_honest_ranges": honest_ranges,
    "guards_own_models": own_models,
}
