# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The paragraphs of the page that depend on its runs: what each table and each plot shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from monai_fairfl.report.last_mile import has_last_mile
from monai_fairfl.report.sentences import dice_words
from monai_fairfl.report.verdicts import RULE

INTERVAL = (
    "The interval is over the hospital's cases (Student's t), {pairing}. It covers no other seed: "
    "each strategy was trained once, and another seed moves single cases from found to missed."
)
PAIRED = "of the differences case by case"
INDEPENDENT = (
    "with the two scores taken as independent, which mostly overstates it, since both are of the "
    "same cases"
)
LAST_MILE = (
    "At the end each hospital compared the model that it would use with others: the same trained "
    "further on its own images, the mean of the models of the last rounds, and one that it trained "
    "alone, where it did. Of those that gain more than their standard error on its own validation "
    "cases, it takes the one with the largest gain. Such a gain is a little too good; the Dice is "
    "of cases that chose nothing, where a hospital has test cases. All other tables are of the "
    "models before."
)
VALUED = (
    "These values were computed after the run, on the models of coalitions of sites; they are not "
    "part of the ledger. A value has the unit of what is valued. ± is the standard error of "
    "sampling coalitions, which is 0 where all were scored; it does not include what another seed "
    "of the training or other patients would change. Shares count negative values as 0 and sum to "
    "100 %."
)
JUDGED = (
    "A share by judges is of values that may be negative: 0.0 % is no verdict on a hospital. Where "
    "single rounds disagree, even about the sign, the value is not yet known: judge more rounds."
)
RULES = (
    "Each rule answers another question, and none is right for all of them. Shares sum to 100 %; a "
    "negative value counts as 0."
)
FREE_RIDING = (
    "Guards found these: an update without content, noise, a repetition of an earlier one, or one "
    "that several sites sent. A site that trains on its own images sends none of them. The reason "
    "names the number and what is usual."
)
SIMILARITY = (
    "Mean over the rounds of the cosine of two sites' updates: 1 is the same direction, 0 none in "
    "common. Like sites are neighbours."
)
PROVENANCE = (
    "Each record of a ledger carries the SHA-256 of the one before. Only the head can show that "
    "nobody rewrote the whole ledger, changed its last record or cut off its end: store it "
    "elsewhere, and compare."
)
HISTOGRAMS = (
    "Percent of the voxels in each range of intensities, of those that are shown. A gap stands for "
    "too few cases, or for none."
)
CREDIT = (
    "Shares of the same whole under each rule at hand. The weight is the mean over all rounds; a "
    "strategy's own contributions are those of its last round. Their tables are below."
)
COLLABORATION = (
    "Pearson: correlation over the sites of the Dice alone and the Dice in the federation; it is "
    "high when sites that do better alone also end up better. It is not defined for two sites or "
    "for equal scores; p is two-sided and says little with few sites. Euclid: distance between the "
    "two in percentage points."
)
FREE_RIDERS = (
    "Cosine of a site's update and the global one, times the difference between its Dice with the "
    "received model and with the one it trained: high for a site whose data add little to what it "
    "receives."
)


def hospitals_caption(report: Mapping[str, Any]) -> str:
    """How to read the rows of the hospitals."""
    name = report["focus"]
    if name is None:
        return f"Mean {dice_words(report['measurement'])} of the model that each hospital trained."
    strategy = report["strategies"][name]
    sentences = [
        f"Mean {dice_words(strategy['measurement'])} of the model each hospital would use."
    ]
    gains = [site["gain"] for site in strategy["sites"].values() if site["gain"] is not None]
    if gains:
        sentences.append(INTERVAL.format(pairing=_pairing(gains)))
    if strategy["judged"]:
        sentences += [RULE, report["left_behind_rule"]]
    return " ".join(sentences)


def changes_caption(report: Mapping[str, Any], changes: Mapping[str, Any]) -> str:
    """How to read what changed against FedAvg."""
    measurement = report["strategies"][changes["strategy"]]["measurement"]
    pairing = _pairing(changes["differences"])
    return f"Mean {dice_words(measurement)}. {INTERVAL.format(pairing=pairing)}"


def fairness_caption(report: Mapping[str, Any]) -> str:
    """What the measures of evenness are."""
    return (
        f"Std: standard deviation over the sites, n - {report['ddof']} in the denominator. Gap: "
        "best site minus worst site. Jain index: 1 when all sites score the same, 1/n when one has "
        "everything."
    )


def _pairing(differences: Sequence[Mapping[str, Any]]) -> str:
    """How the differences' standard errors were made."""
    paired = [difference["paired"] for difference in differences]
    if all(paired):
        return PAIRED
    if not any(paired):
        return INDEPENDENT
    return f"{PAIRED} where the cases' scores are known, else {INDEPENDENT}"


def dice_caption(report: Mapping[str, Any], some_judged: bool, sites_are_rows: bool) -> str:
    """What the table of the sites' Dice shows."""
    as_measured = ""
    if report["measurement"] == "global_score":
        as_measured = ", as last measured: no run is finished with a closing score"
    before = ""
    if any(has_last_mile(strategy) for strategy in report["strategies"].values()):
        before = " before its last mile"
    caption = (
        f"Mean {dice_words(report['measurement'])} of the model that each site would use{before}"
        f"{as_measured}; ± is the standard error over the site's cases."
    )
    if some_judged:
        caption = f"{caption} {best_caption(report, sites_are_rows)}."
    return caption


def best_caption(report: Mapping[str, Any], sites_are_rows: bool) -> str:
    """Among which numbers the best one is marked."""
    of_each = "row" if sites_are_rows else "column"
    among = ""
    if _has_groups(report):
        among = ", among runs of the same data, split and seed,"
    return f"The best of each {of_each}{among} is marked, whether or not it is more than chance"


def gain_caption(report: Mapping[str, Any]) -> str:
    """What the table of gains shows."""
    standalone = report["standalone"]
    if _has_groups(report):
        standalone = "Standalone of the same data, split and seed"
    caption = (
        f"Dice with the strategy minus Dice of {standalone}, ± one standard error; noise: the 95 % "
        "interval of its cases holds 0."
    )
    if any(found["collaboration"] for found in report["strategies"].values()):
        caption = f"{caption} {COLLABORATION}"
    return caption


def dice_by_round_caption(report: Mapping[str, Any]) -> str:
    """Which models' Dice is drawn by round."""
    sentences = [
        "Validation Dice of the model each site received or, at the end, would use, after so many "
        "rounds."
    ]
    methods = [found["method"] for found in report["strategies"].values()]
    if len(set(methods)) < len(methods):
        sentences.append(
            "Of several trainings the line is the mean; the band is from the least to the most."
        )
    for name, found in report["strategies"].items():
        if found["personal"]:
            sentences.append(
                f"For {name} it is the site's personal model, which nobody else receives."
            )
    return " ".join(sentences)


def weights_caption(report: Mapping[str, Any]) -> str:
    """What the drawn weights are of, and which strategies have none."""
    sentences = [
        "How much of each site's update entered the next model.",
        "Rounds count from 0, as in the ledger.",
    ]
    for name, found in report["strategies"].items():
        if found["layers_averaged"] is not None:
            sentences.append(
                f"{name} weighs each layer by itself: shown is the plain mean over its "
                f"{found['layers_averaged']} layers."
            )
    for name, found in report["strategies"].items():
        has_weights = any(found["series"]["weights"].values())
        if found["rounds"] and not has_weights:
            sentences.append(f"{name} averages nothing and has no weights.")
    return " ".join(sentences)


def contributions_caption(report: Mapping[str, Any]) -> str:
    """What each strategy credits a site with, and which credit nobody."""
    sentences = ["What the strategy credits each site with."]
    weights_shown = []
    for name, found in report["strategies"].items():
        if found["estimates"]:
            sentences.append(f"{name}: {found['estimates']}.")
        has_contributions = any(found["series"]["contributions"].values())
        if has_contributions and not found["estimates_contributions"]:
            weights_shown.append(name)
    if weights_shown:
        sentences.append(
            f"{', '.join(weights_shown)}: contributions are not estimated, only the weights above."
        )
    return " ".join(sentences)


def free_riders_caption(report: Mapping[str, Any]) -> str:
    """What a free-rider score is, and when a site is flagged."""
    return f"{FREE_RIDERS} {report['free_rider_rule']}"


def _has_groups(report: Mapping[str, Any]) -> bool:
    """Whether the runs fall into several groups that are not compared with each other."""
    return len(report["compared"]) > 1
