# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a command was asked for, recorded beside its answer: another question gets a new answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from monai_fairfl.utils.files import write_atomically
from monai_fairfl.utils.plain_values import object_of_json

ASKED = "asked.json"
"""File in which a run records what it was asked for, so that another one never mixes with it."""


def state_of_files(files: Iterable[Path]) -> str:
    """A digest of names, sizes and times: another one where a file came, went or changed."""
    facts: list[tuple[Any, ...]] = []
    for file in sorted(files):
        try:
            # Of a broken link it is the link's own.
            found = file.stat() if file.exists() else file.lstat()
        except PermissionError:
            # In a folder that may be listed and not entered. The run names it.
            facts.append((str(file),))
            continue
        facts.append((str(file), found.st_size, found.st_mtime_ns))
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def record_asked(asked: Mapping[str, Any], folder: Path) -> None:
    """Record in a folder what its answer is to.

    Args:
        asked: plain JSON by name, such as the digest of the model and the folder of the images.
        folder: of the answer.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> record_asked({"model": "ab12", "images": "scans"}, folder)
    >>> is_recorded({"model": "ab12"}, folder), is_recorded({"model": "cd34"}, folder)
    (True, False)
    """
    write_atomically(folder / ASKED, json.dumps(asked, indent=4).encode())


def is_recorded(asked: Mapping[str, Any], folder: Path) -> bool:
    """Whether what a folder records of its question has all of this; not where it has no record."""
    record = folder / ASKED
    if not record.is_file():
        return False
    found = object_of_json(record.read_bytes())
    return {name: found.get(name) for name in asked} == asked
