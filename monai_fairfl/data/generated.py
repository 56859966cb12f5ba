# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Folders of generated sites: what is written in the same way for every kind of image."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from monai_fairfl.errors import DataError
from monai_fairfl.utils.files import write_atomically


def write_generated(
    root: str | os.PathLike[str],
    sites: Sequence[Any],
    seed: int,
    size: Sequence[int],
    cases: int | None,
    workers: int,
    names: Callable[[Any, int], tuple[str, str]],
    make: Callable[[Any, int], tuple[bytes, ...]],
) -> list[str]:
    """Write every case of every site that is not there yet, and ``sites.json``.

    ``sites.json`` describes how the sites differ.

    Args:
        root: folder to write to; made if missing.
        sites: dataclasses with ``name``, ``cases`` and whatever makes their images.
        seed: of all images.
        size: of all images.
        cases: number of cases of every site instead of each site's own.
        workers: threads.
        names: of a case's image and mask, relative to the site's folder, by site and number.
        make: makes a case's image and mask, as files, by site and number.

    Returns:
        The sites' names, sorted.

    Raises:
        DataError: the folder holds generated sites of another seed, size or shift.
    """
    root = Path(root)
    if cases is not None:
        sites = [replace(site, cases=cases) for site in sites]
    path = root / "sites.json"
    settings = {"seed": seed, "size": list(size)}
    described: dict[str, Any] = {**settings, "sites": {}}
    if path.exists():
        described = json.loads(path.read_text())
    differences = [name for name in settings if described[name] != settings[name]]
    for site in sites:
        entry = asdict(site)
        before = described["sites"].get(site.name, entry)
        # A site may get further cases.
        entry["cases"] = before["cases"] = max(entry["cases"], before["cases"])
        differences += [f"{site.name}.{key}" for key in entry if entry[key] != before[key]]
        described["sites"][site.name] = entry
    if differences:
        raise DataError(
            f"{path} was written with another {', '.join(differences)}. Delete {root}, or name"
            " another folder with --out."
        )
    for site in sites:
        (root / site.name).mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(described, indent=2).encode())

    def write_case(site: Any, number: int) -> None:
        paths = [root / site.name / name for name in names(site, number)]
        # Files are written whole or not at all.
        if not all(path.exists() for path in paths):
            for path, content in zip(paths, make(site, number)):
                write_atomically(path, content)

    numbered = [(site, number) for site in sites for number in range(site.cases)]
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(write_case, *zip(*numbered)))
    return sorted(site.name for site in sites)
