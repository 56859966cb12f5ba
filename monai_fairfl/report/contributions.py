# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Who contributed what: an answer for each hospital, in numbers and words, or why there is none.

What a valuation computed afterwards goes before what the method itself estimates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import mean
from typing import Any

from monai_fairfl.report.contribution import LEAST_RATIO, Contribution, Contributions, images_among
from monai_fairfl.report.own_contributions import by_method, own_shares

NORMAL = 1.96
"""Standard errors on each side of a 95 % interval."""


def contributions_of(report: Mapping[str, Any], name: str | None) -> Contributions:
    """Who contributed what to the run ``name``.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returned.
        name: of the federated strategy; ``None`` without one.
    """
    if name is None:
        return Contributions(
            None, None, "No hospital contributed to another: each trained alone.", {}
        )
    strategy = report["strategies"][name]
    rules = {rule["name"]: rule for rule in strategy["credit"]}

    # First one in which no hospital's own scores count for itself.
    def order(found: Mapping[str, Any]) -> bool:
        return found.get("judged_by") != "others"

    for valuation in sorted(strategy["valuations"], key=order):
        if valuation["name"] in rules:
            return _by_valuation(name, strategy, valuation, rules)
    if own_shares(strategy):
        return by_method(report, name, rules["Images"]["shares"])
    return Contributions(None, None, _why_none(report, name), {})


def contributor_of(report: Mapping[str, Any], name: str | None) -> str | None:
    """The strategy that says who contributed what: ``name`` itself where it does.

    Else it is the one that validates best of those that do, on the same data, split and seed; where
    none does, it is ``name``. Which model one uses, and what says who contributed, are two
    questions.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returned.
        name: of the strategy that the report is about; ``None`` without one.
    """
    if name is None or contributions_of(report, name).source is not None:
        return name
    best = name
    best_mean = -math.inf
    for group in report["compared"]:
        if name not in group:
            continue
        for other in group:
            found = report["strategies"][other]
            mean_dice = found["validation_mean"]
            if mean_dice is None:
                mean_dice = -math.inf
            answers = found["strategy"] != "Standalone"
            answers = answers and contributions_of(report, other).source is not None
            if answers and (best == name or mean_dice > best_mean):
                best = other
                best_mean = mean_dice
    return best


def _by_valuation(
    name: str,
    strategy: Mapping[str, Any],
    valuation: Mapping[str, Any],
    rules: Mapping[str, Any],
) -> Contributions:
    """What a valuation computed afterwards."""
    rule = rules[valuation["name"]]
    images = images_among(rules["Images"]["shares"], valuation["values"])
    sites = {}
    for site in strategy["sites"]:
        value = valuation["values"].get(site)
        if value is None:
            continue
        share = rule["shares"].get(site)
        found = Contribution.of_value(value["value"], share, images.get(site), len(rule["shares"]))
        if value["value"] < 0:
            words = _negative_words(valuation, value["value"], value.get("stderr"))
            found = replace(found, words=words)
        sites[site] = found
    words = f"For {name}: {rule['meaning']}"
    return Contributions(name, "Valued afterwards", words, sites)


def _negative_words(valuation: Mapping[str, Any], value: float, stderr: float | None) -> str:
    """What a negative value of a valuation says, and whether it is apart from 0."""
    values = [abs(found["value"]) for found in valuation["values"].values()]
    if stderr is not None and abs(value) <= NORMAL * stderr:
        return "its value is negative, but its error includes 0: next to nothing"
    if abs(value) <= LEAST_RATIO * mean(values):
        return "next to nothing"
    if valuation["method"] == "leave_one_out":
        return "its value is negative: the others do better without it"
    return "its value is negative: on average, groups of the others are worse with it"


def _why_none(report: Mapping[str, Any], name: str) -> str:
    """Why a run does not say who contributed what, and what would."""
    strategy = report["strategies"][name]
    if strategy["estimates_contributions"]:
        return f"{strategy['method']} recorded no contribution in this run."
    return (
        f"{strategy['strategy']} does not estimate contributions: its weights say how much each "
        "update counted, not what it was worth. Add a strategy that estimates them, such as FedCE."
    )
