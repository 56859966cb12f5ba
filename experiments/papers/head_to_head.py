# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Head to head: NVFlare's FedCE and FedBN beside ours, on four real hospitals.

The same network, splits, batches, rounds and first model in every system; each runs on one core.
Three folds, each with its own seed. With a false report, one site sends the same wrong
leave-one-out error in each of ten rounds.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from head_to_head.cells import HONEST, Cell, run_cell
from head_to_head.systems import FEDBN, LOCAL_NORM, NVFLARE
from head_to_head.task import Task
from reading import (
    NOT_FOUND,
    NOTHING,
    NotFinished,
    by_fold,
    cases,
    difference,
    markdown,
    not_found,
    site_means,
    words,
)
from study import HERE

from monai_fairfl.statistics.fairness import performance

STUDIES = ()
FOLDS = (0, 1, 2)
ROUNDS = 40
SHORT_ROUNDS = 10
LOCAL_EPOCHS = 4
OVERRIDES = {
    "size": [128, 128],
    "split_folds": 4,
    "split_seed": 0,
    "split_validation": 0.35,
    "part": "largest",
}
SITES = "prostate"
LIAR = "UCL"
FIRST_COUNTED_ROUND = 2
"""In round 0 nobody has a model without itself, and in round 1 there is one such error only."""

SAME_FORMULA = "FedCE, NVFlare's formula"
SYSTEMS = (NVFLARE, SAME_FORMULA, "FedCE", "FedAvg", LOCAL_NORM, FEDBN)
LYING = (NVFLARE, "FedCE")
FOLDS_OF_REPORTS = {HONEST: FOLDS, "1": FOLDS, "1e9": FOLDS, "NaN": (0,), "-1": (0,)}
"""Report -> folds. NaN ends a run or is refused, whatever the fold; -1 buys nothing anywhere."""
SHOWN = {
    NVFLARE: "NVFlare's `FedCERecipe`",
    SAME_FORMULA: '`FedCE("sum", variant="revised")`: that of NVFlare',
    "FedCE": '`FedCE("sum")`: the paper',
    "FedAvg": "`FedAvg`",
    LOCAL_NORM: "`FedAvg`, `local_norm`: FedBN in our engine",
    FEDBN: "FedBN, a loop of its own",
}
"""System -> its name in the tables."""
PAIRS = (
    (SAME_FORMULA, NVFLARE),
    ("FedCE", NVFLARE),
    ("FedCE", "FedAvg"),
    (LOCAL_NORM, FEDBN),
    (LOCAL_NORM, "FedAvg"),
)
"""Systems whose Dice is compared case by case."""


def cells() -> list[Cell]:
    """List all trainings: fold by fold, so that what is done can be compared."""
    found = []
    for fold in FOLDS:
        for system in SYSTEMS:
            found.append(Cell(system, fold))
        for report, folds in FOLDS_OF_REPORTS.items():
            if fold in folds:
                found += [Cell(system, fold, report, short=True) for system in LYING]
    return found


def result_file(cell: Cell) -> Path:
    """Return the JSON of a cell."""
    return HERE / "results" / "head_to_head" / f"{cell.name}.json"


def result_files() -> list[Path]:
    """List the JSON files of all cells, also of those that are not done."""
    return [result_file(cell) for cell in cells()]


def measure_cells(data: Path, runs: Path) -> None:
    """Train and test every cell that has no JSON yet.

    Raises:
        SystemExit: there are no images; or some trainings failed, which the text names, and the
            others are done.
    """
    todo = [cell for cell in cells() if not result_file(cell).exists()]
    if todo and not (data / SITES).is_dir():
        sys.exit(f"there are no real images in {data / SITES}; name their folder with --data")
    failed = []
    for number, cell in enumerate(todo, start=1):
        print(f"{number}/{len(todo)} {cell.name}", flush=True)
        folder = runs.absolute() / "head_to_head" / cell.name
        try:
            run_cell(cell, task_of(cell, data), LIAR, folder, result_file(cell))
        except RuntimeError as error:
            failed.append(f"{cell.name}: {error}")
            continue
        # Models, checkpoints and logs, all of which the same command would make again.
        shutil.rmtree(folder)
    if failed:
        reasons = "\n".join(failed)
        sys.exit(
            f"{len(failed)} of {len(todo)} trainings are not done; the same command goes on with "
            f"them: {reasons}"
        )


def task_of(cell: Cell, data: Path) -> Task:
    """Return what a cell trains."""
    rounds = ROUNDS
    if cell.short:
        rounds = SHORT_ROUNDS
    return Task(
        sites_root=str((data / SITES).absolute()),
        rounds=rounds,
        local_epochs=LOCAL_EPOCHS,
        seed=cell.fold,
        overrides={**OVERRIDES, "split_fold": cell.fold},
    )


def table() -> str:
    """Write the honest trainings, their differences, and what a false report does.

    Raises:
        NotFinished: no fold has all its trainings.
    """
    folds = _finished_folds()
    if not folds:
        raise NotFinished("all trainings of a fold")
    numbers = ", ".join(str(fold) for fold in folds)
    noun = "folds"
    if len(folds) == 1:
        noun = "fold"
    what = f"Test cases of {noun} {numbers} of four."
    return "\n\n".join([what, _honest(), _differences(), _false_reports()])


def _finished_folds() -> list[int]:
    """List the folds all of whose trainings are done."""
    missing = {cell.fold for cell in cells() if not result_file(cell).exists()}
    return [fold for fold in FOLDS if fold not in missing]


def _read(system: str, report: str = HONEST, short: bool = False) -> list[dict[str, Any]]:
    """Read a system's results of the finished folds in which it was trained."""
    folds: tuple[int, ...] = FOLDS
    if short:
        folds = FOLDS_OF_REPORTS[report]
    found = []
    for fold in _finished_folds():
        if fold not in folds:
            continue
        found.append(json.loads(result_file(Cell(system, fold, report, short)).read_text()))
    return found


def _honest() -> str:
    """Write a row per system: Dice, and what it takes."""
    rows = []
    for system in SYSTEMS:
        results = _read(system)
        # Seconds by the clock are in the files, too; other work on the machine changes them.
        minutes = f"{median(result['minutes'] for result in results):.1f}"
        row = [SHOWN[system], *_dice(results), "{} of {}".format(*not_found(results))]
        rows.append([*row, minutes, _touched(results)])
        if system == FEDBN:
            name = "the same, each site's best round by its own validation"
            row = [name, *_dice(results, "test_best")]
            row.append("{} of {}".format(*not_found(results, model="test_best")))
            rows.append([*row, NOTHING, NOTHING])
    head = [
        "system",
        "mean",
        "deviation",
        "worst site",
        f"volumes with Dice below {NOT_FOUND}",
        "processor minutes",
        "honest client-rounds that guards touched",
    ]
    return markdown(head, rows)


def _dice(results: Sequence[dict[str, Any]], model: str = "test") -> list[str]:
    """Dice of the sites' test cases of all folds: mean over sites, deviation, worst site."""
    means = site_means(cases(results, model=model))
    summary = performance(means)
    return [
        f"{summary.mean:.3f}",
        f"{summary.std:.3f}",
        f"{summary.worst:.3f} ({summary.worst_client})",
    ]


def _touched(results: Sequence[dict[str, Any]]) -> str:
    """Count the rounds in which a guard acted on an honest site, of all its rounds."""
    touched = 0
    rounds = 0
    for result in results:
        for site, number in result["touched"].items():
            if site != result["liar"]:
                touched += number
                rounds += len(result["weights"][site])
    if not rounds:
        return NOTHING
    return f"{touched} of {rounds}"


def _differences() -> str:
    """Write a row per pair: how much the first has over the second, case by case."""
    rows = []
    for first, second in PAIRS:
        one = _read(first)
        other = _read(second)
        gain = words(difference(one, other), signed=True)
        rows.append([SHOWN[first], SHOWN[second], gain, by_fold(one, other)])
    head = ["system", "compared with", "its Dice, minus the other's", "each fold"]
    return markdown(head, rows)


def _false_reports() -> str:
    """Write a row per system and report: the liar's weight, and the honest sites' Dice."""
    rows = []
    for system in LYING:
        for report in FOLDS_OF_REPORTS:
            results = _read(system, report, short=True)
            if results:
                rows.append(_row_of_report(system, report, results))
        # What the reports that were tried in the first fold only are compared with.
        honest = _read(system, short=True)
        first = [result for result in honest if result["fold"] == FOLDS[0]]
        if len(first) < len(honest):
            rows.append(_row_of_report(system, HONEST, first))
    head = [
        "system",
        f"{LIAR} reports",
        "folds",
        f"weight of {LIAR}",
        "honest sites' Dice: mean",
        "worst honest site",
        "rounds in which its report did not count",
        "the run",
    ]
    return markdown(head, rows)


def _end_of(result: dict[str, Any]) -> str:
    """Say how a run ended early: NVFlare keeps the model of each round that was finished.

    >>> _end_of({"ended": "NaN", "rounds": 10, "seconds_of_rounds": [9.0, 9.0]})
    'ends in round 3 of 10, with the model of the round before: NaN'
    >>> _end_of({"ended": "NaN", "rounds": 10, "seconds_of_rounds": []})
    'ends, without a model: NaN'
    """
    finished = len(result["seconds_of_rounds"])
    where = "ends, without a model"
    if finished:
        number = f"{finished + 1} of {result['rounds']}"
        where = f"ends in round {number}, with the model of the round before"
    return f"{where}: {result['ended']}"


def _row_of_report(system: str, report: str, results: Sequence[dict[str, Any]]) -> list[str]:
    """Write a row; where the run ended early, why."""
    folds = ", ".join(str(result["fold"]) for result in results)
    row = [SHOWN[system], report or "its own error", folds]
    ended = sorted({_end_of(result) for result in results if result["ended"]})
    if ended:
        return [*row, *[NOTHING] * 4, "; ".join(ended)]
    weights = []
    honest = []
    for result in results:
        weights.append(np.mean(result["weights"][LIAR][FIRST_COUNTED_ROUND:]))
        dice = {site: scores for site, scores in result["test"]["dice"].items() if site != LIAR}
        honest.append({**result, "test": {**result["test"], "dice": dice}})
    mean, _, worst = _dice(honest)
    refused = "0"
    if results[0]["refused"]:
        number = sum(result["refused"][LIAR] for result in results)
        measured = sum(result["rounds"] - 1 for result in results)
        refused = f"{number} of {measured}"
    return [*row, f"{np.mean(weights):.3f}", mean, worst, refused, "to its end"]
