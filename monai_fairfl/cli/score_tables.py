# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The scores of an evaluation: read from the tables in its folders, and in columns for a reader."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from monai_fairfl.workflow.answer import NOTHING, in_columns

WHOLE_DICE = "val_mean_dice"
"""Name of the mean Dice of all structures in MONAI's tables."""

TITLES = {
    WHOLE_DICE: "Dice",
    "dice_slices": "Dice of slices",
    "hd95": "HD95, mm",
    "cup_to_disc_error": "cup-to-disc error",
}
"""Name of a score -> its column."""

MEANINGS = {
    "dice_slices": (
        "mean over the cases of each one's mean over its slices that have the organ; FedCE's paper "
        "pools the slices of all cases, as metrics.csv does"
    ),
    "hd95": "95th percentile of the distance of the two surfaces, by the spacing in the files",
}
"""Name of a score that needs a word -> what it is."""


def scores_in(folder: Path) -> dict[str, dict[str, float]]:
    """Image -> name of a score -> its value, of all tables that MONAI's ``MetricsSaver`` wrote.

    >>> scores_in(Path("no/such/folder"))
    {}
    """
    scores: dict[str, dict[str, float]] = {}
    for file in sorted(folder.glob("*_raw.csv")):
        name = file.name.removesuffix("_raw.csv")
        for image, values in _rows_of(file):
            # The mean of the classes is the last one.
            scores.setdefault(image, {})[name] = values[-1]
    return scores


def _rows_of(table: Path) -> list[tuple[str, list[float]]]:
    """Image, and its values: of each class, if there are several, and their mean."""
    with table.open(newline="", encoding="utf-8") as file:
        titles, *rows = csv.reader(file)
    num_values = len(titles) - 1
    values_of_images = []
    for row in rows:
        # MONAI quotes nothing: a path with a comma is several cells.
        image = ",".join(row[:-num_values])
        values_of_images.append((image, [float(value) for value in row[-num_values:]]))
    return values_of_images


def cases_in_part(folder: Path) -> int:
    """Number of cases whose Dice is of fewer structures than that of other cases of the hospital.

    MONAI's Dice of a structure that a label lacks is not a number, and does not count in the mean.
    """
    table = folder / f"{WHOLE_DICE}_raw.csv"
    if not table.is_file():
        return 0
    numbers = []
    for _, values in _rows_of(table):
        classes = values[:-1]
        number = sum(not math.isnan(value) for value in classes)
        # A case without any Dice has a note of its own.
        if number:
            numbers.append(number)
    return sum(number < max(numbers) for number in numbers)


def _known(cases: Mapping[str, Mapping[str, float]], name: str) -> dict[str, float]:
    """Image -> a score, where it has one: MONAI's Dice of an empty label is not a number."""
    known = {}
    for image, scores in cases.items():
        if not math.isnan(scores.get(name, math.nan)):
            known[image] = scores[name]
    return known


def evaluation_text(
    found: Mapping[str, Mapping[str, Any]], out: Path, trained: str, missing: Sequence[str] = ()
) -> str:
    """The scores in columns: a line for each hospital, and the worst case of each.

    Args:
        found: hospital -> ``cases``, ``split`` and ``in_part``.
        out: folder of the tables.
        trained: how the model was trained; empty where it is not known.
        missing: hospitals of the run that were not evaluated.

    >>> cases = {"Case00.nii.gz": {"hd95": 4.0, "val_mean_dice": 0.75}}
    >>> found = {"elm": {"cases": cases, "split": "all cases", "in_part": 0}}
    >>> for line in evaluation_text(found, Path("scores"), "").splitlines()[:3]:
    ...     print(" ".join(line.split()))
    hospital cases Dice HD95, mm worst case
    elm 1 0.750 4.000 Case00.nii.gz 0.750
    elm: all cases.
    """
    names = _names_of_scores(found)
    rows = [["hospital", "cases", *[_title(name) for name in names], "worst case"]]
    notes = []
    for site, entry in found.items():
        rows.append(_row(site, entry["cases"], names))
        notes += _notes(site, entry, names)
    if missing:
        notes.append(
            f"Not scored, because the folder does not have them: {', '.join(missing)} of the run. "
            "Add them, or bear in mind that no number is of them."
        )
    lines = [*in_columns(rows), *notes, *_splits(found)]
    for name in names:
        if name in MEANINGS:
            lines.append(f"{TITLES[name]}: {MEANINGS[name]}.")
    if trained:
        lines.append(trained)
    lines.append(f"Folder: {out}")
    return "\n".join(lines)


def _title(name: str) -> str:
    return TITLES.get(name, name)


def _names_of_scores(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The scores that any case has: those with a title in its order, then the others."""
    names: list[str] = []
    for entry in found.values():
        for scores in entry["cases"].values():
            names += [name for name in scores if name not in names]
    titled = list(TITLES)
    return sorted(names, key=lambda name: titled.index(name) if name in titled else len(titled))


def _row(site: str, cases: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> list[str]:
    """A hospital's line: its number of cases, the mean of each score, and the worst Dice."""
    row = [site, str(len(cases))]
    for name in names:
        known = _known(cases, name)
        row.append(f"{mean(known.values()):.3f}" if known else NOTHING)
    dice = _known(cases, WHOLE_DICE)
    if not dice:
        return [*row, NOTHING]
    worst = min(dice, key=lambda image: dice[image])
    return [*row, f"{Path(worst).name} {dice[worst]:.3f}"]


def _notes(site: str, entry: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Which means of a hospital are not of all its cases, or mix structures."""
    cases: Mapping[str, Mapping[str, float]] = entry["cases"]
    notes = []
    for name in names:
        known = _known(cases, name)
        if len(known) < len(cases):
            notes.append(
                f"{_title(name)} of {site} is of {len(known)} of {len(cases)} cases: "
                "the labels of the others have no such structure."
            )
    in_part = entry.get("in_part", 0)
    if in_part:
        notes.append(
            f"Dice of {site} mixes structures: the labels of {in_part} of {len(cases)} cases "
            "lack a structure, and their Dice is that of the others alone. Each structure's own"
            f" is in {WHOLE_DICE}_raw.csv."
        )
    return notes


def _splits(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Which cases the scores are of, hospitals with the same answer together."""
    sites_of: dict[str, list[str]] = {}
    for site, entry in found.items():
        sites_of.setdefault(entry["split"], []).append(site)
    return [f"{', '.join(sites)}: {split}." for split, sites in sites_of.items()]
