# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The net: numbers and names that stay while walls move.

A row that moved is named, with its old and its new value. If it was meant to move, say why in the
commit, after ``make net-update``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from helpers.net_programs import play

HERE = Path(__file__).parent


@pytest.mark.parametrize("kind", ["near", "exact"])
def test_no_row_moved(kind: str, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    command = [sys.executable, str(HERE / "play.py"), "--only", kind, "--out", str(rows)]
    played = subprocess.run(command, capture_output=True, text=True)
    assert played.returncode == 0, played.stderr[-4000:]

    lines = play.differences(play.read_rows(HERE / f"{kind}.csv"), play.read_rows(rows))
    assert not lines, "\n".join(lines)
