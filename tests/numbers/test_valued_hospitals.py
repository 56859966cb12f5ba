# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Hospitals that train a bundle are valued by their own runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.bundle_runs import federation

from monai_fairfl import FairMonaiAlgo, Reply, Request, read_ledger
from monai_fairfl.strategies import FedAvg, QFedAvg
from monai_fairfl.valuation import Reconstruction, Retraining


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


def mean_dice(scores: Sequence[Mapping[str, Any]]) -> float:
    return sum(score["mean"]["value"] for score in scores) / len(scores)


def test_values_share_out_the_gain_and_all_strategies_have_one_retrained_reference(
    two: Path, tmp_path: Path, asked: list[Request]
) -> None:
    run_dir = tmp_path / "run"
    strategies = [FedAvg(), QFedAvg()]
    settings: dict[str, Any] = {
        "record_updates": True,
        "clients_per_round": 9,  # more than there are
        "valuations": [Reconstruction("exact"), Retraining(data="test")],
    }
    federation(two, run_dir, strategies, **settings).run()
    rebuilt, retrained = [], []
    for strategy in strategies:
        folder = run_dir / strategy.name / "valuations"
        rebuilt.append(read(folder / "reconstruction-multi_round-exact-mean.json"))
        retrained.append(read(folder / "retraining-FedAvg-leave_one_out-mean-test.json"))
    assert retrained[0]["values"] == retrained[1]["values"]
    assert retrained[0]["own"] != retrained[1]["own"]
    trained = {request.run for request in asked if request.task == "train"}
    assert trained == {"FedAvg", "QFedAvg", "without-alder", "without-cedar"}

    # FedAvg's values share out what its training gained.
    records = read_ledger(run_dir / "FedAvg" / "ledger.jsonl")
    begun = [scores["global_score"] for scores in records[1]["measurements"].values()]
    ended = [scores["own"]["score"] for scores in records[-1]["scores"].values()]
    gained = mean_dice(ended) - mean_dice(begun)
    shared = sum(value["value"] for value in rebuilt[0]["values"].values())
    assert shared == pytest.approx(rebuilt[0]["total"], abs=1e-12)
    assert shared == pytest.approx(gained, abs=1e-6)
    assert rebuilt[0]["fidelity"] is not None

    asked.clear()
    federation(two, run_dir, strategies, resume=True, **settings).run()
    assert not any(request.run == "valuation" or request.task == "train" for request in asked)
