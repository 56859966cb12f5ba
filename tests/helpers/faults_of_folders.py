# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Faults of a run's folder: a crash at a chosen file, a full disk, a ledger that was forged."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from monai_fairfl import Federation, read_ledger
from monai_fairfl.run import Ledger

Records = list[dict[str, Any]]


def crash_before_checkpoint(federation: Federation, number: int) -> None:
    """Run ``federation`` until the checkpoint of round ``number`` would get its name."""
    replace = os.replace

    def crash(source: Any, target: Any) -> None:
        if str(target).endswith(f"checkpoints/round-{number:04d}"):
            raise KeyboardInterrupt
        replace(source, target)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", crash)
        federation.run()


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
