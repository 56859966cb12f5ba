# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Hospitals that train a bundle are valued by their own runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.bundle_runs import BUNDLE, federation

from monai_fairfl import FairMonaiAlgo, Reply, Request, read_ledger
from monai_fairfl.errors import ConfigError
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
    settings = {"record_updates": True, "valuations": [Reconstruction("exact")]}
    federation(two, run_dir, FedAvg(), **settings).run()
    file = run_dir / "valuations" / "reconstruction-multi_round-exact-mean.json"
    found = read(file)
    total = sum(value["value"] for value in found["values"].values())
    assert total == pytest.approx(found["total"], abs=1e-12)
    assert set(found["own"]) == {"alder", "cedar"} and found["fidelity"] is not None

    # FedAvg's values share out what the training gained.
    records = read_ledger(run_dir / "ledger.jsonl")
    measured = records[1]["measurements"].items()
    begun = mean_dice({client: scores["global_score"] for client, scores in measured})
    closing = records[-1]["scores"].items()
    ended = mean_dice({client: scores["own"]["score"] for client, scores in closing})
    assert found["total"] == pytest.approx(ended - begun, abs=1e-6)
    # Two rounds of two clients, each with four coalitions.
    assert sum(request.run == "valuation" for request in asked) == 2 * 2 * 4

    asked.clear()
    federation(two, run_dir, FedAvg(), resume=True, **settings).run()
    assert not any(request.run == "valuation" or request.task == "train" for request in asked)
    assert read(file) == found


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
    assert torch.load(run_dir / "FedAvg" / "models" / "global.pt")


def test_what_would_fail_after_the_training_is_refused_before(two: Path, tmp_path: Path) -> None:
    settings: dict[str, dict[str, Any]] = {
        "record_updates": {"valuations": [Reconstruction()]},
        "different": {"valuations": [Retraining(), Retraining()]},
        "'prostat'": {"valuations": [Retraining(utility="prostat")]},
        "local_norm": {"valuations": [Retraining()], "local_norm": True},
        "buffers": {"valuations": [Retraining()], "buffers": "local"},
    }
    for words, given in settings.items():
        with pytest.raises(ConfigError, match=words):
            federation(two, tmp_path / "run", FedAvg(), **given).run()
        assert not (tmp_path / "run").exists()
    assert BUNDLE.is_dir()
