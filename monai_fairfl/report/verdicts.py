# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""One verdict for each hospital: they exclude each other, and add up to the hospitals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from monai_fairfl.report.comparison import MARGIN, ROUNDING
from monai_fairfl.utils.words import count_words


@dataclass(frozen=True)
class Verdict:
    """One verdict.

    Args:
        title: as a row shows it.
        counted: as it follows a number of hospitals.
        tone: ``"good"``, ``"bad"``, ``"open"`` or ``"none"``, which is its colour.
    """

    title: str
    counted: str
    tone: str


VERDICTS = {
    "better": Verdict("Better off than alone", "better off than alone", "good"),
    "as_good": Verdict("As good as alone", "as good as alone", "good"),
    "worse": Verdict("Worse off than alone", "worse off than alone", "bad"),
    "left_behind": Verdict("Left behind", "left behind", "bad"),
    "hard": Verdict("Hard for every model", "hard for every model", "open"),
    "perhaps_left_behind": Verdict("Perhaps left behind", "perhaps left behind", "open"),
    "unclear": Verdict("No clear difference", "without a clear difference", "open"),
    "too_few_cases": Verdict("Too few cases to tell", "with too few cases to tell", "open"),
    "not_judged": Verdict("Not judged yet", "not judged yet", "none"),
    "not_compared": Verdict("Not compared with alone", "not compared with training alone", "none"),
    "no_score": Verdict("No Dice", "without a Dice", "none"),
    "absent": Verdict("Did not take part", "that did not take part", "none"),
}
"""Name of a verdict -> its words, in the order in which the overview counts them."""

RULE = (
    "Better off and worse off: the 95 % interval of the difference from training alone excludes 0. "
    f"As good: the interval lies within ±{MARGIN:g}. No clear difference: none of these. The first "
    "verdict that fits counts: better off, left behind, worse off, hard for every model, then the "
    "others."
)


def verdict_of(report: Mapping[str, Any], name: str | None, site: str) -> str:
    """The verdict on one hospital, a key of :data:`VERDICTS`.

    A hospital that is left behind by its cases, and not better off than alone, is left behind if
    :func:`better_model` finds a model for it. Else it is hard for every model, if training alone
    was tried, too. Of all others the difference from training alone decides.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returned.
        name: of the federated strategy; ``None`` without one.
        site: name of the hospital.

    >>> site = {"score": {}, "gain": {"value": 0.1, "within_noise": False}, "left_behind": None}
    >>> report = {"strategies": {"FedCE": {"judged": True, "sites": {"elm": site}}}}
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
    if not strategy["judged"]:
        return "not_judged"

    gain = result["gain"]
    left_behind = result["left_behind"] or {"verdict": False, "doubtful": False}
    if gain is not None and gain["within_noise"] is False and gain["value"] > 0:
        return "better"
    is_behind = left_behind["verdict"] or left_behind["doubtful"]
    is_served_better = is_behind and better_model(report, name, site) is not None
    if left_behind["verdict"] and is_served_better:
        return "left_behind"
    if gain is not None and gain["within_noise"] is False:
        return "worse"
    if left_behind["verdict"] and gain is not None:
        return "hard"
    if left_behind["doubtful"] and is_served_better:
        return "perhaps_left_behind"
    if gain is None:
        return "not_compared"
    if gain["within_noise"] is None:
        return "too_few_cases"
    if -MARGIN < gain["low"] and gain["high"] < MARGIN:
        return "as_good"
    return "unclear"


def better_model(report: Mapping[str, Any], name: str, site: str) -> tuple[str, float] | None:
    """The strategy with the best model for a hospital, and this model's Dice.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returned.
        name: of the strategy to beat, which scored the hospital. Its own last mile may beat it.
        site: name of the hospital.

    Returns:
        Of the strategies that are compared with ``name``, training alone included, each before and
        after its last mile. ``None`` where none is more than
        :data:`~monai_fairfl.report.comparison.MARGIN` better.
    """
    strategy = report["strategies"][name]
    best = None
    best_dice = strategy["sites"][site]["score"]["value"] + MARGIN + ROUNDING
    for group in report["compared"]:
        if name not in group:
            continue
        for other in group:
            found = report["strategies"][other]
            result = found["sites"].get(site)
            is_compared = found["comparable"] or other in (name, strategy["standalone"])
            if result is None or not is_compared:
                continue
            scores = [result["score"]]
            if result["last_mile"] is not None:
                scores.append(result["last_mile"]["used"])
            for score in scores:
                if score is not None and score["value"] > best_dice:
                    best = other
                    best_dice = score["value"]
    return None if best is None else (best, best_dice)


def reason_of(report: Mapping[str, Any], name: str | None, site: str) -> str:
    """Behind what a hospital is; empty under a verdict that says so, or that is about its gain.

    A hospital may be left behind by the others though it gained over training alone. No number is
    in the words: the hospital's own page has them, too, and none of another hospital's numbers.

    >>> found = {"verdict": True, "doubtful": False, "below_mean": 0.1, "below_alone": None}
    >>> site = {"score": {"value": 0.6}, "gain": None, "left_behind": found}
    >>> strategies = {"FedCE": {"judged": True, "sites": {"elm": site}, "standalone": None}}
    >>> report = {"strategies": strategies, "compared": []}
    >>> reason_of(report, "FedCE", "elm")
    "far below the hospitals' mean"
    """
    verdicts = ("left_behind", "hard", "perhaps_left_behind", "not_compared")
    if name is None or verdict_of(report, name, site) not in verdicts:
        return ""
    found = report["strategies"][name]["sites"][site]["left_behind"]
    if found is None:
        return ""
    reasons = []
    if found["below_mean"] is not None:
        reasons.append("far below the hospitals' mean")
    if found["below_alone"] is not None:
        reasons.append("below training alone")
    return " and ".join(reasons)


def counted(report: Mapping[str, Any], name: str | None) -> dict[str, int]:
    """Verdict -> the number of hospitals with it; those without one are left out.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returned.
        name: of the federated strategy; ``None`` without one.
    """
    counts = dict.fromkeys(VERDICTS, 0)
    for site in report["sites"]:
        counts[verdict_of(report, name, site)] += 1
    return {verdict: count for verdict, count in counts.items() if count}


def overview(report: Mapping[str, Any]) -> str:
    """How many hospitals have which verdict; empty where the run is not judged.

    >>> better = {"value": 0.1, "within_noise": False}
    >>> worse = {"value": -0.1, "within_noise": False}
    >>> sites = {name: {"score": {}, "gain": gain, "left_behind": None}
    ...          for name, gain in (("A", better), ("B", worse))}
    >>> strategies = {"FedCE": {"sites": sites, "judged": True}}
    >>> overview({"focus": "FedCE", "strategies": strategies, "sites": sites})
    'FedCE, 2 hospitals: 1 better off than alone, 1 worse off than alone.'
    """
    name = report["focus"]
    if name is None or not report["strategies"][name]["judged"]:
        return ""
    words = []
    for verdict, count in counted(report, name).items():
        words.append(f"{count} {VERDICTS[verdict].counted}")
    return f"{name}, {count_words(len(report['sites']), 'hospital')}: {', '.join(words)}."
