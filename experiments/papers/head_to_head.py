# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""NVFlare's FedCE and FedBN beside ours, on four real hospitals, three folds with a seed each.

With a false report, one site sends the same wrong leave-one-out error in each of ten rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
import tables
from reading import (
    NOT_FOUND,
    NOTHING,
    by_fold,
    cases,
    difference,
    markdown,
    not_found,
    site_means,
    used,
    words,
)
from study import RESULTS

from monai_fairfl.statistics.fairness import performance

FIRST_COUNTED_ROUND = 2
"""In round 0 nobody has a model without itself, and in round 1 there is one such error only."""
NVFLARE, PAPER = "NVFlare FedCE", "FedCE"
REVISED = "FedCE, NVFlare's formula"
LOCAL_NORM, FEDBN = "FedAvg, local_norm", "FedBN, its own loop"
SHOWN = {
    NVFLARE: "NVFlare's `FedCERecipe`",
    REVISED: '`FedCE("sum", variant="revised")`: that of NVFlare',
    PAPER: '`FedCE("sum")`: the paper',
    "FedAvg": "`FedAvg`",
    LOCAL_NORM: "`FedAvg`, `local_norm`: FedBN in our engine",
    FEDBN: "FedBN, a loop of its own",
}
"""System -> its name in the tables."""
PAIRS = (
    (REVISED, NVFLARE),
    (PAPER, NVFLARE),
    (PAPER, "FedAvg"),
    (LOCAL_NORM, FEDBN),
    (LOCAL_NORM, "FedAvg"),
)
"""Systems whose Dice is compared case by case."""
Runs = list[dict[str, Any]]


def table() -> str:
    """The honest runs, their differences, and what a false report does."""
    return "\n\n".join([_honest(), _differences(), _false_reports()])


def _read(system: str, report: str = "", short: bool = False) -> Runs:
    """Read a system's results, fold by fold; those with reports and beside them have ten rounds."""
    used["head_to_head"] = None
    found = []
    for result in tables.read(RESULTS / "head_to_head").values():
        if (result["strategy"], result["report"]) == (system, report):
            if (result["rounds"] == 10) == short:
                found.append(dict(result))
    return sorted(found, key=lambda result: result["fold"])


def _honest() -> str:
    """Write a row per system: Dice, and what it takes."""
    rows = []
    for system, name in SHOWN.items():
        results = _read(system)
        missed = "{} of {}".format(*not_found(results))
        minutes = f"{median(result['minutes'] for result in results):.1f}"
        rows.append([name, *_dice(results), missed, minutes, _touched(results)])
        if system == FEDBN:
            best = "the same, each site's best round by its own validation"
            missed = "{} of {}".format(*not_found(results, model="test_best"))
            rows.append([best, *_dice(results, "test_best"), missed, NOTHING, NOTHING])
    head = ["system", "mean", "deviation", "worst site", f"volumes with Dice below {NOT_FOUND}"]
    return markdown([*head, "processor minutes", "honest client-rounds that guards touched"], rows)


def _dice(results: Runs, model: str = "test") -> list[str]:
    summary = performance(site_means(cases(results, model=model)))
    worst = f"{summary.worst:.3f} ({summary.worst_client})"
    return [f"{summary.mean:.3f}", f"{summary.std:.3f}", worst]


def _touched(results: Runs) -> str:
    """Count the rounds in which a guard acted on a site, of all its rounds."""
    touched = sum(sum(result["touched"].values()) for result in results)
    rounds = 0
    for result in results:
        rounds += sum(len(result["weights"][site]) for site in result["touched"])
    return f"{touched} of {rounds}" if rounds else NOTHING


def _differences() -> str:
    rows = []
    for first, second in PAIRS:
        pair = _read(first), _read(second)
        gain = words(difference(*pair), signed=True)
        rows.append([SHOWN[first], SHOWN[second], gain, by_fold(*pair)])
    head = ["system", "compared with", "its Dice, minus the other's", "each fold"]
    return markdown(head, rows)


def _false_reports() -> str:
    """Write a row per system and report: the liar's weight, and the honest sites' Dice."""
    rows = []
    for system in (NVFLARE, PAPER):
        for report in ("", "1", "1e9", "NaN", "-1"):
            rows.append(_row_of_report(system, report, _read(system, report, short=True)))
        # What the reports that were tried in the first fold only are compared with.
        rows.append(_row_of_report(system, "", _read(system, short=True)[:1]))
    head = ["system", "UCL reports", "folds", "weight of UCL", "honest sites' Dice: mean"]
    head += ["worst honest site", "rounds in which its report did not count", "the run"]
    return markdown(head, rows)


def _row_of_report(system: str, report: str, results: Sequence[dict[str, Any]]) -> list[str]:
    """Write a row; where the run ended early, why."""
    folds = ", ".join(str(result["fold"]) for result in results)
    row = [SHOWN[system], report or "its own error", folds]
    ended = [result["ended"] for result in results if result["ended"]]
    if ended:
        return [*row, *[NOTHING] * 4, f"ends, without a model: {ended[0]}"]
    weights = []
    honest = []
    for result in results:
        weights.append(np.mean(result["weights"]["UCL"][FIRST_COUNTED_ROUND:]))
        dice = {site: scores for site, scores in result["test"]["dice"].items() if site != "UCL"}
        honest.append({**result, "test": {**result["test"], "dice": dice}})
    mean, _, worst = _dice(honest)
    refused = "0"
    if results[0]["refused"]:
        number = sum(result["refused"]["UCL"] for result in results)
        refused = f"{number} of {sum(result['rounds'] - 1 for result in results)}"
    return [*row, f"{np.mean(weights):.3f}", mean, worst, refused, "to its end"]
