# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A used folder: what is in it is never replaced unasked, and a comparison that is resumed may
grow.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.checkout import CHECKOUT
from helpers.linear_federation import in_place_of_training

from monai_fairfl.bundle.federation import BundleFederation
from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.server.federation import History
from monai_fairfl.strategies import FedAvg, FedGA, Standalone, Strategy

BUNDLE = CHECKOUT / "bundles" / "prostate_mri_segmentation"


@pytest.fixture
def sites(hospitals: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    in_place_of_training(monkeypatch)
    return hospitals


def run(
    sites: Path, run_dir: Path, strategies: Sequence[Strategy], **settings: Any
) -> list[History]:
    settings = {"rounds": 2, "site_names": ["alder", "cedar", "rowan"], "resume": False, **settings}
    return BundleFederation(
        str(BUNDLE), str(sites), list(strategies), run_dir=str(run_dir), **settings
    ).run()


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, hidden ones too."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def report_of(run_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_dir / "report.json").read_text())
    return found


@pytest.mark.parametrize("resume", [False, True])
def test_a_single_run_never_replaces_the_report_of_a_comparison(
    resume: bool, sites: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "compared"
    run(sites, run_dir, [Standalone(), FedAvg()])
    before = content(run_dir)
    with pytest.raises(
        FederationError,
        match=r"compared already holds a comparison \(Standalone, FedAvg\).*run_dir",
    ):
        run(sites, run_dir, [FedGA()], resume=resume)
    assert content(run_dir) == before


@pytest.mark.parametrize("resume", [False, True])
def test_a_comparison_never_replaces_the_report_of_a_single_run(
    resume: bool, sites: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "single"
    run(sites, run_dir, [FedAvg()])
    before = content(run_dir)
    with pytest.raises(
        FederationError, match="single already holds a run of one strategy.*another run_dir"
    ):
        run(sites, run_dir, [Standalone(), FedAvg()], resume=resume)
    assert content(run_dir) == before


def test_a_comparison_of_other_strategies_is_refused_before_anything_is_written(
    sites: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "compared"
    run(sites, run_dir, [Standalone(), FedAvg()])
    before = content(run_dir)
    with pytest.raises(
        FederationError, match=r"holds a comparison \(Standalone, FedAvg\): resume it"
    ):
        run(sites, run_dir, [FedAvg("uniform"), FedGA()])
    with pytest.raises(
        FederationError, match="holds a comparison"
    ):  # also where the first of them is new
        run(sites, run_dir, [FedGA(), FedAvg()])
    assert content(run_dir) == before


def test_a_resumed_comparison_grows_and_loses_no_former_strategy(
    sites: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "compared"
    run(sites, run_dir, [Standalone(), FedAvg()])
    former = report_of(run_dir)["strategies"]
    ledgers = {name: (run_dir / name / "ledger.jsonl").read_bytes() for name in former}

    histories = run(sites, run_dir, [FedGA(), FedAvg("uniform")], resume=True)
    assert [history.run_dir.name for history in histories] == ["FedGA", "FedAvg-uniform"]
    names = ["Standalone", "FedAvg", "FedGA", "FedAvg-uniform"]
    assert json.loads((run_dir / "config.json").read_text())["strategies"] == names
    report = report_of(run_dir)
    assert list(report["strategies"]) == names
    assert {name: report["strategies"][name]["ledger_head"] for name in former} == {
        name: found["ledger_head"] for name, found in former.items()
    }
    assert {name: (run_dir / name / "ledger.jsonl").read_bytes() for name in former} == ledgers


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"seed": 5}, FederationError, "seed = 0, now it is 5"),
        ({"buffers": "samples"}, FederationError, "buffers = 'aggregation', now it is 'samples'"),
        ({"local_epochs": 5}, ConfigError, "local_epochs = 1, now it is 5"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_comparison_does_not_grow_by_runs_of_other_settings(
    change: dict[str, Any], error: type[Exception], words: str, sites: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "compared"
    run(sites, run_dir, [Standalone(), FedAvg()])
    before = content(run_dir)
    with pytest.raises(error, match=words):
        run(sites, run_dir, [FedGA(), FedAvg("uniform")], resume=True, **change)
    assert content(run_dir) == before


def test_a_folder_that_holds_single_runs_below_may_hold_one_itself(
    sites: Path, tmp_path: Path
) -> None:
    """Such as ``runs`` and ``runs/later``: neither replaces anything of the other."""
    run(sites, tmp_path / "runs", [FedAvg()], rounds=1)
    run(sites, tmp_path / "runs" / "later", [FedAvg()], rounds=1)
    assert len(run(sites, tmp_path / "runs", [FedAvg()], resume=True)[0].rounds) == 2


def test_a_damaged_configuration_is_named(sites: Path, tmp_path: Path) -> None:
    run(sites, tmp_path / "run", [FedAvg()], rounds=1)
    (tmp_path / "run" / "config.json").write_text('{"strategies": [')
    with pytest.raises(ConfigError, match="config.json is damaged .*restore it from a copy"):
        run(sites, tmp_path / "run", [FedAvg()], resume=True)
