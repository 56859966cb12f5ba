# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The net: numbers and names that stay while walls move.

A row that moved is named, with its old and its new value. If it was meant to move, say why in the
commit, after ``make net-update``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from net import play

HERE = Path(__file__).parent


@pytest.mark.parametrize("kind", ["near", "exact"])
def test_no_row_moved(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # It leaves its own folder for those of its parts.
    monkeypatch.chdir(tmp_path)
    rows = {row.name: row for row in play.play([kind], HERE / "adapter.py")}
    lines = play.differences(play.read_rows(HERE / f"{kind}.csv"), rows)
    assert not lines, "\n".join(lines)
