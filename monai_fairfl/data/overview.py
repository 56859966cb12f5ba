# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""All sites side by side: what each holds, what is wrong, and which cases occur twice."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from monai_fairfl.data.checks import check_duplicates, summary_of
from monai_fairfl.data.datalist import site_datalist
from monai_fairfl.data.inspection import Inspection, inspect_site
from monai_fairfl.data.layouts import Case
from monai_fairfl.errors import DataError
from monai_fairfl.utils.terminal import noted


def overview(
    sites: Mapping[str, str | os.PathLike[str]],
    structures: Sequence[str] = (),
    stereo: bool | None = None,
    noticed: Sequence[str] = (),
    **split: Any,
) -> tuple[dict[str, Any], str]:
    """Read every file of every site once; also tell of sites with problems, and write nothing.

    Args:
        sites: site -> its folder or data list, as :func:`~monai_fairfl.data.site_folders` gives
            them.
        structures: names of nested structures whose pixel values are looked for, the outermost
            first.
        stereo: whether photographs are pairs of views; by their shape where it is not given.
        noticed: notes from before, such as of folders that are no site.
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
    found: dict[str, Inspection] = {}
    parts: dict[str, dict[str, list[Case]]] = {}
    for name, path in sites.items():
        try:
            found[name] = inspect_site(path, structures, stereo=stereo)
            if not found[name].problems:
                with noted() as more:
                    parts[name] = site_datalist(path, None, structures, found[name].values, **split)
                found[name].notes.extend(more)
        except DataError as error:
            known = found.get(name, Inspection(name, "–", [], [], []))
            found[name] = known._replace(problems=[*known.problems, str(error)])
    notes = [
        *noticed,
        *(note for site in found.values() for note in site.notes),
        *check_duplicates(found, parts),
    ]
    problems = [
        f"site {name!r}: {problem}" for name, site in found.items() for problem in site.problems
    ]
    counts = {
        name: {part: len(cases) for part, cases in split.items()} for name, split in parts.items()
    }
    summaries = {name: summary_of(site) | counts.get(name, {}) for name, site in found.items()}
    closing = f"{len(found)} site(s), {len(notes)} note(s), {len(problems)} problem(s) that would stop a training"
    lines = [
        *(f"note: {note}" for note in notes),
        *(f"problem: {problem}" for problem in problems),
        closing,
    ]
    data = {"sites": summaries, "warnings": notes, "problems": problems}
    return data, "\n".join([as_table(summaries), "", *lines])


def as_table(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    """Sites side by side, for a terminal.

    >>> line = {"image": "a.png", "shape": [4, 6], "channels": 3, "labels": [0, 255], "gland_slices": 1}
    >>> site = {"layout": "folders", "num_cases": 1, "labels": [0, 255], "cases": [line]}
    >>> as_table({"elm": site}).splitlines()[-1].split()
    ['elm', 'folders', '1', '4', 'x', '6', '3', '0,', '255', '0', '–']
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in (
        "Site",
        "Layout",
        "Cases",
        "Size",
        "Channels",
        "Spacing, mm",
        "Labels",
        "Empty",
        "Split",
    ):
        table.add_column(title, overflow="fold")
    for site, summary in summaries.items():
        lines = summary["cases"]
        coded = [f"{name} {low}-{high}" for name, (low, high) in summary.get("values", {}).items()]
        split = [
            str(summary[part]) for part in ("training", "validation", "testing") if part in summary
        ]
        table.add_row(
            site,
            summary["layout"],
            str(summary["num_cases"]),
            _range([line["shape"] for line in lines]),
            _range([[line.get("channels", 1)] for line in lines]),
            _range([line["spacing"] for line in lines if "spacing" in line]),
            "\n".join([", ".join(map(str, summary["labels"])), *coded]),
            str(sum(not line["gland_slices"] for line in lines)),
            "/".join(split) or "–",
        )
    width = max(80, shutil.get_terminal_size((100, 24)).columns)
    console = Console(width=width, markup=False, highlight=False)
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n")


def _range(rows: Sequence[Sequence[float]]) -> str:
    """Each column as one number or as its least and greatest.

    >>> _range([[384, 384, 15], [384, 384, 24]])
    '384 x 384 x 15-24'
    """
    columns = [(min(column), max(column)) for column in zip(*rows)]
    return " x ".join(f"{low:g}" if low == high else f"{low:g}-{high:g}" for low, high in columns)
