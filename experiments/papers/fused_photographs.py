# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fused models on the real photographs, with seeds that nobody had looked at."""

from __future__ import annotations

from collections.abc import Sequence

from papers import last_mile
from papers.last_mile_rules import Candidate, Rule, above, taken_by
from reading import CANDIDATES, NotFinished, hierarchical_interval, markdown, words
from seeds import Cells, finished, on_same_cells, received_and_used
from study import Study

STUDIES = ("fused_photographs",)
MARGIN = 0.02
FUSED = "fused"
OTHERS = [name for name in CANDIDATES if name != FUSED]

without_fused = above(1.0, OTHERS)
"""Takes what a site takes in a last mile without fused models."""


def _gain_of_fused(candidates: Sequence[Candidate]) -> Candidate:
    return next(each for each in candidates if each.name == FUSED)


def always_fused(candidates: Sequence[Candidate]) -> float:
    """Take the fused model, whatever validation says."""
    return _gain_of_fused(candidates).test_gain


def unless_worse_than_best(candidates: Sequence[Candidate]) -> float:
    """Take the fused model, unless it is worse than what the site takes without it."""
    others = [each for each in candidates if each.name in OTHERS]
    gains = [each.gain for each in others if each.stderr is not None and each.gain > each.stderr]
    if _gain_of_fused(candidates).gain >= max([0.0, *gains]) - MARGIN:
        return always_fused(candidates)
    return without_fused(candidates)


def unless_worse_than_received(candidates: Sequence[Candidate]) -> float:
    """Take the fused model, unless it is worse than the received one."""
    if _gain_of_fused(candidates).gain >= -MARGIN:
        return always_fused(candidates)
    return without_fused(candidates)


RULES: dict[str, Rule] = {
    "no fused models": without_fused,
    "fused, unless more than 0.02 worse than what the site takes without: as predicted, and used in"
    " this study": unless_worse_than_best,
    "fused, unless more than 0.02 worse than the received model: **the package's rule**": (
        unless_worse_than_received
    ),
    "always fused": always_fused,
}


def table() -> str:
    """Write Dice as received and as used, the last mile, and what was predicted."""
    return table_of("fused_photographs", RULES)


def table_of(name: str, rules: dict[str, Rule]) -> str:
    """Write Dice as received and as used, the last mile, what was predicted, and other rules.

    Args:
        name: of a study with fused models.
        rules: title -> rule by which a site might take a candidate.
    """
    study = Study.read(name)
    everything = finished(study)
    for needed in ("FedAvg", "Standalone"):
        if needed not in everything:
            raise NotFinished(f"runs of {needed}")
    found = on_same_cells(everything)
    predictions = last_mile.predicted(
        found["FedAvg"], found["Standalone"], complete=not study.missing()
    )
    return "\n\n".join(
        [
            *received_and_used(found),
            "The last mile:",
            last_mile.table_of(name),
            "What was predicted before any test, and what came out:",
            markdown(["predicted", "came out", ""], predictions),
            "Other rules, chosen after the tests:",
            _of_rules(found["FedAvg"], found["Standalone"], rules),
        ]
    )


def _of_rules(fedavg: Cells, alone: Cells, rules: dict[str, Rule]) -> str:
    rows = []
    for title, rule in rules.items():
        losses = last_mile.losses_of(fedavg, fedavg, alone, taken_by(rule))
        losers, number = last_mile.number_of_losers(losses)
        mean = words(hierarchical_interval(losses), signed=True)
        rows.append([title, mean, f"{losers} of {number}"])
    head = ["rule", "used − the better of alone and FedAvg", f"losses of more than {MARGIN}"]
    return markdown(head, rows)
