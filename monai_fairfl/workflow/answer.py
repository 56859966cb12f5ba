# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The answer of an inference run: a line for each case, for a terminal and for a spreadsheet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from monai_fairfl.data.image_files import count_of_files
from monai_fairfl.utils.spreadsheets import csv_text

NOTHING = "–"

ONLY = "Remarks are about border and size only. Before you use a mask, look at it."
"""What no remark on a case means: a model that never learned the organ may get none."""

LEAST_CASES = 5
"""With fewer volumes the median of a batch says little of any of them."""

MOST_DEVIATIONS = 3.5
"""Robust deviations from the median (Iglewicz and Hoaglin, *How to Detect and Handle Outliers*,
1993).
"""

DEVIATION_OF_MAD = 1.4826
"""Standard deviations in a median absolute deviation of a normal distribution."""

LEAST_FACTOR, MOST_FACTOR = 1.5, 3.0
"""Factors from the median: a size within the first is never reported, one beyond the second
always, however alike or unlike the others are.
"""


def answer_text(table: Mapping[str, Any]) -> str:
    """The cases in columns, and below them what to look at.

    Args:
        table: what a run's ``volumes.json`` or ``ratios.json`` holds.

    >>> line = {"case": "Case01", "status": "segmented", "millilitres": 41.26, "share": 0.01,
    ...         "voxel_size_mm": [0.6, 0.6, 3.0], "mask": "Case01_pred.nii.gz",
    ...         "flags": ["the mask reaches the lowest slice: the images may end within the organ"]}
    >>> print(answer_text({"cases": [line], "compared": "Volumes are not compared."}))
    case    size     mask
    Case01  41.3 ml  Case01_pred.nii.gz
    <BLANKLINE>
    1 of 1 cases segmented.
    Look at: Case01: the mask reaches the lowest slice: the images may end within the organ
    Volumes are not compared.
    Remarks are about border and size only. Before you use a mask, look at it.
    """
    lines = table["cases"]
    with_ratio = any("vertical_cup_to_disc_ratio" in line for line in lines)
    rows = [["case", "size", *["cup to disc"] * with_ratio, "mask"]]
    for line in lines:
        row = [str(line["case"]), NOTHING]
        if "share" in line:
            row[1] = size_words(line, has_real_spacing(line))
        if with_ratio:
            ratio = line.get("vertical_cup_to_disc_ratio")
            row.append(NOTHING if ratio is None else f"{ratio:.2f}")
        rows.append([*row, str(line.get("mask", line["status"]))])

    segmented = sum(line["status"] == "segmented" for line in lines)
    found = [*in_columns(rows), "", f"{segmented} of {len(lines)} cases segmented."]
    for line in lines:
        for remark in [*line.get("flags", []), *line.get("problems", [])]:
            found.append(f"Look at: {line['case']}: {remark}")
    if table.get("compared"):
        found.append(table["compared"])
    if segmented:
        found.append(ONLY)
    if files := table.get("files"):
        found.append(count_of_files(files))
    return "\n".join(found)


def answer_csv(lines: Sequence[Mapping[str, Any]]) -> str:
    """The cases as a CSV file: a row for each, texts safe in a spreadsheet."""
    rows = []
    for line in lines:
        rows.append({key: _cell(value) for key, value in line.items()})
    return csv_text(list(dict.fromkeys(key for line in lines for key in line)), rows)


def _cell(value: Any) -> Any:
    return "; ".join(map(str, value)) if isinstance(value, list) else value


def compare_sizes(results: Sequence[dict[str, Any]]) -> str:
    """Flag the masks whose sizes are unlike those of the batch.

    The model's recipe does not hold the volumes of its training: they are the hospitals' own. So
    each is compared with the median of the batch, by its logarithm. Volumes are products of three
    lengths, so half and twice the median are as unlike. Flagged is what is more than
    :data:`MOST_DEVIATIONS` robust standard deviations away, between the two factors.

    Args:
        results: of the cases that have a mask: ``share`` of the image, and of volumes
            ``millilitres`` and ``voxel_size_mm``. They get ``flags``.

    Returns:
        A sentence: with what the sizes were compared.

    >>> results = [{"millilitres": volume, "voxel_size_mm": [1, 1, 3]} for volume in
    ...            (30.0, 34.0, 41.0, 38.0, 2.0)]
    >>> compare_sizes(results)
    'Volumes are compared with the median of this batch, 34.0 ml.'
    >>> results[4]["flags"]
    ['2.0 ml is far below the median of this batch, 34.0 ml: look at it']
    """
    in_millilitres = all(map(has_real_spacing, results))
    name = "millilitres" if in_millilitres else "share"
    measured = [result for result in results if result[name]]
    if len(measured) < LEAST_CASES:
        return (
            f"Volumes are not compared: that takes {LEAST_CASES} masks or more, here are "
            f"{len(measured)}."
        )
    middle = median(float(result[name]) for result in measured)
    middle_words = size_words({name: middle}, in_millilitres)
    distances = [math.log(result[name] / middle) for result in measured]
    deviation = DEVIATION_OF_MAD * median(map(abs, distances))
    limit = max(MOST_DEVIATIONS * deviation, math.log(LEAST_FACTOR))
    limit = min(limit, math.log(MOST_FACTOR))
    for result, distance in zip(measured, distances, strict=True):
        if abs(distance) > limit:
            direction = "below" if distance < 0 else "above"
            size = size_words(result, in_millilitres)
            result.setdefault("flags", []).append(
                f"{size} is far {direction} the median of this batch, {middle_words}: look at it"
            )
    compared = "Volumes" if in_millilitres else "Sizes"
    return f"{compared} are compared with the median of this batch, {middle_words}."


def has_real_spacing(result: Mapping[str, Any]) -> bool:
    """Whether a case's voxels have a size in mm: 1 x 1 x 1 is what files without one say."""
    return any(side != 1 for side in result.get("voxel_size_mm", ()))


def size_words(result: Mapping[str, Any], in_millilitres: bool) -> str:
    """The size of a mask: in ml, or in per cent of the image.

    >>> size_words({"millilitres": 41.26}, True), size_words({"share": 0.0123}, False)
    ('41.3 ml', '1.23 %')
    """
    if in_millilitres:
        return f"{result['millilitres']:.1f} ml"
    return f"{100 * result['share']:.2f} %"


def in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines, each column as wide as its longest text.

    >>> in_columns([["case", "size"], ["Case01", "3 ml"]])
    ['case    size', 'Case01  3 ml']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines
