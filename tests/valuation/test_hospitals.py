# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Hospitals that train a bundle are valued: by their own runs, and by the command."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import warm_python
from helpers.bundle_runs import command, federation, run

from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.errors import FederationError
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.report import write_report
from monai_fairfl.run_folder.ledger import read_ledger
from monai_fairfl.strategies import FedAvg, QFedAvg
from monai_fairfl.valuation import Reconstruction, Retraining

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def two(hospitals: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two of the hospitals."""
    root = tmp_path_factory.mktemp("two")
    for site in ("alder", "cedar"):
        shutil.copytree(hospitals / site, root / site)
    return root


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """Every request that a client of this process answers."""
    seen: list[Request] = []
    answer = FairMonaiAlgo.answer

    def listen(client: FairMonaiAlgo, request: Request) -> Reply:
        seen.append(request)
        return answer(client, request)

    monkeypatch.setattr(FairMonaiAlgo, "answer", listen)
    return seen


def read(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text())
    return content


def mean_dice(scores: Mapping[str, Any]) -> float:
    """The mean over the sites of their mean scores."""
    return sum(score["mean"]["value"] for score in scores.values()) / len(scores)


@pytest.mark.long
def test_hospitals_values_add_up_and_a_second_run_measures_nothing(
    two: Path, tmp_path: Path, asked: list[Request]
) -> None:
    run_dir = tmp_path / "run"
    valuations = [Reconstruction("exact"), Reconstruction("gtg", "worst")]
    settings = {"record_updates": True, "valuations": valuations}
    federation(two, run_dir, FedAvg(), **settings).run()
    file = run_dir / "valuations" / "reconstruction-multi_round-exact-mean.json"
    found = read(file)
    total = sum(value["value"] for value in found["values"].values())
    assert total == pytest.approx(found["total"], abs=1e-12)

    write_report([run_dir])
    page = (run_dir / "report.html").read_text()
    assert "What each site is worth" in page
    assert "GTG-Shapley of the Dice of the worst site" in page

    records = read_ledger(run_dir / "ledger.jsonl")
    # Layers in the order in which they run.
    assert records[0]["layers"][0] == "input_block.conv1.conv"
    assert records[0]["layers"][-1].startswith("output_block")

    # FedAvg's values share out what the training gained.
    measured = records[1]["measurements"].items()
    begun = mean_dice({client: scores["global_score"] for client, scores in measured})
    closing = records[-1]["scores"].items()
    ended = mean_dice({client: scores["own"]["score"] for client, scores in closing})
    assert found["total"] == pytest.approx(ended - begun, abs=1e-6)

    # Two rounds of two clients, each with four coalitions.
    assert sum(request.run == "valuation" for request in asked) == 2 * 2 * 4

    ledger = (run_dir / "ledger.jsonl").read_bytes()
    asked.clear()
    federation(two, run_dir, FedAvg(), resume=True, **settings).run()
    # Only the run's own closing scores.
    for request in asked:
        assert request.task != "train"
        assert request.run != "valuation"
    assert (run_dir / "ledger.jsonl").read_bytes() == ledger
    assert read(file) == found


@pytest.mark.long
def test_after_a_site_left_the_values_are_of_the_sites_that_stayed(
    hospitals: Path, tmp_path: Path
) -> None:
    everybody = {"site_names": ["alder", "cedar", "rowan"], "rounds": 1}
    stayed = {"site_names": ["alder", "cedar"], "valuations": [Retraining()], "rounds": 2}
    federation(hospitals, tmp_path / "run", FedAvg(), **everybody).run()
    federation(hospitals, tmp_path / "run", FedAvg(), resume=True, **stayed).run()
    federation(hospitals, tmp_path / "clean", FedAvg(), **stayed).run()
    (after_one_left,) = (tmp_path / "run" / "valuations").glob("*.json")
    (clean,) = (tmp_path / "clean" / "valuations").glob("*.json")
    assert read(after_one_left)["values"] == read(clean)["values"]
    assert read(after_one_left)["total"] == read(clean)["total"]


def test_a_failed_valuation_leaves_the_report(
    two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise FederationError("client 'cedar' did not measure")

    monkeypatch.setattr("monai_fairfl.bundle.valuing.value_run", fail)
    settings = {"valuations": [Retraining()], "rounds": 1, "report": True}
    with pytest.raises(FederationError, match="cedar"):
        federation(two, tmp_path / "failed", FedAvg(), **settings).run()
    assert (tmp_path / "failed" / "report.html").is_file()


@pytest.mark.long
def test_all_strategies_are_compared_with_one_retrained_reference(
    two: Path, tmp_path: Path, asked: list[Request]
) -> None:
    run_dir = tmp_path / "run"
    strategies = [FedAvg(), QFedAvg()]
    valuations = [Retraining(data="test")]
    federation(two, run_dir, strategies, rounds=1, valuations=valuations).run()

    results = []
    for strategy in strategies:
        folder = run_dir / strategy.name / "valuations"
        results.append(read(folder / "retraining-FedAvg-leave_one_out-mean-test.json"))
    assert results[0]["values"] == results[1]["values"]
    assert results[0]["own"] != results[1]["own"]

    trained = {request.run for request in asked if request.task == "train"}
    assert trained == {"FedAvg", "QFedAvg", "without-alder", "without-cedar"}
    # The model of all sites is not trained a second time.
    assert torch.load(run_dir / "FedAvg" / "models" / "global.pt")
    assert not list((run_dir / "valuations").glob("*/FedAvg/all"))


@pytest.mark.long
def test_the_command_values_a_run_and_goes_on_after_a_kill(two: Path, tmp_path: Path) -> None:
    valuations = tmp_path / "run" / "valuations"
    retraining = [{"_target_": "monai_fairfl.valuation.Retraining", "method": "leave_one_out"}]
    arguments = command(two, tmp_path / "run", "--rounds", "1")
    arguments += ["--valuations", json.dumps(retraining)]

    process = warm_python.start(arguments, tmp_path)
    deadline = time.time() + 120
    while process.is_alive() and time.time() < deadline:
        if list(valuations.glob("*/FedAvg/without-alder/ledger.jsonl")):
            process.kill()
            break
        time.sleep(0.01)
    process.join(timeout=60)
    assert process.exitcode is not None
    assert not list(valuations.glob("*.json"))

    resumed = [*arguments, "--resume", "True"]
    done = run(resumed, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Valuation retraining-FedAvg-leave_one_out-mean of FedAvg" in done.stdout
    assert "model 3 of 3" in done.stdout

    misspelt = run([*resumed, "--valuations", '[{"_target_": "my.Retrainin"}]'], tmp_path)
    assert misspelt.returncode == 2
    assert "unknown valuation 'my.Retrainin'" in misspelt.stderr

    (folder,) = valuations.glob("retrained-*/FedAvg")
    assert len((folder / "measured.jsonl").read_text().splitlines()) == 4
