# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import attacked
import demo_attack
import pytest
from attacked import LYING, NOISY, STORIES

from monai_fairfl import BundleFederation, read_ledger
from monai_fairfl.bundle.trainings import Jobs
from monai_fairfl.data import write_sites

ROUNDS = 2
TINY = {
    **{"size": [32, 32], "channels": [4, 8, 8], "learning_rate": 0.01},
    **{"batch_size": 4, "slices_per_volume": 6},
}


def test_guards_name_the_noise_and_drop_it_and_the_lie_is_told_by_its_overlay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["", "--rounds", str(ROUNDS), "--out", str(tmp_path)])
    # Few small volumes, no processes, and no training without attackers.
    run_trainings = demo_attack.run_trainings

    def few(root: Path, seed: int, sites: Any) -> None:
        write_sites(root, sites, seed, size=(32, 32, 6), cases=5)

    def one_by_one(trainings: Any, *_: Any, **settings: Any) -> Any:
        return run_trainings(trainings, Jobs(1, ["cpu"]))

    def quick(*paths: Any, **settings: Any) -> BundleFederation:
        small = {"overrides": TINY, "local_epochs": 3, "final": ["test_score"]}
        return BundleFederation(*paths, **{**settings, **small})

    monkeypatch.setattr(demo_attack, "write_demo", few)
    monkeypatch.setattr(demo_attack, "run_trainings", one_by_one)
    monkeypatch.setattr(attacked, "BundleFederation", quick)
    for module in (attacked, demo_attack):
        monkeypatch.setattr(module, "STORIES", STORIES[1:])
    demo_attack.main()
    assert f"Guards stopped its update in {ROUNDS} of {ROUNDS} rounds" in capsys.readouterr().out
    assert (tmp_path / "report.html").exists()

    for story in STORIES[1:]:
        _, *rounds, _ = read_ledger(tmp_path / story.name / "ledger.jsonl")
        errors = rounds[-1]["measurements"]
        for site in errors:
            # Its own overlay makes it lie, and nothing else does.
            error = errors[site]["leave_one_out_error"]["value"]
            assert (error == 1.0) == (site == LYING.name)
        for record in rounds:
            found = record["aggregation"]
            if story.name == "guarded":
                assert NOISY.name not in found and set(record["verdicts"]) == {NOISY.name}
            else:
                # More than its share.
                assert found[NOISY.name] > 1.2 / len(found)
