# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Reads and changes ledgers that tests have written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_lines(run: Path) -> list[dict[str, Any]]:
    """The records of a run."""
    return [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]


def replace_closing_scores(run: Path, scores: dict[str, Any]) -> Path:
    """Change the last record, which nothing follows and so no chain covers."""
    file = run / "ledger.jsonl"
    *lines, last = file.read_text().splitlines()
    closing = json.dumps({**json.loads(last), "scores": scores})
    file.write_text("\n".join([*lines, closing]) + "\n")
    return run
