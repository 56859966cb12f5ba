# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Scores of hospitals, their differences with intervals, and one verdict for each hospital.

An :class:`Entry` is one run, or all runs of a strategy in a comparison over seeds and folds: one
run is a comparison of one seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import Any

import numpy as np
from scipy.stats import t as student

from monai_fairfl.report.collect import Number, Run
from monai_fairfl.report.partners import CLOSING
from monai_fairfl.statistics import bootstrap_seeds_and_cases

DURING_TRAINING = "global_score"
"""What is shown of a run without closing measurements."""

CASES_OF = {"test_score": "test", "score": "validation", "global_score": "validation"}
"""Measurement -> the cases that it is made on."""

MARGIN = 0.02
"""A site that loses more Dice than this against another model may be left behind."""

FLOOR = 0.05
"""A site that is less Dice than this below the sites' mean is not left behind."""

DDOF = 1
"""The standard deviation over n sites has n - DDOF in the denominator."""

ROUNDING = 1e-12
"""By which two Dice that should be equal may differ."""

EQUAL = 1e-9
"""A difference below this is none: ledgers round scores to twelve decimals."""


@dataclass
class Entry:
    """One row of a comparison of strategies.

    Args:
        name: unique in the report.
        runs: the run, or those of every seed and fold.
        measurement: of the scores, a key of :data:`CASES_OF`.
        scores: site -> Dice, a fraction in [0, 1]; sites without one are absent.
        cases: site -> case -> its Dice with every seed, where it is known.
        alone: the entry of training alone that it is measured against.
        fedavg: that of FedAvg, for another federated strategy.
        comparable: its scores are of the common measurement and of all sites of its group.
    """

    name: str
    runs: Sequence[Run]
    measurement: str
    scores: Mapping[str, Number]
    cases: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    alone: Entry | None = None
    fedavg: Entry | None = None
    comparable: bool = True

    @property
    def run(self) -> Run:
        """The first run, which knows what all of them share."""
        return self.runs[0]


def entry_of(run: Run, measurement: str, warnings: list[str]) -> Entry:
    """A single run with its scores at its end, or else the newest during training.

    Args:
        run: in question.
        measurement: the closing measurement to show where the run has it.
        warnings: gets a line for a score outside [0, 1], which is left out, and for sites without.
    """
    shown = measurement
    found = {site: run.closing(site, measurement) for site in run.sites}
    if not any(found.values()):
        newest = {site: run.newest_dice(site) for site in run.sites}
        shown, last = DURING_TRAINING, max(number for number, _ in newest.values())
        found = {site: dice for site, (number, dice) in newest.items() if number == last}

    scores = {}
    for site, dice in found.items():
        if dice is not None and -1e-6 <= dice.value <= 1 + 1e-6:
            scores[site] = dice._replace(value=min(max(dice.value, 0.0), 1.0))
    without = [site for site in run.sites if site not in scores]
    if any(found.values()) and without:
        warnings.append(
            f"{run.name}: no Dice, a fraction in [0, 1], of {', '.join(without)}; its mean, "
            f"deviation, worst site, gap and index are of {len(scores)} of {len(run.sites)} sites"
        )
    cases: dict[str, dict[str, list[float]]] = {}
    for site in run.sites if shown in CLOSING else ():
        by_case = run.scores_by_case(site, shown)
        cases[site] = {case: [value] for case, value in by_case.items()}
    return Entry(run.name, [run], shown, scores, cases)


def shown_measurement(runs: Sequence[Run]) -> str:
    """The measurement that all finished runs have of the most sites, test cases first."""
    finished = [run for run in runs if run.end is not None]

    def scored(name: str) -> int:
        """How many sites have it in the run that has the fewest."""
        counts = [sum(run.closing(s, name) is not None for s in run.sites) for run in finished]
        return min(counts, default=0)

    best = max(CLOSING, key=scored)
    return best if scored(best) else DURING_TRAINING


def called(name: str) -> str:
    """A strategy as the first screen calls it.

    >>> called("Standalone"), called("FedAvg")
    ('training alone', 'FedAvg')
    """
    return name.replace("Standalone", "training alone", 1)


def half_width(stderr: float | None, n: int | None) -> float | None:
    """Half of the 95 % interval of a mean over n cases, by Student's t; ``None`` where unknown.

    >>> half_width(0.1, 2) > 1, round(half_width(0.1, 1000), 2), half_width(0.1, 1)
    (True, 0.2, None)
    """
    if stderr is None or n is None or n < 2:
        return None
    return float(student.ppf(0.975, n - 1)) * stderr


def difference(one: Entry, other: Entry | None, site: str) -> dict[str, Any] | None:
    """How far a site's Dice of ``one`` is above that of ``other``; ``None`` where one is unknown.

    Returns:
        ``value``; ``stderr``, its standard error; ``n``, the cases behind it; ``low`` and ``high``,
        its 95 % interval; ``within_noise``, whether 0 is inside. The error is of the differences
        case by case; without known cases the two scores are taken as independent, which mostly
        overstates it. Over several seeds the interval is the bootstrap over seeds and cases, and
        never narrower than Student's over the cases.
    """
    if other is None or site not in one.scores or site not in other.scores:
        return None
    score, reference = one.scores[site], other.scores[site]
    value = score.value - reference.value
    n = min((number.n for number in (score, reference) if number.n is not None), default=None)
    stderr = None
    by_case = np.zeros((0, 1))
    mine, theirs = one.cases.get(site) or {}, other.cases.get(site) or {}
    if mine and mine.keys() == theirs.keys():
        by_case = np.array([np.subtract(mine[case], theirs[case]) for case in sorted(mine)])
    if len(by_case) > 1:
        pairs = by_case.mean(axis=1).tolist()
        n, stderr = len(pairs), stdev(pairs) / math.sqrt(len(pairs))
    elif score.stderr is not None and reference.stderr is not None:
        stderr = math.hypot(score.stderr, reference.stderr)

    width = half_width(stderr, n)
    ends = [] if width is None else [value - width, value + width]
    within_noise = None if width is None else abs(value) <= width + EQUAL
    if by_case.size and by_case.shape[1] > 1:
        # The bootstrap of few cases is too narrow. Of one case the interval is over the seeds
        # alone, and gives no verdict: other seeds make nothing certain.
        ends += bootstrap_seeds_and_cases({site: by_case.T})[1:]
        within_noise = None if width is None else min(ends) <= 0 <= max(ends)
    low, high = (min(ends), max(ends)) if ends else (None, None)
    found = {"value": value, "stderr": stderr, "n": n, "low": low, "high": high}
    return {**found, "within_noise": within_noise}


def left_behind(site: str, scores: Mapping[str, Number], gain: Mapping[str, Any] | None) -> bool:
    """Whether the cases of ``site`` show that it is far below the others, or below alone.

    That is a Dice more than :data:`MARGIN` below training alone or, with three sites or more, more
    than :data:`FLOOR` and one standard deviation below the mean. Whether a model of the report
    serves it better is asked by :func:`verdict_of`.

    Args:
        site: its name.
        scores: site -> Dice.
        gain: its difference from training alone; ``None`` where unknown.

    >>> scores = {"A": Number(0.9), "B": Number(0.9), "C": Number(0.6, 0.01, 20)}
    >>> left_behind("C", scores, gain=None), left_behind("A", scores, gain=None)
    (True, False)
    """
    if gain is not None and gain["value"] < -MARGIN - ROUNDING and gain["within_noise"] is False:
        return True
    if site not in scores or len(scores) < 3:
        return False
    values = [number.value for number in scores.values()]
    below = mean(values) - scores[site].value
    width = half_width(scores[site].stderr, scores[site].n)
    return below > max(stdev(values), FLOOR) + ROUNDING and width is not None and below > width


VERDICTS = {
    "left_behind": ("Left behind", "bad"),
    "worse": ("Worse than alone", "bad"),
    "hard": ("Hard for every model", "open"),
    "cannot_tell": ("Cannot tell", "open"),
    "better": ("Better than alone", "good"),
    "as_good": ("As good as alone", "good"),
    "not_judged": ("Not judged yet", "none"),
    "not_compared": ("Not compared with alone", "none"),
    "no_score": ("No Dice", "none"),
    "absent": ("Did not take part", "none"),
}
"""Name of a verdict -> its words and colour; those in trouble come first."""


def verdict_of(report: Mapping[str, Any], name: str | None, site: str) -> str:
    """The verdict on one hospital, a key of :data:`VERDICTS`: the first that fits.

    Better and worse: the 95 % interval of the difference from training alone excludes 0. Left
    behind: see :func:`left_behind`, and :func:`better_model` finds a model; without one it is hard
    for every model. As good: the interval lies within plus and minus :data:`MARGIN`.

    Args:
        report: ``report.json`` so far, with its ``strategies``.
        name: of the federated strategy; ``None`` without one.
        site: name of the hospital.

    >>> site = {"score": {}, "gain": {"value": 0.1, "within_noise": False}, "left_behind": False}
    >>> report = {"strategies": {"FedCE": {"not_judged": None, "sites": {"elm": site}}}}
    >>> verdict_of(report, "FedCE", "elm"), verdict_of(report, "FedCE", "oak")
    ('better', 'absent')
    """
    if name is None:
        return "not_compared"
    strategy = report["strategies"][name]
    result = strategy["sites"].get(site)
    if result is None:
        return "absent"
    if result["score"] is None:
        return "no_score"
    if strategy["not_judged"]:
        return "not_judged"
    gain = result["gain"]
    if gain is not None and gain["within_noise"] is False and gain["value"] > 0:
        return "better"
    if result["left_behind"] and better_model(report, name, site) is not None:
        return "left_behind"
    if gain is None:
        return "not_compared"
    if gain["within_noise"] is False:
        return "worse"
    if result["left_behind"]:
        return "hard"
    if gain["within_noise"] and -MARGIN < gain["low"] and gain["high"] < MARGIN:
        return "as_good"
    return "cannot_tell"


def better_model(report: Mapping[str, Any], name: str, site: str) -> tuple[str, float] | None:
    """The strategy with the best model for a hospital, and this model's Dice.

    Of the strategies that are compared with ``name``, training alone included, each before and
    after its last mile. ``None`` where none is more than :data:`MARGIN` better.
    """
    strategy = report["strategies"][name]
    found = []
    for other in next(group for group in report["compared"] if name in group):
        of_other = report["strategies"][other]
        result = of_other["sites"].get(site)
        if result and (of_other["comparable"] or other in (name, strategy["standalone"])):
            scores = (result["score"], (result["last_mile"] or {}).get("used"))
            found += [(score["value"], other) for score in scores if score]
    dice, best = max(found)
    margin = MARGIN + ROUNDING
    return (best, dice) if dice > strategy["sites"][site]["score"]["value"] + margin else None


def validation_means(entries: Sequence[Entry]) -> dict[str, float | None]:
    """Entry -> mean Dice on validation cases, by which the strategy of the report is chosen.

    It is the closing score, or else a run's newest during training. Some folds and hospitals are
    harder than others. So only hospitals of a seed and fold count that every entry has scored.

    Args:
        entries: those that may be compared.
    """
    found: dict[str, dict[tuple[Any, ...], float]] = {}
    for entry in entries:
        of_entry = found[entry.name] = {}
        for run in entry.runs:
            numbers = {site: run.closing(site, "score") for site in run.sites}
            if not any(numbers.values()):
                numbers = {site: run.newest_dice(site)[1] for site in run.sites}
            for site, number in numbers.items():
                if number is not None:
                    of_entry[site, run.seed, run.fold] = number.value
    scored = [set(values) for values in found.values() if values]
    common = set.intersection(*scored) if scored else set()
    means: dict[str, float | None] = {}
    for name, values in found.items():
        known = [value for place, value in values.items() if place in common]
        means[name] = mean(known) if known else None
    return means
