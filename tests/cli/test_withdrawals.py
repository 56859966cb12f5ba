# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The command ``withdraw`` on a federation of the prostate bundle."""

from __future__ import annotations

import io
import json
import shlex
import shutil
from pathlib import Path

import pytest
from helpers.bundle_runs import BUNDLE, command, federation, run
from helpers.command_line import run_json
from helpers.made_once import MadeOnce

from monai_fairfl.cli import main
from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.report import write_report
from monai_fairfl.run_folder.ledger import Ledger, read_ledger
from monai_fairfl.strategies import CGSV
from monai_fairfl.valuation import Reconstruction

pytestmark = pytest.mark.slow

SITES = ("alder", "cedar", "rowan")
METHOD = ("--strategy#_target_", "monai_fairfl.strategies.CGSV", "--record_updates", "True")


@pytest.fixture(scope="session")
def trained(hospitals: Path, made_once: MadeOnce) -> Path:
    """A folder with the hospitals and a run of the command, two rounds of CGSV."""

    def make(folder: Path) -> None:
        for site in SITES:
            shutil.copytree(hospitals / site, folder / "sites" / site)
        words = command(folder / "sites", folder / "run", "--rounds", "2", *METHOD)
        done = run([*words, "--share_cases", "True", "--report", "True"], folder)
        assert done.returncode == 0, done.stderr

    return made_once("bundle_run_to_withdraw_from", make)


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    shutil.copytree(trained / "run", tmp_path / "run")
    return tmp_path


def files_of(run_dir: Path) -> set[str]:
    return {str(file.relative_to(run_dir)) for file in run_dir.rglob("*") if file.is_file()}


def test_a_dry_run_and_a_no_change_nothing_and_a_yes_deletes(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = folder / "run"
    before = files_of(run_dir)
    found = run_json(capsys, "withdraw", run_dir, "cedar", "--dry-run")["statements"][0]
    assert found["ended"] == ""
    error = run_json(capsys, "withdraw", run_dir, "cedar", code=2)["error"]
    assert "with --json nobody is asked: add --yes" in error
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert main(["withdraw", str(run_dir), "cedar"]) == 2
    assert "Delete these files? They cannot be restored. [y/N]" in capsys.readouterr().out
    assert files_of(run_dir) == before

    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(["withdraw", str(run_dir), "cedar"]) == 0
    text = capsys.readouterr().out
    assert "cedar withdrew." in text and "--site_names" in text
    planned = {entry["path"] for entry in found["deleted"]}
    # The report wrote cases.csv again, without the site's rows.
    assert before - files_of(run_dir) == planned - {"cases.csv"}
    cases = (run_dir / "cases.csv").read_text()
    assert "alder" in cases and "cedar" not in cases
    assert "cedar withdrew from CGSV" in (run_dir / "report.html").read_text()
    assert main(["withdraw", str(run_dir), "cedar"]) == 0
    assert "cedar withdrew already; nothing was changed" in capsys.readouterr().out


def test_everything_of_the_site_alone_is_gone_and_verify_still_passes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = folder / "run"
    found = run_json(capsys, "withdraw", run_dir, "cedar", "--yes")["statements"][0]
    paths = {entry["path"] for entry in found["deleted"]}
    for path in (
        "datalists/cedar.json",
        "models/cedar.pt",
        "models/cedar.recipe.json",
        "sites/cedar/state/receipts.jsonl",
        "updates/round-0001/clients/cedar.safetensors",
        "checkpoints/round-0001/rewards/cedar.safetensors",
    ):
        assert path in paths
    names = {path for path in files_of(run_dir) if "cedar" in path}
    assert names == {"withdrawn/cedar.json", "withdrawn/cedar.md"}
    receipts = [
        run_dir / "sites" / site / "state" / "receipts.jsonl" for site in ("alder", "rowan")
    ]
    proofs = run_json(capsys, "verify", run_dir, "--replay", "--receipt", *receipts)
    assert proofs["runs"][str(run_dir)]["receipts"]["covered"] == 4


def test_a_finished_run_ends_cleanly_and_refuses_valuations_of_the_site(
    trained: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = folder / "run"
    run_json(capsys, "withdraw", run_dir, "cedar", "--yes")
    before = files_of(run_dir)
    sites = trained / "sites"
    settings = {"resume": True, "record_updates": True, "share_cases": True}
    [history] = federation(sites, run_dir, CGSV(), **settings).run()
    assert history.finished and files_of(run_dir) == before
    valued = federation(sites, run_dir, CGSV(), valuations=[Reconstruction()], **settings)
    with pytest.raises(FederationError, match="a valuation of .* with cedar, which withdrew"):
        valued.run()
    settings["site_names"] = ["alder", "rowan"]
    valued = federation(sites, run_dir, CGSV(), valuations=[Reconstruction()], **settings)
    with pytest.raises(ConfigError, match="cannot be rebuilt: cedar withdrew from the run"):
        valued.run()
    assert not [path for path in files_of(run_dir) - before if "cedar" in path]


def test_the_printed_command_trains_the_run_without_the_site(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = folder / "run"
    found = run_json(capsys, "withdraw", run_dir, "cedar", "--yes")["statements"][0]
    words = shlex.split(found["retrain"])
    assert words[:4] == ["python", "-m", "monai.bundle", "run"]
    done = run(words[1:], folder)
    assert done.returncode == 0, done.stderr
    records = read_ledger(Path(f"{run_dir}-without-cedar") / "ledger.jsonl")
    assert records[0]["clients"] == ["alder", "rowan"] and records[-1]["kind"] == "end"
    assert BUNDLE.exists()


def test_the_report_that_is_written_again_still_names_what_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "FedAvg").mkdir()
    ledger = Ledger(tmp_path / "FedAvg" / "ledger.jsonl")
    opening = {"kind": "start", "run": "FedAvg", "strategy": "FedAvg", "clients": [*SITES]}
    ledger.append(opening)
    ledger.append({"kind": "end", "scores": {}})
    write_report([tmp_path], tmp_path, {"FedCE": "no memory was left"})
    run_json(capsys, "withdraw", tmp_path, "cedar", "--yes")
    report = json.loads((tmp_path / "report.json").read_text())
    assert "cedar withdrew from FedAvg" in report["warnings"][0]
    assert report["failed"] == {"FedCE": "no memory was left"}
