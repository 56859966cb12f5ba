# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The paragraphs of the page that depend on its runs: what each table and each plot shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from monai_fairfl.report.last_mile import has_last_mile
from monai_fairfl.report.scores import dice_words
from monai_fairfl.report.verdicts import RULE

INTERVAL = (
    "The interval is over the hospital's cases (Student's t), {pairing}. It does not cover other "
    "seeds: each strategy was trained once, and with another seed a model may miss what this one "
    "found."
)
PAIRED = "from the difference in each case"
INDEPENDENT = (
    "as if the two scores were independent; both are of the same cases, so it is usually too wide"
)
LAST_MILE = (
    "After the last round, each hospital compared its model with this model trained further on its "
    "own images and with the model that it trained alone. It takes the one with the largest gain "
    "on its own validation cases, if this gain is larger than its standard error. The same cases "
    "chose the model, so the gain is too high: the honest score is the Dice of test cases. All "
    "other tables show the models before the last mile."
)
VALUED = (
    "Computed after the run from the models of coalitions of sites, and not part of the ledger. "
    "± is the standard error of sampling coalitions; it does not cover another seed or other "
    "patients. Shares count negative values as 0 and sum to 100 %."
)
RULES = (
    "Each rule answers a different question, and no rule is right for every question. Shares sum "
    "to 100 %; a negative value counts as 0."
)
FREE_RIDING = (
    "Guards found updates that no training on a site's own images makes: an update without "
    "content, noise, a copy of an earlier update, or one that several sites sent. The reason names "
    "the number that the guard measured and the usual range."
)
SIMILARITY = (
    "Cosine of two sites' updates, averaged over the rounds: 1 means the same direction, 0 means "
    "unrelated directions. Similar sites are next to each other."
)
PROVENANCE = (
    "Each record of a ledger contains the SHA-256 of the record before it. Store the head "
    "elsewhere: only the head shows that nobody rewrote the ledger or cut off its end."
)
CREDIT = (
    "Each hospital's share under each available rule. The weight is the mean over all rounds. A "
    "strategy's own contributions are of its last round that drew the hospital."
)
COLLABORATION = (
    "Pearson: correlation over the sites between the Dice of training alone and the Dice in the "
    "federation; not defined for two sites or equal scores. p is two-sided and says little with "
    "few sites. Euclid: distance between the two in percentage points."
)
FREE_RIDERS = (
    "Cosine of a site's update and the global update, times the difference between the site's Dice "
    "with the received model and with the model that it trained. The score is high for a site "
    "whose data add little to what it receives."
)


def hospitals_caption(report: Mapping[str, Any]) -> str:
    """How to read the rows of the hospitals."""
    name = report["focus"]
    if name is None:
        return f"Mean {dice_words(report['measurement'])} of the model that each hospital trained."
    strategy = report["strategies"][name]
    before = " before its last mile" if has_last_mile(strategy) else ""
    sentences = [
        f"Mean {dice_words(strategy['measurement'])} of the model that each hospital would use"
        f"{before}."
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
        "best site minus worst site. Jain index: 1 if all sites score the same, 1/n if one site "
        "has everything."
    )


def _pairing(differences: Sequence[Mapping[str, Any]]) -> str:
    """How the differences' standard errors were made."""
    paired = [difference["paired"] for difference in differences]
    if all(paired):
        return PAIRED
    if not any(paired):
        return INDEPENDENT
    return f"{PAIRED} if the cases' scores are known, else {INDEPENDENT}"


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
    return f"The best of each {of_each}{among} is marked, even if it may be chance"


def gain_caption(report: Mapping[str, Any]) -> str:
    """What the table of gains shows."""
    standalone = report["standalone"]
    if _has_groups(report):
        standalone = "Standalone of the same data, split and seed"
    caption = (
        f"Dice with the strategy minus Dice of {standalone}, ± one standard error; noise: the 95 % "
        "interval of its cases contains 0."
    )
    if any(found["collaboration"] for found in report["strategies"].values()):
        caption = f"{caption} {COLLABORATION}"
    return caption


def dice_by_round_caption(report: Mapping[str, Any]) -> str:
    """Which models' Dice is drawn by round."""
    sentences = [
        "Validation Dice of the model that each site received in each round, and at the end of the "
        "model that it would use."
    ]
    methods = [found["method"] for found in report["strategies"].values()]
    if len(set(methods)) < len(methods):
        sentences.append(
            "The line is the mean of several trainings. The band goes from the lowest to the "
            "highest."
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
                f"{name} weights each layer separately: the plot shows the plain mean over its "
                f"{found['layers_averaged']} layers."
            )
    for name, found in report["strategies"].items():
        has_weights = any(found["series"]["weights"].values())
        if found["rounds"] and not has_weights:
            sentences.append(f"{name} does not average models, so it has no weights.")
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
            f"{', '.join(weights_shown)} does not estimate contributions: see the weights above."
        )
    return " ".join(sentences)


def free_riders_caption(report: Mapping[str, Any]) -> str:
    """What a free-rider score is, and when a site is flagged."""
    return f"{FREE_RIDERS} {report['free_rider_rule']}"


def _has_groups(report: Mapping[str, Any]) -> bool:
    """Whether the runs fall into several groups that are not compared with each other."""
    return len(report["compared"]) > 1
