# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The paragraphs of the page that depend on its runs: what each table and each plot shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monai_fairfl.report.comparison import DDOF
from monai_fairfl.report.scores import dice_words
from monai_fairfl.report.verdicts import RULE

INTERVAL = (
    "The interval is over the hospital's cases (Student's t), from the difference in each case. "
    "Where the cases' scores are not known, it takes the two scores as independent, and is usually "
    "too wide. It does not cover other seeds: each strategy was trained once, and with another "
    "seed a model may miss what this one found."
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
CONTRIBUTIONS = "What the strategy credits each site with."
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
FAIRNESS = (
    f"Std: standard deviation over the sites, n - {DDOF} in the denominator. Gap: best site minus "
    "worst site. Jain index: 1 if all sites score the same, 1/n if one site has everything."
)
GAIN = (
    "Dice with the strategy minus Dice of training alone, ± one standard error; noise: the 95 % "
    "interval of its cases contains 0."
)
DICE_BY_ROUND = (
    "Validation Dice of the model that each site received in each round, or of its personal model "
    "where the strategy has one, and at the end of the model that it would use. Of several "
    "trainings, the line is the mean, and the band goes from the lowest to the highest."
)
WEIGHTS = (
    "How much of each site's update entered the next model. Rounds count from 0, as in the ledger. "
    "Where a strategy weights each layer separately, it is the plain mean over the layers."
)


def hospitals_caption(report: Mapping[str, Any]) -> str:
    """How to read the rows of the hospitals."""
    name = report["focus"]
    if name is None:
        return f"Mean {dice_words(report['measurement'])} of the model that each hospital trained."
    strategy = report["strategies"][name]
    sentences = [
        f"Mean {dice_words(strategy['measurement'])} of the model that each hospital would use."
    ]
    if any(site["gain"] is not None for site in strategy["sites"].values()):
        sentences.append(INTERVAL)
    if strategy["judged"]:
        sentences += [RULE, report["left_behind_rule"]]
    return " ".join(sentences)


def changes_caption(report: Mapping[str, Any], changes: Mapping[str, Any]) -> str:
    """How to read what changed against FedAvg."""
    measurement = report["strategies"][changes["strategy"]]["measurement"]
    return f"Mean {dice_words(measurement)}. {INTERVAL}"


def dice_caption(report: Mapping[str, Any], some_judged: bool) -> str:
    """What the table of the sites' Dice shows."""
    as_measured = ""
    if report["measurement"] == "global_score":
        as_measured = ", as last measured: no run is finished with a closing score"
    best = ""
    if some_judged:
        best = " The best of the runs that may be compared is marked, even if it may be chance."
    return (
        f"Mean {dice_words(report['measurement'])} of the model that each site would use"
        f"{as_measured}; ± is the standard error over the site's cases.{best}"
    )


def gain_caption(report: Mapping[str, Any]) -> str:
    """What the table of gains shows."""
    if any(found["collaboration"] for found in report["strategies"].values()):
        return f"{GAIN} {COLLABORATION}"
    return GAIN
