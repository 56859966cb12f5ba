# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The commands ``export-flare`` and ``simulate-flare``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers.driving import SPEC, LeastSquares, vector

pytest.importorskip("nvflare")

from helpers.federations import BUNDLE, SETTINGS  # noqa: E402

from monai_fairfl.cli import main  # noqa: E402
from monai_fairfl.data.synthetic import write_sites  # noqa: E402
from monai_fairfl.report import as_text, write_report  # noqa: E402
from monai_fairfl.server.federation import Federation  # noqa: E402
from monai_fairfl.strategies import FedAvg  # noqa: E402
from monai_fairfl.transports.flare.job import launch as jobs  # noqa: E402
from monai_fairfl.transports.flare.policy import ENTRY  # noqa: E402
from monai_fairfl.transports.in_process import InProcess  # noqa: E402

pytestmark = pytest.mark.nvflare

OWN = {"_target_": "inverse_loss.InverseLoss", "epsilon": 0.5}
EXPORT = ["export-flare", "--bundle", BUNDLE, "--overrides", str(SETTINGS)]


def files_in(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def federation_of(job: Path) -> dict[str, Any]:
    """The settings of the run in a job's folder."""
    [server] = job.rglob("config_fed_server.json")
    found: dict[str, Any] = json.loads(server.read_text())["workflows"][0]["args"]["federation"]
    return found


def test_the_commands_take_a_strategy_by_its_dotted_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_code = ["--strategy", "inverse_loss.InverseLoss", "--out", str(tmp_path / "job")]
    assert main([*EXPORT, *with_code]) == 0
    assert "brings the code of inverse_loss.InverseLoss" in capsys.readouterr().out
    without_code = ["--no-custom-code", "--out", str(tmp_path / "without_code")]
    assert main([*EXPORT, "--strategy", json.dumps(OWN), *without_code]) == 0
    assert "does not bring inverse_loss.InverseLoss" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["export-flare", "simulate-flare"])
def test_the_commands_say_why_a_dotted_path_cannot_be_imported(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [command, "--bundle", BUNDLE, "--strategy", "inverse_los.InverseLoss"]
    if command == "export-flare":
        words += ["--out", str(tmp_path / "job")]
    else:
        write_sites(tmp_path / "sites", seed=0, size=(16, 16, 4), cases=1)
        words += ["--sites-root", str(tmp_path / "sites"), "--workspace", str(tmp_path / "job")]
    assert main(words) == 2
    assert "there is no module 'inverse_los'" in capsys.readouterr().err
    assert not (tmp_path / "job").exists()


def test_the_command_writes_a_job_and_replaces_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*EXPORT, "--num-rounds", "3", "--no-custom-code"]
    folder = tmp_path / "job"

    assert main([*words, "--strategy", "CGSV", "--out", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"job": str(folder), "allow": ENTRY}
    assert json.loads((folder / "meta.json").read_text())["min_clients"] == 2

    job = files_in(folder)
    assert main([*words, "--strategy", "FedAvg", "--out", str(folder)]) == 2
    used = f"{folder} is there already and not an empty folder; name a new one"
    assert used in capsys.readouterr().err
    assert files_in(folder) == job

    (tmp_path / "empty").mkdir()
    assert main([*words, "--out", str(tmp_path / "empty")]) == 0
    assert (tmp_path / "empty" / "meta.json").exists()

    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "image.nii.gz").touch()
    assert main([*words, "--out", str(tmp_path / "data")]) == 2
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["image.nii.gz"]
    assert main([*words, "--strategy", "FedSee", "--out", str(tmp_path / "other")]) == 2
    assert "unknown strategy 'FedSee'" in capsys.readouterr().err


@pytest.mark.parametrize("text", ['{"size": [64}', "[64, 64]"])
def test_overrides_that_are_no_mapping_are_answered_with_an_example(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main([*EXPORT, "--overrides", text, "--out", str(tmp_path / "job")])
    error = capsys.readouterr().err.splitlines()[-1]
    assert left.value.code == 2
    assert f"argument --overrides: {text!r} is not values by name" in error
    assert "{'size': [128, 128]}" in error
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            ["--strategy", '{"_target_": "monai_fairfl.strategies.FedCE", "mode": "plus"}'],
            "cannot be made.*mode",
        ),
        (
            ["--strategy", '{"_target_": "monai_fairfl.strategies.CGSV", "gama": 1}'],
            "CGSV has no argument 'gama'; did you mean 'gamma'",
        ),
        (
            ["--strategy", '{"_target_": "monai_fairfl.strategies.FedCE", "mode": sum}'],
            'is no configuration: give a name, such as FedCE, or {"_target_":',
        ),
        (["--strategy", '{"name": "FedCE"}'], "has no _target_: give a name"),
        (["--strategy", '{"_target_": "FedCE", "mode": "$sum"}'], "is an expression of MONAI"),
        (["--strategy", '{"_target_": 3}'], "strategy 3 is no dotted path"),
        (
            ["--config", "configs/trian.json"],
            "trian.json does not exist: config is relative to the bundle.*/train.json",
        ),
        (["--initial", "/dev/null"], "/dev/null is no state_dict of torch.save .EOFError"),
        (["--name", "prostate run"], "name 'prostate run'"),
        (["--timeout", "-5"], "timeout is a number of seconds"),
    ],
)
def test_a_mistake_in_a_job_is_reported_in_one_line_and_before_it_is_written(
    given: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*EXPORT, "--out", str(tmp_path / "job"), *given]) == 2
    assert re.search(says, capsys.readouterr().err)
    assert not (tmp_path / "job").exists()


def test_a_strategy_is_given_by_name_or_by_configuration(tmp_path: Path) -> None:
    configuration = '{"_target_": "monai_fairfl.strategies.ShapFed", "personalised": true}'
    for arguments, name in ((["--strategy", configuration], "ShapFed-personalised"), ([], "FedCE")):
        assert main([*EXPORT, "--out", str(tmp_path / name), *arguments]) == 0
        meta = json.loads((tmp_path / name / "meta.json").read_text())
        assert meta["name"] == f"{BUNDLE}-{name}"


@pytest.mark.slow
def test_the_simulators_command_shows_the_servers_report_and_leaves_it_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    clients = InProcess({name: lambda: LeastSquares([1.0]) for name in ("elm", "oak")})
    Federation(FedAvg(), clients, 1, lambda: ({"w": vector([0.0])}, SPEC), run_dir=run).run()
    expected = as_text(write_report([run], run))
    page = run / "report.html"
    monkeypatch.setattr(jobs, "simulate_job", lambda *arguments, **settings: run)
    words = ["simulate-flare", "--bundle", BUNDLE]
    words += ["--sites-root", "hospitals", "--workspace", str(tmp_path / "flare")]
    written = page.stat().st_mtime_ns

    assert main(words) == 0
    log = f"Log: {tmp_path / 'flare' / 'log.txt'}\n"
    assert capsys.readouterr().out == f"{log}{expected}\nReport: {page}\nRun: {run}\n"
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"run": str(run), "report": str(page)}
    assert page.stat().st_mtime_ns == written
    # Without jinja2 there is no page.
    page.unlink()
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"run": str(run), "report": None}


def test_guards_are_an_option_of_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wider = "['NonFinite', {'_target_': 'monai_fairfl.guards.TooLong', 'times': 8.0}]"
    assert main([*EXPORT, "--guards", wider, "--out", str(tmp_path / "job")]) == 0
    assert federation_of(tmp_path / "job")["guards"] == [
        {"_target_": "monai_fairfl.guards.NonFinite"},
        {"_target_": "monai_fairfl.guards.TooLong", "times": 8.0},
    ]
    assert main([*EXPORT, "--guards", "['ToLong']", "--out", str(tmp_path / "no")]) == 2
    assert "did you mean 'TooLong'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*EXPORT, "--guards", "TooLong", "--out", str(tmp_path / "no")])
    assert "expected a list of names or configurations" in capsys.readouterr().err


def test_settings_of_the_run_come_from_a_file(tmp_path: Path) -> None:
    given = {
        "record_updates": True,
        "samples": {"alder": 120},
        "ranges": {"score": [-1, 1]},
        "guards": ["NonFinite"],
    }
    file = tmp_path / "run.json"
    file.write_text(json.dumps(given))
    assert main([*EXPORT, "--federation", str(file), "--out", str(tmp_path / "job")]) == 0
    federation = federation_of(tmp_path / "job")
    expected = {**given, "guards": [{"_target_": "monai_fairfl.guards.NonFinite"}]}
    assert {name: federation[name] for name in given} == expected

    # An option counts more than the file.
    words = [*EXPORT, "--federation", str(file), "--guards", "[]", "--out", str(tmp_path / "none")]
    assert main(words) == 0
    assert federation_of(tmp_path / "none")["guards"] == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"valuations": [], "record_updat": 1}', "'valuations', 'record_updat', which no"),
        ('{"rounds": 3}', "sets 'rounds': give --num-rounds instead"),
        ("[]", "cannot be read as settings: it holds no JSON object but a list"),
        ('{"samples": 3}', "samples must be a mapping, got 3"),
    ],
)
def test_a_file_of_settings_that_no_job_can_have_is_refused(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.json"
    file.write_text(text)
    assert main([*EXPORT, "--federation", str(file), "--out", str(tmp_path / "job")]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "job").exists()
