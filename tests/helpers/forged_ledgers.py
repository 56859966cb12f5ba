# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Ledgers whose records were changed by somebody who mended the chain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from monai_fairfl import read_ledger
from monai_fairfl.run_folder import Ledger

Records = list[dict[str, Any]]


def forge(run: Path, edit: Callable[[Records], object]) -> None:
    """Change records of a run, with all later hashes mended."""
    records = read_ledger(run / "ledger.jsonl")
    edit(records)
    (run / "ledger.jsonl").unlink()
    ledger = Ledger(run / "ledger.jsonl")
    for record in records:
        ledger.append(record)
