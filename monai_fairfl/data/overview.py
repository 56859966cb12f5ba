# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""All sites side by side: what each holds, what is wrong, and which cases occur twice."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monai_fairfl.data.checks import check_duplicates, check_label_values, summary_of
from monai_fairfl.data.datalist import site_datalist
from monai_fairfl.data.inspection import Inspection, inspect_site
from monai_fairfl.data.layouts import PARTS, CaseFiles
from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.utils.files import safe_name
from monai_fairfl.utils.tables import text_of_table
from monai_fairfl.utils.terminal import warnings_as_notes


def overview(
    sites: Mapping[str, str | os.PathLike[str]],
    structures: Sequence[str] = (),
    stereo: bool | None = None,
    noticed: Sequence[str] = (),
    reading: Callable[[str], None] = lambda site: None,
    **split: Any,
) -> tuple[dict[str, Any], str]:
    """Read every file of every site once, and report what each holds.

    Sites with problems are reported too. Nothing is written.

    Args:
        sites: site -> its folder or data list, as :func:`~monai_fairfl.data.site_folders` gives
            them.
        structures: names of nested structures whose pixel values are looked for, the outermost
            first.
        stereo: whether photographs are pairs of views; by their shape where it is not given.
        noticed: notes that the caller already has, such as on folders that are no site.
        reading: called with the name of each site before its files are read.
        split: arguments of :func:`~monai_fairfl.data.split_cases`.

    Returns:
        For JSON: ``sites`` (see :func:`~monai_fairfl.data.check_cases`, and the number of cases in
        each part), ``warnings`` and ``problems``, sentences; and the same as a table and lines of
        text.

    >>> import tempfile
    >>> from monai_fairfl.data import SITES, site_folders, write_sites
    >>> root = tempfile.mkdtemp()
    >>> _ = write_sites(root, sites=SITES[:2], size=(24, 24, 6), cases=4)
    >>> data, text = overview(site_folders(root))
    >>> data["problems"], data["sites"]["alder"]["training"], text.splitlines()[-1]
    ([], 2, '2 site(s), 0 note(s), 0 problem(s) that would stop a training')
    """
    inspections: dict[str, Inspection] = {}
    datalists: dict[str, dict[str, list[CaseFiles]]] = {}
    for name, path in sites.items():
        reading(name)
        try:
            inspection = inspect_site(path, structures, stereo=stereo)
        except DataError as error:
            inspections[name] = Inspection(name, "–", [], [str(error)], [])
            continue
        inspections[name] = inspection
        if inspection.problems:
            continue
        try:
            with warnings_as_notes() as notes_on_split:
                datalists[name] = site_datalist(path, None, structures, inspection.values, **split)
            inspection.notes.extend(notes_on_split)
        except DataError as error:
            inspections[name] = inspection._replace(problems=[str(error)])

    notes = list(noticed)
    problems: list[str] = []
    for name in sites if len(sites) > 1 else ():
        # One hospital's own folder is no name in a federation.
        try:
            safe_name(name, "the name of the hospital's folder")
        except ConfigError as error:
            problems.append(str(error))
    summaries: dict[str, dict[str, Any]] = {}
    for name, inspection in inspections.items():
        notes.extend(inspection.notes)
        problems.extend(f"site {name!r}: {problem}" for problem in inspection.problems)
        sizes = {part: len(cases) for part, cases in datalists.get(name, {}).items()}
        summaries[name] = summary_of(inspection) | sizes
    notes.extend(check_duplicates(inspections))
    notes.extend(check_label_values(inspections))

    text = [as_table(summaries), ""]
    text.extend(f"note: {note}" for note in notes)
    text.extend(f"problem: {problem}" for problem in problems)
    text.append(
        f"{len(inspections)} site(s), {len(notes)} note(s), {len(problems)} problem(s) that would"
        " stop a training"
    )
    data = {"sites": summaries, "warnings": notes, "problems": problems}
    return data, "\n".join(text)


TITLES = ("Site", "Layout", "Cases", "Size", "Channels", "Spacing, mm", "Labels", "Empty", "Split")


def as_table(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    """Sites side by side, for a terminal.

    >>> case = {"shape": [4, 6], "channels": 3, "labels": [0, 255], "gland_slices": 1}
    >>> site = {"layout": "folders", "num_cases": 1, "labels": [0, 255], "cases": [case]}
    >>> as_table({"elm": site}).splitlines()[-1].split()
    ['elm', 'folders', '1', '4', 'x', '6', '3', '0,', '255', '0', '–']
    """
    return text_of_table(TITLES, [_row(site, summary) for site, summary in summaries.items()])


def _row(site: str, summary: Mapping[str, Any]) -> list[str]:
    """The cells of a site, in the order of :data:`TITLES`."""
    cases = summary["cases"]
    shapes = [case["shape"] for case in cases]
    channels = [[case.get("channels", 1)] for case in cases]
    spacings = [case["spacing"] for case in cases if "spacing" in case]
    label_lines = [", ".join(str(label) for label in summary["labels"])]
    for name, (low, high) in summary.get("values", {}).items():
        label_lines.append(f"{name} {low}-{high}")
    num_empty = sum(1 for case in cases if not case["gland_slices"])
    part_sizes = [str(summary[part]) for part in PARTS if part in summary]
    return [
        site,
        summary["layout"],
        str(summary["num_cases"]),
        _range(shapes),
        _range(channels),
        _range(spacings),
        "\n".join(label_lines),
        str(num_empty),
        "/".join(part_sizes) or "–",
    ]


def _range(rows: Sequence[Sequence[float]]) -> str:
    """Each column as one number or as its least and greatest.

    >>> _range([[384, 384, 15], [384, 384, 24]])
    '384 x 384 x 15-24'
    """
    ranges = []
    for column in zip(*rows):
        low = min(column)
        high = max(column)
        ranges.append(f"{low:g}" if low == high else f"{low:g}-{high:g}")
    return " x ".join(ranges)
