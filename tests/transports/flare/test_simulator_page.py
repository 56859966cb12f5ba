# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The page ``docs/flare_simulator.md`` and its script."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from helpers.federations import CLIENTS, assert_same_run  # noqa: E402
from helpers.page_tables import names_in_first_column  # noqa: E402

from monai_fairfl.run_folder.ledger import read_ledger  # noqa: E402
from monai_fairfl.transports.flare.server.curves import curve_points  # noqa: E402

pytestmark = pytest.mark.nvflare
CHECKOUT = Path(__file__).parents[3]
PAGE = (CHECKOUT / "docs" / "flare_simulator.md").read_text()
SCRIPT = CHECKOUT / "docs" / "examples" / "flare" / "simulate.py"


def command_of_the_page() -> list[str]:
    """The words after ``python docs/examples/flare/simulate.py``."""
    for line in PAGE.splitlines():
        if line.startswith("python docs/examples/flare/"):
            return line.split()[2:]
    raise AssertionError("the page has no such command")


@pytest.fixture(scope="module")
def simulated(hospitals: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workspace after the page's command, for three of the hospitals."""
    folder = tmp_path_factory.mktemp("simulator")
    (folder / "hospitals").symlink_to(hospitals)
    left = folder / "flare" / "FedCE" / "server" / "of an earlier run"
    left.mkdir(parents=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(CHECKOUT),
        "HOME": str(folder),
        "OMP_NUM_THREADS": "1",
    }
    python = [sys.executable, "-W", "ignore"]
    command = [*python, str(SCRIPT), *command_of_the_page(), "--sites", *CLIENTS]
    with open(folder / "log.txt", "w") as log:
        done = subprocess.run(
            command, cwd=folder, env=environment, stdout=log, stderr=log, timeout=400
        )
    assert done.returncode == 0, (folder / "log.txt").read_text()[-2000:]
    assert not left.exists(), "the page says that the simulator empties its workspace"
    return folder / "flare" / "FedCE"


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.simulator
def test_the_script_gives_the_ledger_of_one_process(
    simulated: Path, one_process: Callable[..., Path]
) -> None:
    expected = one_process("FedCE")
    found = simulated / "server" / "fairfl" / "FedCE"
    assert (found / "ledger.jsonl").read_bytes() == (expected / "ledger.jsonl").read_bytes()
    assert_same_run(expected, found)


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.simulator
def test_results_lie_where_the_page_says(simulated: Path) -> None:
    named = names_in_first_column(PAGE, "| in `flare/FedCE/`")
    assert len(named) == 6
    for name in named:
        assert (simulated / name).exists(), name
    run = simulated / "server" / "fairfl" / "FedCE"
    for name in ("ledger.jsonl", "models", "report.html", "checkpoints"):
        assert (run / name).exists(), name
    results = simulated / "server" / "simulate_job" / "fairfl"
    for name in ("models", "ledger.jsonl"):
        assert (results / name).exists(), name


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.simulator
def test_tensorboard_shows_every_curve_of_the_ledger(simulated: Path) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    ).EventAccumulator
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    boards = simulated / "server" / "simulate_job" / "tb_events"
    for events in boards.rglob("events.out.tfevents.*"):
        folder = events.parent.name
        site = folder if folder in CLIENTS else ""
        board = accumulator(str(events))
        board.Reload()
        for tag in board.Tags()["scalars"]:
            points = found.setdefault((site, tag), [])
            for point in board.Scalars(tag):
                points.append((point.step, point.value))
    expected: dict[tuple[str, str], list[tuple[int, float]]] = {}
    records = read_ledger(simulated / "server" / "fairfl" / "FedCE" / "ledger.jsonl")
    for record in records:
        for site, tag, value, step in curve_points(record):
            # The board stores float32.
            rounded = pytest.approx(value, rel=1e-6)
            expected.setdefault((site, tag), []).append((step, rounded))

    assert found == expected

    shown = PAGE.split("| tag | meaning |")[1].split("\n\n")[0]
    tags = {tag for _, tag in expected}
    assert set(re.findall(r"`(\w+(?:/mean)?)`", shown)) - {"alder"} <= tags
    assert "leave_one_out_error/mean" in tags
    weights = []
    for record in records:
        if record["kind"] == "round":
            weights.append((record["round"], record["aggregation"]["alder"]))
    assert expected["alder", "aggregation_weight"] == weights


def test_the_page_shows_the_script() -> None:
    shown = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    inside = [line.strip() for line in SCRIPT.read_text().splitlines()]
    for line in shown.splitlines():
        assert line.strip() in inside


def test_filters_and_early_stopping_are_written_as_the_page_shows(tmp_path: Path) -> None:
    from monai_fairfl.transports.flare import FairFLRecipe

    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    filters, stopping = blocks[1:]
    arguments = "bundle='prostate_mri_segmentation', min_clients=2"
    found = {"FairFLRecipe": FairFLRecipe}
    exec(f"recipe = {stopping.strip().replace('...', arguments)}\n{filters}", found)
    found["recipe"].export(str(tmp_path))  # type: ignore[attr-defined]
    (server,) = tmp_path.rglob("config_fed_server.json")
    (client,) = tmp_path.rglob("config_fed_client.json")
    assert "global_score >= 0.85" in server.read_text()
    assert "PercentilePrivacy" in client.read_text()
