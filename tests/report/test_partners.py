# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Runs are compared with those of the same data, split and seed, and with no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.reports import gain_of, warned
from helpers.scripted_run import report_of, train, with_lists

from monai_fairfl.report import write_report
from monai_fairfl.strategies import FedAvg, Standalone

OAK = {"oak": (0.7, 0.01, 9)}
LISTED = {"testing": "c", "digests": "1 2"}


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({}, None),
        ({"seed": 5}, "seed"),
        ({"config": {"data": {"oak": "/other/oak"}}}, "data"),
        ({"testing": "d"}, "split"),
        ({"digests": "1 3"}, "data"),
        ({"n": 8}, "split"),
    ],
    ids=["same", "seed", "data", "split", "a label corrected", "scored"],
)
def test_a_gain_needs_training_alone_of_the_same_seed_data_and_split(
    change: dict[str, Any], differs: str | None, tmp_path: Path
) -> None:
    given = dict(change)
    lists = {name: given.pop(name, usual) for name, usual in LISTED.items()}
    scores = {"oak": (0.8, 0.01, given.pop("n", 9))}
    alone = with_lists(train(tmp_path / "a", Standalone(), OAK), **LISTED)
    run = with_lists(train(tmp_path / "b", FedAvg(), scores, **given), **lists)
    report = write_report([alone, run])
    if differs is None:
        assert gain_of(report, "FedAvg", "oak")["value"] == pytest.approx(0.1)
        assert report["warnings"] == []
    else:
        assert gain_of(report, "FedAvg", "oak") is None
        assert warned(report, "FedAvg", f"another {differs}")
        assert report["compared"] == [["Standalone"], ["FedAvg"]]


def test_what_could_not_be_checked_is_named(tmp_path: Path) -> None:
    report_of(tmp_path, {"Standalone": OAK, "FedAvg": OAK})
    (tmp_path / "FedAvg" / "settings.json").unlink()
    report = write_report([tmp_path])
    assert gain_of(report, "FedAvg", "oak") is not None
    [warning] = report["warnings"]
    assert "data" in warning and "not recorded" in warning


def test_runs_of_one_name_are_marked_by_folder_and_measured_within_their_seed(
    tmp_path: Path,
) -> None:
    runs = []
    for name, dice in (("Standalone", (0.6, 0.8)), ("FedAvg", (0.65, 0.82))):
        for seed, value in enumerate(dice):
            runs.append(tmp_path / f"seed{seed}" / name)
            report_of(runs[-1].parent, {name: {"oak": value}}, seed=seed)
    report = write_report(runs)
    names = [f"{run.name} ({run.parent.name}/{run.name})" for run in runs]
    assert list(report["strategies"]) == names
    gains = [gain_of(report, name, "oak")["value"] for name in names[2:]]
    assert gains == pytest.approx([0.05, 0.02])

    again = train(tmp_path / "again" / "FedAvg", FedAvg(), OAK)
    found = write_report([runs[2], again])["strategies"]
    assert "seed0" in list(found)[0] and "again" in list(found)[1]


def test_runs_of_other_settings_are_warned_of_by_the_settings_names(tmp_path: Path) -> None:
    changes = {"overrides": {"size": [64, 64]}, "sites": {"oak": {"learning_rate": 0.003}}}
    runs = [train(tmp_path / "a", FedAvg(), OAK)]
    runs.append(train(tmp_path / "b", FedAvg("uniform"), OAK, config=changes))
    assert warned(write_report(runs), "learning_rate of oak", "size")


def test_hospitals_that_label_other_structures_are_named(tmp_path: Path) -> None:
    scores = {
        "elm": {"test_score": {"mean": 0.8, "disc": 0.8}},
        "oak": {"test_score": {"mean": 0.7, "disc": 0.9, "cup": 0.5}},
    }
    [warning] = report_of(tmp_path, {"FedAvg": scores})["warnings"]
    assert "elm: disc" in warning and "oak: cup, disc" in warning
