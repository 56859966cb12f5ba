# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The notebook runs from its first cell to its last, with one round."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import warm_python
from helpers.checkout import CHECKOUT

NOTEBOOK = CHECKOUT / "docs" / "examples" / "first_federation.ipynb"


def test_the_notebook_runs(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert "ROUNDS = 12" in text and 'SMALL = {"size": [64, 64]' in text
    text = text.replace("ROUNDS = 12", "ROUNDS = 1").replace("[64, 64]", "[32, 32]")
    (tmp_path / "first_federation.py").write_text(text)
    done = warm_python.run(["-m", "first_federation"], tmp_path, MPLBACKEND="Agg")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "willow" in done.stdout
    for name in ("contributions.png", "willow.png", "runs/first/report.html"):
        assert (tmp_path / name).stat().st_size > 1000
