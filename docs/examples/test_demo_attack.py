# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import attacked
import demo_attack
import pytest
from attacked import LYING, NOISY, STORIES

from monai_fairfl import BundleFederation, read_ledger
from monai_fairfl.bundle.trainings import Jobs
from monai_fairfl.data import write_demo

ROUNDS = 3


def value_of(measured: Any) -> float:
    """The number of a measurement of the ledger, the mean of a mapping."""
    if "mean" in measured:
        measured = measured["mean"]
    return float(measured["value"])


def test_the_attackers_lose_in_the_guarded_training_what_they_won_in_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["demo_attack.py", "--rounds", str(ROUNDS), "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    # Small volumes, and no processes, which take longer to start than to train these.
    monkeypatch.setattr(demo_attack, "write_demo", partial(write_demo, size=(64, 64, 8)))
    run_trainings = demo_attack.run_trainings

    def one_by_one(trainings: Any, *_: Any, **settings: Any) -> Any:
        return run_trainings(trainings, Jobs(1, ["cpu"]))

    def quick(*paths: Any, **settings: Any) -> BundleFederation:
        settings["overrides"] = {"size": [32, 32], "channels": [8, 16, 32]}
        return BundleFederation(*paths, **settings)

    monkeypatch.setattr(demo_attack, "run_trainings", one_by_one)
    monkeypatch.setattr(attacked, "BundleFederation", quick)
    demo_attack.main()
    assert f"Guards stopped its update in {ROUNDS} of {ROUNDS} rounds" in capsys.readouterr().out
    assert (tmp_path / "report.html").exists()

    weights = {}
    errors: dict[str, dict[str, float]] = {}
    for story in STORIES:
        records = read_ledger(tmp_path / story.name / "ledger.jsonl")
        last = [record for record in records if record["kind"] == "round"][-1]
        weights[story.name] = last["aggregation"]
        errors[story.name] = {}
        for site, measured in last["measurements"].items():
            errors[story.name][site] = value_of(measured["leave_one_out_error"])
    # Its own overlay makes it lie, and nothing else does.
    assert errors["unguarded"][LYING.name] == 1.0
    error_of_honest = errors["honest"][LYING.name]
    assert error_of_honest < 1.0
    for attacker in (NOISY.name, LYING.name):
        assert weights["unguarded"][attacker] > 1.2 * weights["honest"][attacker]
    assert weights["guarded"].get(NOISY.name, 0.0) == 0.0
    assert weights["guarded"][LYING.name] < weights["unguarded"][LYING.name]
