# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The last mile of a comparison: what ledger and report have, what sites use, and workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import warm_python
from helpers.bundle_runs import OVERRIDES, federation
from helpers.command_line import bytes_of
from helpers.made_once import MadeOnce

from monai_fairfl import read_ledger
from monai_fairfl.cli import main
from monai_fairfl.data import site_datalist
from monai_fairfl.errors import ConfigError
from monai_fairfl.model_files import fused_weights, state_of_file
from monai_fairfl.strategies import FedAvg, Standalone
from monai_fairfl.valuation import Reconstruction

SITES = ["alder", "cedar"]
FRACTIONS = [0.25, 0.5, 0.25]
"""Two of four cases validate, so that their difference has a standard error."""

SETTINGS: dict[str, Any] = {
    "site_names": SITES,
    "rounds": 1,
    "overrides": {**OVERRIDES, "split_fractions": FRACTIONS},
    "final": ["score"],
}
MILE: dict[str, Any] = {
    "adapt_epochs": 1,
    "adapt_rate": 0.02,
    "adapt_fuse": True,
    "record_updates": True,
}


def compare(sites: Path, run_dir: Path, **more: Any) -> None:
    """Compare and value two methods, each with its last mile."""
    settings = {**SETTINGS, **MILE, "valuations": [Reconstruction()], **more}
    federation(sites, run_dir, [FedAvg(), Standalone()], **settings).run()


@pytest.fixture(scope="module")
def compared(hospitals: Path, made_once: MadeOnce) -> Path:
    """The comparison in one process; read only."""

    def make(folder: Path) -> None:
        compare(hospitals, folder / "run", report=True)

    return made_once("compared_with_a_last_mile", make) / "run"


def test_rounds_stay_as_they_are_and_every_site_takes_the_candidate_that_gains_most(
    compared: Path, hospitals: Path, tmp_path: Path
) -> None:
    run_dir = compared / "FedAvg"
    [plain] = federation(hospitals, tmp_path / "run", FedAvg(), **SETTINGS).run()
    *rounds, end = read_ledger(run_dir / "ledger.jsonl")
    for ours, theirs in zip(rounds[1:], plain.records[1:-1], strict=True):
        for name in ("aggregation", "measurements", "model"):
            assert ours[name] == theirs[name]
    assert end["model"] == plain.records[-1]["model"]

    alone = read_ledger(compared / "Standalone" / "ledger.jsonl")[-1]["scores"]
    report = json.loads((compared / "report.json").read_text())["strategies"]["FedAvg"]["sites"]
    for site in SITES:
        scores = end["scores"][site]
        assert scores["own"] == plain.records[-1]["scores"][site]["own"]
        assert scores["alone"]["score"] == alone[site]["own"]["score"]
        gains: dict[str, Any] = {}
        for name in ("adapted", "alone", "fused"):
            gain = scores[name][f"{name}_gain"]
            before, after = scores["own"]["score"]["mean"], scores[name]["score"]["mean"]
            assert after["value"] - before["value"] == pytest.approx(gain["value"], abs=1e-6)
            gains[name] = gain
        # A fused model must not lose more than 0.02; another one must gain for sure.
        sure = [name for name, gain in gains.items() if gain["value"] > gain["stderr"]]
        best = max(sure, key=lambda name: gains[name]["value"], default=None)
        expected = "fused" if gains["fused"]["value"] >= -0.02 else best
        mile = report[site]["last_mile"]
        assert mile["taken"] == expected
        used = mile["candidates"][expected]["score"] if expected else report[site]["score"]
        assert mile["used"] == used
    assert "last mile" in (compared / "report.html").read_text()


def test_a_site_uses_the_model_that_it_took_and_a_fused_one_is_not_adapted(
    compared: Path, hospitals: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = json.loads((compared / "report.json").read_text())["strategies"]["FedAvg"]["sites"]
    taken = {site: report[site]["last_mile"]["taken"] for site in SITES}
    assert "fused" in taken.values(), taken
    for site, name in taken.items():
        own = compared / "FedAvg" / "sites" / site / "state" / "FedAvg-own.pt"
        assert own.exists() == (name is not None)
        if name != "fused":
            continue
        alone = state_of_file(compared / "Standalone" / "models" / f"{site}.pt")
        state = state_of_file(own)
        assert state.keys() == fused_weights([alone, alone]).keys()
        assert all(torch.equal(state[f"members.1.{key}"], alone[key]) for key in alone)
        words = ["adapt", str(own), str(hospitals / site), "--out", str(tmp_path / site)]
        assert main(words) == 2
        assert "fused" in capsys.readouterr().err


FILES = ("**/ledger.jsonl", "**/models/*.pt", "**/valuations/*.json", "datalists/*")
"""What a comparison left that must not depend on the number of jobs."""


def test_every_file_of_worker_processes_is_that_of_one_process(
    compared: Path, hospitals: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    warm_python.fork_server()
    compare(hospitals, run_dir, jobs=2)
    found, expected = bytes_of(run_dir, *FILES), bytes_of(compared, *FILES)
    assert len([name for name in expected if name.endswith("ledger.jsonl")]) == 2
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []


# --- refusals


@pytest.mark.parametrize("part", ["validation", "testing"])
def test_models_trained_alone_on_cases_that_validate_or_test_here_are_refused(
    part: str, hospitals: Path, tmp_path: Path
) -> None:
    file = tmp_path / "same" / "datalists" / "alder.json"
    same = site_datalist(hospitals / "alder", file, seed=0, fractions=FRACTIONS)
    other = tmp_path / "other" / "datalists" / "alder.json"
    other.parent.mkdir(parents=True)
    parts = {"training": same[part][:1], "validation": [], "testing": []}
    other.write_text(json.dumps(parts))
    settings = {**SETTINGS, "adapt_epochs": 1}
    # The runs of several strategies have their data lists in the folder above.
    for place in ("other/models", "other/Standalone/models"):
        given = {**settings, "trained_alone": str(tmp_path / place)}
        with pytest.raises(ConfigError, match="on 1 cases of alder.*split_seed"):
            federation(hospitals, tmp_path / "run", FedAvg(), **given).check_settings()
    given = {**settings, "trained_alone": str(tmp_path / "same" / "models")}
    federation(hospitals, tmp_path / "run", FedAvg(), **given).check_settings()
    assert not (tmp_path / "run").exists()
