# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The result of a finished run that goes on for more rounds: a copy, ``ended-NNNN`` in its folder.

The end of the longer run replaces the closing scores and the models.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from monai_fairfl.run_folder.ledger import read_ledger

PREFIX = "ended-"
SCHEDULE_AND_LEDGER = ("schedule.json", "ledger.jsonl")


def keep_result(run_dir: Path, rounds: int) -> Path:
    """Copy the ledger, the schedule and the models of a run that has ended.

    Args:
        run_dir: of the run.
        rounds: number of its rounds.

    Returns:
        The folder of the copies. An earlier copy after as many rounds is replaced: a crash may have
        cut it short.
    """
    folder = run_dir / f"{PREFIX}{rounds:04d}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if (run_dir / "models").exists():
        shutil.copytree(run_dir / "models", folder / "models")
    # The ledger goes last: by it the folder is a run.
    for name in SCHEDULE_AND_LEDGER:
        if (run_dir / name).exists():
            shutil.copy2(run_dir / name, folder / name)
    return folder


def kept_results(run_dir: Path) -> list[Path]:
    """The folders of the results that a run had before it went on, in order."""
    return sorted(run_dir.glob(f"{PREFIX}*"))


def best_at_earlier_ends(run_dir: Path) -> list[Mapping[str, float]]:
    """Round and score of the best global model, as each earlier end of a run names it.

    The end itself may have found it, after the last checkpoint was written.
    """
    found = []
    for folder in kept_results(run_dir):
        ledger = folder / "ledger.jsonl"
        # A crash may have cut the copy short.
        records = read_ledger(ledger) if ledger.exists() else []
        if records and records[-1]["kind"] == "end" and records[-1]["best"]:
            found.append(records[-1]["best"])
    return found
