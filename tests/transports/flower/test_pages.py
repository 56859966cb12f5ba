# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The pages ``docs/flower_simulation.md`` and ``docs/flower_migrating.md``.

``docs/flower_production.md`` is followed in ``test_superlink.py``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import flwr.serverapp.strategy as theirs  # noqa: E402
from helpers.page_blocks import blocks_of_page, recorded  # noqa: E402
from helpers.page_tables import names_in_first_column  # noqa: E402

from monai_fairfl import strategies as ours  # noqa: E402
from monai_fairfl.run_folder.ledger import read_ledger  # noqa: E402

pytestmark = pytest.mark.flower
CHECKOUT = Path(__file__).parents[3]
BLOCKS = {block.language: block for block in blocks_of_page("docs/flower_simulation.md")}
PAGE = (CHECKOUT / "docs" / "flower_simulation.md").read_text()
MIGRATING = (CHECKOUT / "docs" / "flower_migrating.md").read_text()


def run_here(words: list[str], folder: Path) -> str:
    """Run a command of this checkout in a folder; returns what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": "1"}
    environment |= {"RAY_memory_monitor_refresh_ms": "0", "RAY_worker_niceness": "0"}
    command = [sys.executable, "-W", "ignore", *words]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.long
def test_the_simulation_page_is_enough(tmp_path: Path) -> None:
    first, install, data, simulate = recorded(BLOCKS["bash"], tmp_path)
    assert first == ["pip", "install", "torch"]
    assert install[:3] == ["pip", "install", ".[flower,report]"]
    run_here(["-m", "monai_fairfl", *data[1:]], tmp_path)
    shown = run_here(["-m", "monai_fairfl", *simulate[1:], "--num-rounds", "1"], tmp_path)

    run, site, log = names_in_first_column(PAGE, "| in `flower/`")
    folder = tmp_path / "flower"
    for name in ("ledger.jsonl", "models", "report.html", "checkpoints"):
        assert (folder / run / name).exists(), name
    for name in ("datalist.json", "state"):
        assert (folder / site / name).exists(), name
    assert (folder / log).stat().st_size > 0
    assert f"Report: {folder / run / 'report.html'}" in shown
    assert read_ledger(folder / run / "ledger.jsonl")[-1]["kind"] == "end"
    verified = run_here(["-m", "monai_fairfl", "verify", f"flower/{run}"], tmp_path)
    assert "1 round" in verified

    (tmp_path / "simulate.py").write_text(BLOCKS["python"].text + "print(run)\n")
    run_folder = run_here(["simulate.py"], tmp_path).splitlines()[-1]
    assert json.loads((Path(run_folder) / "config.json").read_text())["rounds"] == 1


def test_the_strategies_that_the_migrating_page_compares_exist() -> None:
    rows = MIGRATING.split("| Flower, `flwr.serverapp.strategy`")[1].split("\n\n")[0]
    named = names_in_first_column(MIGRATING, "| Flower, `flwr.serverapp.strategy`")
    assert len(named) == 13
    for name in named:
        known = [each for each in dir(theirs) if each.startswith(name.removesuffix("..."))]
        assert known, name
    for name in ("FedAvg", "QFedAvg", "FedCE", "CGSV", "ShapFed", "FedISM", "FedCI", "AFL"):
        assert name in rows and hasattr(ours, name)
