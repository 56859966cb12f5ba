# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The answer of an inference run: a line for each case, for a terminal and for a spreadsheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from monai_fairfl.utils.spreadsheets import csv_text
from monai_fairfl.workflow.findings import has_real_spacing, size_words

NOTHING = "–"

ONLY = "Remarks are about border and size only. Before you use a mask, look at it."
"""What no remark on a case means: a model that never learned the organ may get none."""


def answer_text(table: Mapping[str, Any]) -> str:
    """The cases in columns, and below them what to look at.

    Args:
        table: what a run's ``volumes.json`` or ``ratios.json`` holds.

    >>> line = {"case": "Case01", "status": "segmented", "millilitres": 41.26,
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
    titles = ["case", "size"]
    if with_ratio:
        titles.append("cup to disc")
    rows = [[*titles, "mask"]]
    for line in lines:
        row = [str(line["case"]), _size(line)]
        if with_ratio:
            ratio = line.get("vertical_cup_to_disc_ratio")
            row.append(NOTHING if ratio is None else f"{ratio:.2f}")
        rows.append([*row, str(line.get("mask", line["status"]))])

    found = in_columns(rows)
    segmented = [line for line in lines if line["status"] == "segmented"]
    found += ["", f"{len(segmented)} of {len(lines)} cases segmented."]
    for line in lines:
        for remark in [*line.get("flags", []), *line.get("problems", [])]:
            found.append(f"Look at: {line['case']}: {remark}")
    if table.get("compared"):
        found.append(table["compared"])
    if segmented:
        found.append(ONLY)
    return "\n".join(found)


def answer_csv(lines: Sequence[Mapping[str, Any]]) -> str:
    """The cases as a CSV file: a row for each, texts safe in a spreadsheet."""
    fields = list(dict.fromkeys(key for line in lines for key in line))
    rows = []
    for line in lines:
        rows.append({key: _cell(line.get(key)) for key in fields})
    return csv_text(fields, rows)


def _size(line: Mapping[str, Any]) -> str:
    if "millilitres" in line and has_real_spacing(line):
        return size_words(line["millilitres"], True)
    if "share" in line:
        return size_words(line["share"], False)
    return NOTHING


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return "; ".join(str(item) for item in value)
    return "" if value is None else value


def in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines, each column as wide as its longest text.

    >>> in_columns([["case", "size"], ["Case01", "3 ml"]])
    ['case    size', 'Case01  3 ml']
    """
    widths = []
    for column in zip(*rows, strict=True):
        widths.append(max(len(text) for text in column))
    lines = []
    for row in rows:
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines
