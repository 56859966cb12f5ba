# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The notebook runs from its first cell to its last, with one round."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import warm_python
from helpers.checkout import CHECKOUT
from helpers.page_blocks import FEW

NOTEBOOK = CHECKOUT / "docs" / "examples" / "first_federation.ipynb"


def test_the_notebook_runs(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    for written, tiny in {
        "import write_demo": "import pelvis",
        'write_demo("hospitals")': FEW,
        "ROUNDS = 12": "ROUNDS = 1",
        "local_epochs=4": 'local_epochs=1, jobs=1, evaluate=[], final=["test_score"]',
        '"size": [64, 64], "channels": [8, 16, 32]': '"size": [32, 32], "channels": [4, 8, 8]',
    }.items():
        assert text.count(written) == 1
        text = text.replace(written, tiny)
    (tmp_path / "first_federation.py").write_text(text)
    done = warm_python.run(["-m", "first_federation"], tmp_path, MPLBACKEND="Agg")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "willow" in done.stdout
    for name in ("contributions.png", "willow.png", "runs/first/report.html"):
        assert (tmp_path / name).stat().st_size > 1000
