# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What guards and limits did with what each site sent, counted in rounds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from monai_fairfl.report.run import Run

LIMITED = re.compile(r"(\w+) (-?[\d.]+(?:e[+-]\d+)?) clipped to (-?[\d.]+(?:e[+-]\d+)?)")
"""The note that a limit of reports leaves (``clip_reports``): measurement, report and limit."""

OFTEN = 0.25
"""A site that was refused or limited in a larger part of the rounds does not help to choose."""


@dataclass
class Touched:
    """What guards and limits did with one site; rounds of the run.

    Args:
        refused: guard -> rounds in which it kept the site's update out of the model.
        changed: guard -> rounds in which it acted otherwise, such as shortening the update.
        limited: rounds in which a number that the site measured itself was limited.
        lowered: measurement -> rounds in which it reported more than the others, and was lowered.
        raised: measurement -> rounds in which it reported less than the others, and was raised.
    """

    refused: dict[str, list[int]] = field(default_factory=dict)
    changed: dict[str, list[int]] = field(default_factory=dict)
    limited: list[int] = field(default_factory=list)
    lowered: dict[str, list[int]] = field(default_factory=dict)
    raised: dict[str, list[int]] = field(default_factory=dict)


def touched_of(run: Run) -> dict[str, Touched]:
    """Site -> what guards and limits did with it; sites that they left alone are not in it."""
    found: dict[str, Touched] = {}
    for record in run.rounds:
        number = record["round"]
        for site, verdicts in record["verdicts"].items():
            for verdict in verdicts:
                # A flag changes nothing.
                if verdict["action"] == "flag":
                    continue
                touched = found.setdefault(site, Touched())
                rounds_of = touched.changed
                if verdict["action"] == "quarantine":
                    rounds_of = touched.refused
                rounds = rounds_of.setdefault(verdict["guard"], [])
                if number not in rounds:
                    rounds.append(number)
        for site, note in record["notes"].items():
            limits = LIMITED.findall(str(note))
            if limits:
                touched = found.setdefault(site, Touched())
                touched.limited.append(number)
            for name, reported, limit in limits:
                rounds_of = touched.lowered if float(reported) > float(limit) else touched.raised
                rounds_of.setdefault(name, []).append(number)
    return found


def directions(touched: Mapping[str, Any]) -> str:
    """In which direction a site's own reports were far from the others', in words.

    Args:
        touched: a :class:`Touched` as ``report.json`` has it.

    >>> directions({"lowered": {"local_score": [1]}, "raised": {}})
    "its local_score was higher than the others', and the limit lowered it"
    """
    words = []
    for name in touched["lowered"]:
        words.append(f"its {name} was higher than the others', and the limit lowered it")
    for name in touched["raised"]:
        words.append(f"its {name} was lower than the others', and the limit raised it")
    return "; ".join(words)


def often_touched(runs: Sequence[Run]) -> set[str]:
    """Sites whose update was refused, or whose reports were limited, often in any of these runs.

    What they report of themselves must not decide which run is shown.
    """
    sites = set()
    for run in runs:
        for site, touched in touched_of(run).items():
            refused = {number for rounds in touched.refused.values() for number in rounds}
            if max(len(refused), len(touched.limited)) > OFTEN * len(run.rounds):
                sites.add(site)
    return sites


def rounds_looked_at(strategy: Mapping[str, Any]) -> int:
    """The rounds that :class:`Touched` counts in: of the run, or of all trainings of a comparison.

    Args:
        strategy: one of ``report["strategies"]``.
    """
    rounds: int = strategy.get("rounds_of_trainings", strategy["rounds"])
    return rounds


def touched_words(touched: Mapping[str, Any] | None, rounds: int) -> list[str]:
    """What guards and limits did with one site, in words.

    Args:
        touched: a :class:`Touched` as ``report.json`` has it; ``None``: nothing.
        rounds: of the run.

    >>> touched_words({"refused": {"Noise": [0, 1]}, "changed": {}, "limited": [1]}, 2)
    ['update refused in 2 of 2 rounds (Noise)', 'own report limited in 1 of 2 rounds']
    """
    if touched is None:
        return []
    words = []
    for guard, numbers in touched["refused"].items():
        words.append(f"update refused in {len(numbers)} of {rounds} rounds ({guard})")
    for guard, numbers in touched["changed"].items():
        words.append(f"update changed in {len(numbers)} of {rounds} rounds ({guard})")
    if touched["limited"]:
        words.append(f"own report limited in {len(touched['limited'])} of {rounds} rounds")
    return words
