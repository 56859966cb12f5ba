# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Uneven hospitals: BIDMC has a quarter of the others' training volumes; every method's Dice.

Of the models that the sites receive, and of those that they use after their last mile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import uneven
from reading import CANDIDATES, NOTHING, Result, markdown, shown_name

STUDIES = ("uneven_prostate",)
SETTINGS = ("", "float32", "instance_norm")
SMALL = "BIDMC"
TITLES = {
    "test": "The models that the sites receive, or train alone",
    "test_used": "The models that they use after the last mile",
}


def table() -> str:
    """A row per method, received and used; gains are over FedAvg in the same part."""
    found = uneven.complete(STUDIES[0], SETTINGS)
    parts = []
    for model, title in TITLES.items():
        values = {name: uneven.by_seed(results, model) for name, results in found.items()}
        parts.append(f"{title}:\n\n{uneven.table_of(values, SMALL)}")
    rows = []
    for name, results in found.items():
        rows.append([shown_name(name), taken(results), taken(results, [SMALL])])
    taken_by_all = markdown(["method", "all sites", SMALL], rows)
    parts.append(f"What the sites take, of all sites and seeds:\n\n{taken_by_all}")
    return "\n\n".join(parts)


def taken(results: Iterable[Result], sites: Iterable[str] | None = None) -> str:
    """Count which models the sites take: the received one, kept, or a candidate of the last mile.

    Args:
        results: of a method, one for each seed.
        sites: that are counted; all by default.

    >>> miles = {"A": {"taken": "adapted"}, "B": {"taken": None}}
    >>> taken([{"last_mile": miles}, {"last_mile": miles}])
    'kept 2, adapted 2'
    """
    counts: Counter[str] = Counter()
    for result in results:
        miles = result.get("last_mile", {})
        for site in sites or miles:
            if site in miles:
                counts[miles[site]["taken"] or "kept"] += 1
    words = [f"{name} {counts[name]}" for name in ("kept", *CANDIDATES) if counts[name]]
    return ", ".join(words) or NOTHING
