# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Faults of a run's folder: a crash at a chosen file, a full disk, a ledger that was forged."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from monai_fairfl import Federation, read_ledger
from monai_fairfl.run import Ledger

Records = list[dict[str, Any]]

_armed: list[str] = []
_hooked: list[bool] = []


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _armed and event == "os.rename" and str(arguments[1]).endswith(_armed[0]):
        raise KeyboardInterrupt


def crash_before_checkpoint(federation: Federation, number: int) -> None:
    """Run ``federation`` until the checkpoint of round ``number`` would get its name."""
    if not _hooked:
        # Python calls a hook until it ends; this one does nothing unless a name is armed.
        sys.addaudithook(_watch)
        _hooked.append(True)
    _armed.append(f"checkpoints/round-{number:04d}")
    try:
        with pytest.raises(KeyboardInterrupt):
            federation.run()
    finally:
        _armed.clear()


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file may grow beyond ``size`` bytes: the system refuses it as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def leftovers(folder: Path) -> list[Path]:
    """Files and folders that were not written to their end."""
    return [
        path for path in folder.rglob("*") if path.name.startswith(".") and path.name != ".lock"
    ]


def forge(run: Path, edit: Callable[[Records], object]) -> None:
    """Change records of a run, with all later hashes mended."""
    records = read_ledger(run / "ledger.jsonl")
    edit(records)
    (run / "ledger.jsonl").unlink()
    ledger = Ledger(run / "ledger.jsonl")
    for record in records:
        ledger.append(record)
