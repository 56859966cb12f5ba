# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The warnings at the top of the report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from monai_fairfl.games.valuation import Valuation
from monai_fairfl.protocol.values import Estimate
from monai_fairfl.report.collect import load_runs
from monai_fairfl.report.summary import summarise
from monai_fairfl.run_folder.ledger import Ledger

WriteRun = Callable[..., Path]


def test_runs_of_other_settings_are_warned_of_by_the_settings_names(write_run: WriteRun) -> None:
    first = {
        "bundle": "b",
        "files": {"train.json": "1", "other.json": "1"},
        "config": ["configs/train.json"],
        "local_epochs": 1,
        "overrides": {"size": [64, 64]},
        "sites": {"elm": {"learning_rate": 0.001}},
    }
    second = {
        "bundle": "b",
        "files": {"train.json": "1", "other.json": "2"},
        "config": ["configs/train.json"],
        "local_epochs": 4,
        "overrides": {},
        "sites": {"elm": {"learning_rate": 0.003}},
    }
    scores = {"elm": (0.8, 0.1, 5)}
    fedavg, fedce, cgsv = [write_run(name, scores) for name in ("FedAvg", "FedCE", "CGSV")]
    (fedavg / "config.json").write_text(json.dumps(first))
    (fedce / "config.json").write_text(json.dumps(second))
    (cgsv / "config.json").unlink()  # its engine wrote none
    runs = [fedavg, fedce, cgsv]
    warning, unknown = summarise(load_runs(runs))["warnings"]
    assert "(learning_rate of elm, local_epochs, size)" in warning
    assert unknown.endswith("whether they have the same data and split is not recorded")

    (fedce / "config.json").write_text(json.dumps(first))
    assert summarise(load_runs(runs))["warnings"] == [unknown]


def test_other_groups_are_warned_of_and_not_mixed(write_run: WriteRun) -> None:
    one = write_run("FedAvg", {"elm": 0.8, "oak": 0.8}, groups={"clean": ["elm"]})
    two = write_run("FedCE", {"elm": 0.8, "oak": 0.8}, groups={"clean": ["oak"]})
    report = summarise(load_runs([one, two]))
    (warning,) = report["warnings"]
    assert warning.startswith("The runs differ in their groups:")
    assert report["groups"] == {}


def test_sites_scored_on_other_structures_are_named(write_run: WriteRun) -> None:
    closing = {
        "drions": {"own": {"test_score": {"mean": 0.8, "disc": 0.8}}},
        "drishti": {"own": {"test_score": {"mean": 0.7, "disc": 0.9, "cup": 0.5}}},
        "idrid": {"own": {"score": {"mean": 0.7, "disc": 0.7}}},
    }
    run = write_run("FedAvg", {"drions": 0.8, "drishti": 0.7}, finished=False)
    Ledger(run / "ledger.jsonl").append({"kind": "end", "scores": closing})
    (warning,) = summarise(load_runs([run]))["warnings"]
    assert "drishti: cup, disc; drions: disc)" in warning  # and not a site without a test score

    alike = write_run("FedCE", {"drions": 0.8, "drishti": 0.7})
    assert not summarise(load_runs([alike]))["warnings"]


def test_a_valuation_of_a_run_that_went_on_is_not_shown(write_run: WriteRun) -> None:
    run = write_run("FedAvg", {"elm": 0.8, "oak": 0.7}, finished=False)
    Ledger(run / "ledger.jsonl").append({"kind": "end", "scores": {}, "model": "b"})
    (run / "valuations").mkdir()
    for name, model in (("old", "a"), ("new", "b")):
        found = Valuation("exact", {"elm": Estimate(0.1, 0.0)}, 2, 1.0, 0.1).to_json()
        valued = {"strategy": "FedAvg", "utility": "mean", "data": "validation"}
        valuation = {**found, **valued, "name": name, "model": model}
        (run / "valuations" / f"{name}.json").write_text(json.dumps(valuation))
    report = summarise(load_runs([run]))
    (shown,) = report["strategies"]["FedAvg"]["valuations"]
    assert shown["name"] == "new"
    (warning,) = report["warnings"]
    assert "FedAvg: old is not shown, because the run has trained more rounds since" in warning
