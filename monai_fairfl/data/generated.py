# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Folders of generated sites: what is written once for every kind of image."""

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
    write_case: Callable[[Path, Any, int], None],
) -> list[str]:
    """Write every case of every site that is not there yet, and ``sites.json``, which says how the
    sites differ.

    Args:
        root: folder to write to; made if missing.
        sites: dataclasses with ``name``, ``cases`` and whatever makes their images.
        seed: of all images.
        size: of all images.
        cases: number of cases of every site instead of each site's own.
        workers: threads.
        write_case: (folder of the site, site, number) -> the case's files, left alone where they
            are whole.

    Returns:
        The sites' names, sorted.

    Raises:
        DataError: the folder holds generated sites of another seed, size or shift.
    """
    sites = [site if cases is None else replace(site, cases=cases) for site in sites]
    root = Path(root)
    description = _describe(root / "sites.json", sites, {"seed": seed, "size": list(size)})
    for site in sites:
        (root / site.name).mkdir(parents=True, exist_ok=True)
    write_atomically(root / "sites.json", json.dumps(description, indent=2).encode())
    todo = [(root / site.name, site, number) for site in sites for number in range(site.cases)]
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda arguments: write_case(*arguments), todo))
    return sorted(site.name for site in sites)


def _describe(path: Path, sites: Sequence[Any], made: dict[str, Any]) -> dict[str, Any]:
    """What ``sites.json`` says after this call; refuses to mix two different sets of images in one
    folder.
    """
    old: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {**made, "sites": {}}
    described = {site.name: asdict(site) for site in sites}
    clash = [key for key in made if old[key] != made[key]]
    for name, entry in described.items():
        before = old["sites"].get(name, entry)
        clash += [f"{name}.{key}" for key in entry if key != "cases" and before[key] != entry[key]]
        entry["cases"] = max(entry["cases"], before["cases"])
    if clash:
        raise DataError(
            f"{path} was written with another {', '.join(clash)}. Delete {path.parent} or choose another root."
        )
    return {**made, "sites": {**old["sites"], **described}}
