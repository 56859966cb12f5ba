# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The last mile with other rules of choice: would a site have chosen better by another one?

Every candidate was scored on validation and on test cases, so no training is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from papers import last_mile
from reading import (
    CANDIDATES,
    NotFinished,
    cases,
    hierarchical_interval,
    markdown,
    site_means,
    words,
)
from seeds import Scores, finished
from study import Study

STUDIES = tuple(last_mile.IMAGES)
ADAPTED = "adapted"


class Candidate(NamedTuple):
    """A candidate of one site: its gain over the model that the site would use without it."""

    name: str
    gain: float
    """On validation cases."""
    stderr: float | None
    """Of that gain; one validation case has none."""
    test_gain: float
    """On test cases."""


Rule = Callable[[Sequence[Candidate]], float]
"""Candidates of a site -> what it gains on test cases by what the rule takes; 0: it keeps."""


def above(errors: float, names: Sequence[str] = CANDIDATES) -> Rule:
    """Take the largest gain of those above so many of their standard errors.

    >>> rule = above(1.0)
    >>> rule([Candidate("adapted", 0.02, 0.01, 0.03), Candidate("alone", 0.04, 0.05, -0.1)])
    0.03
    """

    def rule(candidates: Sequence[Candidate]) -> float:
        taken = []
        for each in candidates:
            if each.name in names and each.stderr is not None:
                if each.gain > errors * each.stderr:
                    taken.append(each)
        if not taken:
            return 0.0
        return max(taken, key=lambda each: each.gain).test_gain

    return rule


def always_adapted(candidates: Sequence[Candidate]) -> float:
    """Take the adapted model, whatever validation says."""
    for each in candidates:
        if each.name == ADAPTED:
            return each.test_gain
    return 0.0


def best_on_test(candidates: Sequence[Candidate]) -> float:
    """Take the best on the test cases, which no site knows: what no rule can exceed."""
    return max([0.0, *(each.test_gain for each in candidates)])


RULES: dict[str, Rule] = {
    "keep the received model": lambda candidates: 0.0,
    "gain above 0": above(0.0),
    "**gain above one standard error: the package's rule**": above(1.0),
    "gain above two standard errors": above(2.0),
    "the package's rule, with `adapted` as the only candidate": above(1.0, [ADAPTED]),
    "always `adapted`": always_adapted,
    "best on the test cases, which no site knows": best_on_test,
}


TOGETHER = ("strong_prostate", "strong_fundus")
"""The studies whose hospitals and clinics are as they are: a table has them together, too."""


class Outcome(NamedTuple):
    """What comes of a rule: used − the better of alone and FedAvg."""

    fedavg: Scores
    """Of FedAvg's sites."""
    all: Sequence[Scores]
    """Of the sites of every strategy."""


def table() -> str:
    """A row per rule and study, of FedAvg; then of all strategies together."""
    rows = []
    found: dict[str, dict[str, Outcome]] = {}
    for name, images in last_mile.IMAGES.items():
        of_rules = _outcomes(name)
        if of_rules:
            found[name] = of_rules
            rows += [_row(images, rule, outcome) for rule, outcome in of_rules.items()]
    if not rows:
        raise NotFinished("a seed and fold of FedAvg and training alone")
    if all(name in found for name in TOGETHER):
        images = " and ".join(last_mile.IMAGES[name] for name in TOGETHER)
        for rule in RULES:
            together = _together([found[name][rule] for name in TOGETHER])
            rows.append(_row(images, rule, together))
    head = [
        "images",
        "rule",
        "FedAvg: used − the better of alone and FedAvg",
        f"FedAvg: losses of more than {last_mile.RUINED}",
        "all strategies: such losses",
    ]
    return markdown(head, rows)


def _outcomes(name: str) -> dict[str, Outcome]:
    """Rule -> what comes of it in a study; empty where FedAvg or training alone is missing."""
    found = finished(Study.read(name))
    alone = found.pop("Standalone", {})
    fedavg = last_mile.with_baselines(found.get("FedAvg", {}), alone, alone)
    if not fedavg:
        return {}
    of_rules = {}
    for title, rule in RULES.items():
        used = taken_by(rule)
        of_all = []
        for cells in found.values():
            complete = last_mile.with_baselines(cells, fedavg, alone)
            of_all.append(last_mile.losses_of(complete, fedavg, alone, used))
        of_fedavg = last_mile.losses_of(fedavg, fedavg, alone, used)
        of_rules[title] = Outcome(of_fedavg, of_all)
    return of_rules


def _together(outcomes: Sequence[Outcome]) -> Outcome:
    """Join the sites of several studies, seed by seed."""
    fedavg: Scores = {}
    for outcome in outcomes:
        for seed, of_sites in outcome.fedavg.items():
            fedavg.setdefault(seed, {}).update(of_sites)
    return Outcome(fedavg, [scores for outcome in outcomes for scores in outcome.all])


def _row(images: str, rule: str, outcome: Outcome) -> list[str]:
    mean = words(hierarchical_interval(outcome.fedavg), signed=True)
    return [images, rule, mean, _losers([outcome.fedavg]), _losers(outcome.all)]


def taken_by(rule: Rule) -> last_mile.Used:
    """Say what sites would use with another rule."""

    def used(result: dict[str, Any]) -> dict[str, float]:
        found = {}
        for site, received in site_means(cases([result])).items():
            found[site] = received + rule(_candidates(result, site, received))
        return found

    return used


def _candidates(result: dict[str, Any], site: str, received: float) -> list[Candidate]:
    found = []
    for name, (gain, stderr) in result["last_mile"][site]["gains"].items():
        test_score = result["closing"][site][name]["test_score"]
        found.append(Candidate(name, gain, stderr, test_score - received))
    return found


def _losers(of_strategies: Sequence[Scores]) -> str:
    losers = 0
    number = 0
    for differences in of_strategies:
        if differences:
            of_strategy, of = last_mile.number_of_losers(differences)
            losers += of_strategy
            number += of
    return f"{losers} of {number}"
