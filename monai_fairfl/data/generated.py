# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Folders of generated sites: what is written in the same way for every kind of image."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
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
    names: tuple[str, str],
    make: Callable[[Any, int], Iterable[bytes]],
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
        names: of a case's image and mask, relative to the site's folder: formats of site and
            number.
        make: makes a case's image and mask, as files, by site and number.

    Returns:
        The sites' names, sorted.

    Raises:
        DataError: the folder holds generated sites of another seed, size or shift.
    """
    root = Path(root)
    path = root / "sites.json"
    sites = [site if cases is None else replace(site, cases=cases) for site in sites]
    described: dict[str, Any] = {"seed": seed, "size": list(size), "sites": {}}
    before = json.loads(path.read_text()) if path.exists() else described
    described["sites"] |= before["sites"]
    for site in sites:
        entry = described["sites"][site.name] = asdict(site)
        # A site may get further cases.
        known = before["sites"].setdefault(site.name, entry)
        entry["cases"] = known["cases"] = max(entry["cases"], known["cases"])
    if described != before:
        raise DataError(
            f"{path} was written with another seed, size or site. Delete {root}, or name another"
            " folder with --out."
        )
    for site in sites:
        (root / site.name).mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(described, indent=2).encode())

    def write_case(site: Any, number: int) -> None:
        paths = [root / site.name / name.format(site, number) for name in names]
        # Files are written whole or not at all.
        if not all(path.exists() for path in paths):
            for path, content in zip(paths, make(site, number)):
                write_atomically(path, content)

    numbered = [(site, number) for site in sites for number in range(site.cases)]
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(write_case, *zip(*numbered)))
    return sorted(site.name for site in sites)
