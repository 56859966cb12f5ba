# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The paragraphs of the page that depend on its runs: what each table and each plot shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monai_fairfl.report.sentences import dice_words

NOISE = (
    "A difference inside the 95 % interval of its cases (Student's t) is called noise; none is "
    "called significant: each strategy was trained once, and another seed moves single cases from "
    "found to missed. The standard error is over a site's cases and takes the two scores as "
    "independent, which mostly overstates it, since both are of the same cases."
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
    """Which strategy the hospitals' sentences are about, and how to read them."""
    sentences = []
    focus = report["focus"]
    if focus is not None:
        about = f"The sentences speak of {focus}"
        if len(report["strategies"]) > 2 or not report["standalone"]:
            about += ", the federated strategy with the best mean on validation cases"
            if _has_groups(report):
                about += " of its data, split and seed"
        sentences.append(f"{about}.")
        if report["strategies"][focus]["judged"]:
            sentences.append(report["left_behind_rule"])
    sentences.append(NOISE)
    return " ".join(sentences)


def dice_caption(report: Mapping[str, Any]) -> str:
    """What the table of the sites' Dice shows."""
    as_measured = ""
    if report["measurement"] == "global_score":
        as_measured = ", as last measured: no run is finished with a closing score"
    return (
        f"Mean {dice_words(report['measurement'])} of the model that each site would use"
        f"{as_measured}; ± is the standard error over the site's cases."
    )


def best_caption(report: Mapping[str, Any], sites_are_rows: bool) -> str:
    """Among which numbers the best one is marked, up to the example of a mark."""
    of_each = "row" if sites_are_rows else "column"
    among = ""
    if _has_groups(report):
        among = ", among runs of the same data, split and seed,"
    return f"The best of each {of_each}{among} is marked"


def gain_caption(report: Mapping[str, Any]) -> str:
    """What the table of gains shows."""
    standalone = report["standalone"]
    if _has_groups(report):
        standalone = "Standalone of the same data, split and seed"
    caption = f"Dice with the strategy minus Dice of {standalone}, ± one standard error."
    if any(found["collaboration"] for found in report["strategies"].values()):
        caption = f"{caption} {COLLABORATION}"
    return caption


def dice_by_round_caption(report: Mapping[str, Any]) -> str:
    """Which models' Dice is drawn by round."""
    sentences = [
        "Validation Dice of the model each site received or, at the end, would use, after so many "
        "rounds."
    ]
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
    """What each strategy credits a site with; some show the weights instead."""
    sentences = [
        "What the strategy credits each site with; shaded is one standard error, where the "
        "strategy knows it."
    ]
    weights_shown = []
    for name, found in report["strategies"].items():
        if found["estimates"]:
            sentences.append(f"{name}: {found['estimates']}.")
        has_contributions = any(found["series"]["contributions"].values())
        if has_contributions and not found["estimates_contributions"]:
            weights_shown.append(name)
    if weights_shown:
        sentences.append(
            f"{', '.join(weights_shown)}: contributions are not estimated, shown are the "
            f"aggregation weights."
        )
    return " ".join(sentences)


def free_riders_caption(report: Mapping[str, Any]) -> str:
    """What a free-rider score is, and when a site is flagged."""
    return f"{FREE_RIDERS} {report['free_rider_rule']}"


def _has_groups(report: Mapping[str, Any]) -> bool:
    """Whether the runs fall into several groups that are not compared with each other."""
    return len(report["compared"]) > 1
