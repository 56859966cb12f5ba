# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``monai-fairfl train``: the line that it prints is the line that it runs, quietly."""

from __future__ import annotations

import json
import logging
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import warm_python
from helpers.checkout import CHECKOUT

from monai_fairfl.bundle.jobs import number_of_cases
from monai_fairfl.bundle.shipped import find_bundle
from monai_fairfl.cli import main
from monai_fairfl.cli.choosing import FUNDUS, PROSTATE
from monai_fairfl.cli.expected_time import expected_time
from monai_fairfl.cli.program import _parser
from monai_fairfl.cli.running import require_end
from monai_fairfl.cli.training import line_of, named_strategies
from monai_fairfl.data.layouts import site_folders
from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.run_folder.ledger import read_ledger
from monai_fairfl.strategies.resolver import strategy_of

TINY = ["--rounds", "2", "--local-epochs", "1", "--jobs", "1"]
TINY += ["--overrides", "{'size': [32, 32], 'channels': [4, 8, 8]}"]
FEDCE = ["--strategy", "FedCE('sum')"]

Run = Callable[..., pytest.CaptureFixture[str]]


@pytest.fixture(scope="module")
def sites(hospitals: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The two smallest hospitals."""
    root = tmp_path_factory.mktemp("train") / "sites"
    for site in sorted(site_folders(hospitals).values())[:2]:
        shutil.copytree(site, root / site.name)
    return root


@pytest.fixture(scope="module")
def trained(sites: Path) -> Path:
    """The folder of a run of the command."""
    out = sites.parent / "run"
    assert main(["train", str(sites), "--out", str(out), *FEDCE, *TINY]) == 0
    return out


def words_of(root: Path, *given: str) -> list[str]:
    """The words of the line that a command line asks for."""
    args = _parser().parse_args(["train", str(root), *given])
    return line_of(args, root, named_strategies(args)).words


def test_nothing_given_is_the_bundle_as_it_is(sites: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sites.parent)
    words = words_of(sites)
    assert words[:4] == ["python", "-m", "monai.bundle", "run"]
    names = [word for word in words if word.startswith("--")]
    assert names == [
        *("--config_file", "--bundle_root", "--sites_root"),
        *("--run_dir", "--strategy", "--resume"),
    ]
    assert words[words.index("--run_dir") + 1] == str(sites.parent / "train-sites-FedAvg")


def test_the_default_folder_can_be_a_runs_whatever_the_datas_is_called(
    sites: Path, tmp_path: Path
) -> None:
    root = tmp_path / "Prostata – München"
    root.symlink_to(sites)
    words = words_of(root)
    assert words[words.index("--run_dir") + 1].endswith("/train-Prostata _ M_nchen-FedAvg")
    with pytest.raises(ConfigError, match="the last part of --out 'Läufe .1.' cannot be used"):
        words_of(sites, "--out", str(tmp_path / "Läufe (1)"))
    assert not (tmp_path / "Läufe (1)").exists()


def test_what_is_given_is_an_argument_of_the_line(sites: Path) -> None:
    given = ["--adapt", "--seed", "3", "--devices", "cpu", "cpu", *FEDCE, *TINY]
    words = words_of(sites, *given, "--out", "there")
    arguments = dict(zip(words[4::2], words[5::2], strict=True))
    assert arguments["--adapt_epochs"] == "10"
    assert arguments["--seed"] == "3"
    assert arguments["--devices"] == '["cpu", "cpu"]'
    assert arguments["--strategy"] == "FedCE('sum')"
    assert arguments["--overrides"] == '{"size": [32, 32], "channels": [4, 8, 8]}'
    assert arguments["--run_dir"] == str(Path("there").absolute())


def test_overrides_come_beside_those_of_a_first_look(sites: Path) -> None:
    words = words_of(sites, "--quick", "--overrides", "{'size': [32, 32]}")
    arguments = dict(zip(words[4::2], words[5::2], strict=True))
    assert "quick.json" in arguments["--config_file"]
    assert arguments["--overrides#size"] == "[32, 32]"
    assert arguments["--run_dir"].endswith("train-sites-FedAvg-quick")
    # A # in a key is no place in the configuration of the federation.
    words = words_of(sites, "--quick", "--overrides", "{'loss#batch': True}")
    arguments = dict(zip(words[4::2], words[5::2], strict=True))
    assert "'loss#batch': True" in arguments["--overrides"]
    assert "'channels': [16, 32, 64, 128]" in arguments["--overrides"]


def test_a_recipe_is_named_by_one_word_and_what_is_given_wins(sites: Path) -> None:
    args = _parser().parse_args(["train", str(sites), "--recipe", "strong"])
    line = line_of(args, sites, ["FedAvg"])
    settings = line.configuration()
    assert (settings["rounds"], settings["local_epochs"]) == (100, 6)
    assert settings["config"] == ["configs/train.json", "configs/strong.json"]
    assert line.arguments["run_dir"].endswith("train-sites-FedAvg-strong")

    args = _parser().parse_args(["train", str(sites), "--recipe", "strong", "--rounds", "3"])
    assert line_of(args, sites, ["FedAvg"]).configuration()["rounds"] == 3
    with pytest.raises(SystemExit):
        _parser().parse_args(["train", str(sites), "--recipe", "strong", "--quick"])


def test_a_recipe_is_trained_and_its_precision_is_in_the_log(sites: Path, tmp_path: Path) -> None:
    small = ["--rounds", "1", "--local-epochs", "1", "--jobs", "1", "--devices", "cpu"]
    small += ["--overrides", "{'size': [32, 32], 'channels': [4, 8, 8]}"]
    out = tmp_path / "run"
    assert main(["train", str(sites), "--recipe", "strong", "--out", str(out), *small]) == 0
    precision = read_ledger(out / "ledger.jsonl")[1]["precision"]
    assert set(precision) == set(site_folders(sites))
    assert f"training in {precision[min(precision)]} on cpu" in (out / "log.txt").read_text()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--strategy", "fedce"], "did you mean 'FedCE'"),
        (["--bundle", "prostat"], "bundle 'prostat' is neither a folder"),
        (["--bundle", FUNDUS], f"holds volumes, and {FUNDUS} is for photographs: leave --bundle"),
        (["--overrides", "{'sise': [32, 32]}"], "override 'sise' names nothing"),
        (
            ["--recipe", "stong"],
            "has no recipe 'stong': name light or strong or volumes, or leave --recipe",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line_before_anything_is_trained(
    given: list[str], words: str, sites: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["train", str(sites), "--out", str(out), *given]) == 2
    printed = capsys.readouterr().err
    assert words in printed and "Traceback" not in printed
    assert not (out / "ledger.jsonl").exists()


def test_one_hospital_is_no_federation(
    sites: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(next(sites.iterdir()), tmp_path / "sites" / "alone")
    assert main(["train", str(tmp_path / "sites")]) == 2
    assert "a federation needs two" in capsys.readouterr().err


@pytest.mark.slow
def test_a_training_leaves_its_run_and_a_log_of_what_libraries_printed(trained: Path) -> None:
    records = read_ledger(trained / "ledger.jsonl")
    assert [record["kind"] for record in records] == ["start", "round", "round", "end"]
    assert (trained / "report.html").is_file() and (trained / "models" / "global.pt").is_file()
    log = (trained / "log.txt").read_text()
    assert "FedCE-sum round 2/2" in log
    config = json.loads((trained / "config.json").read_text())
    assert config["command"][:4] == ["python", "-m", "monai.bundle", "run"]


@pytest.mark.slow
def test_the_same_command_goes_on_and_shows_what_is_there(
    trained: Path, sites: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ledger = (trained / "ledger.jsonl").read_bytes()
    handlers = list(logging.getLogger().handlers)
    assert main(["train", str(sites), "--out", str(trained), *FEDCE, *TINY]) == 0
    printed = capfd.readouterr()
    assert "FedCE-sum: 2 rounds of 1 local epoch." in printed.out
    assert f"Report: {trained / 'report.html'}" in printed.out
    assert f"monai-fairfl infer {trained} IMAGES --out OUT" in printed.out
    assert "eval()" not in printed.out + printed.err and "INFO" not in printed.out + printed.err
    assert (trained / "ledger.jsonl").read_bytes() == ledger
    # The bundle's logging.conf has set those of the log.
    assert logging.getLogger().handlers == handlers


@pytest.mark.slow
def test_a_last_mile_of_a_run_that_has_ended_is_refused(
    trained: Path, sites: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(sites), "--out", str(trained), *FEDCE, *TINY, "--adapt"]) == 2
    assert "has ended without a last mile, and --adapt adds none" in capsys.readouterr().err


@pytest.mark.slow
def test_another_training_is_refused_in_the_folder_of_this_one(
    trained: Path, sites: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (trained / "ledger.jsonl").read_bytes(), (trained / "config.json").read_bytes()
    assert main(["train", str(sites), "--out", str(trained), "--strategy", "FedAvg", *TINY]) == 2
    assert "strategy" in capsys.readouterr().err
    assert main(["train", str(sites), "--out", str(trained), *FEDCE, *TINY, "--seed", "1"]) == 2
    assert "seed" in capsys.readouterr().err
    assert before == (
        (trained / "ledger.jsonl").read_bytes(),
        (trained / "config.json").read_bytes(),
    )


@pytest.mark.slow
@pytest.mark.long
def test_the_printed_line_trains_the_same_bits_and_the_command_shows_its_progress(
    trained: Path, sites: Path, tmp_path: Path
) -> None:
    arguments = [
        "-m",
        "monai_fairfl",
        "train",
        str(sites),
        "--out",
        str(tmp_path / "short" / "run"),
    ]
    done = warm_python.run([*arguments, *FEDCE, *TINY], CHECKOUT)
    assert done.returncode == 0, done.stderr
    ledger = (trained / "ledger.jsonl").read_bytes()
    assert (tmp_path / "short" / "run" / "ledger.jsonl").read_bytes() == ledger
    assert "FedCE-sum: round 1/2; about" in done.stderr
    # MONAI's warning about configurations, and its lines, are in the log alone.
    log = (tmp_path / "short" / "run" / "log.txt").read_text()
    for text in ("eval()", "input summary of monai.bundle"):
        assert text in log and text not in done.stdout + done.stderr

    [line] = [line for line in done.stdout.splitlines() if line.startswith("python -m")]
    words = shlex.split(line)
    words[words.index("--run_dir") + 1] = str(tmp_path / "long" / "run")
    assert warm_python.run(words[1:], CHECKOUT).returncode == 0
    assert (tmp_path / "long" / "run" / "ledger.jsonl").read_bytes() == ledger


def expected(root: Path, *given: str) -> str:
    """What is expected of a command line before it trains."""
    args = _parser().parse_args(["train", str(root), "--devices", "cpu", "--jobs", "1", *given])
    names = named_strategies(args)
    return expected_time(line_of(args, root, names).configuration(), len(names))


@pytest.mark.parametrize(("in_hardware", "precision"), [(True, "bfloat16"), (False, "float32")])
def test_the_expected_time_is_that_of_cases_epochs_methods_and_precision(
    in_hardware: bool, precision: str, sites: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = sum(number_of_cases(str(folder)) for folder in site_folders(sites).values())
    configs = find_bundle(PROSTATE) / "configs"
    seconds = json.loads((configs / "federate.json").read_text())["case_seconds"] * cases
    given = ["--rounds", str(round(600 / seconds)), "--local-epochs", "1"]
    three = ["--strategy", "Standalone", "FedAvg", "FedCE"]
    assert "10 minutes" in expected(sites, *given)
    assert "30 minutes" in expected(sites, *given, *three)
    assert expected(sites, *given, "--devices", "cuda:0") == ""

    monkeypatch.setattr("monai_fairfl.cli.expected_time.has_bfloat16", lambda device: in_hardware)
    strong = json.loads((configs / "federate_strong.json").read_text())
    given = ["--rounds", str(round(600 / (strong["case_seconds"][precision] * cases)))]
    assert "10 minutes" in expected(sites, "--recipe", "strong", "--local-epochs", "1", *given)


def test_a_file_of_ones_own_comes_after_those_of_the_bundle(
    sites: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own.json"
    own.write_text('{"rounds": 7, "overrides": {"size": [48, 48]}, "min_clients": 3}')
    words = words_of(sites, "--quick", "--config", str(own), "--overrides", "{'channels': [4, 8]}")
    arguments = dict(zip(words[4::2], words[5::2], strict=True))
    files = json.loads(arguments["--config_file"])
    assert [Path(file).name for file in files] == ["federate.json", "quick.json", "own.json"]
    # The line is the same in any folder.
    monkeypatch.chdir(tmp_path)
    assert words_of(sites, "--config", "own.json") == words_of(sites, "--config", str(own))
    # Its overrides stay, and those of the command come beside them.
    assert arguments["--overrides#channels"] == "[4, 8]" and "--overrides" not in arguments
    with pytest.raises(ConfigError, match="none.json does not exist: --config names a file"):
        words_of(sites, "--config", str(tmp_path / "none.json"))
    own.write_text("{")
    with pytest.raises(ConfigError, match="own.json is not a configuration"):
        words_of(sites, "--config", str(own), "--overrides", "{'channels': [4, 8]}")


@pytest.mark.parametrize(
    ("in_file", "given", "trained"),
    [
        ({"strategy": {"_target_": "FedCE", "mode": "sum"}}, [], ["FedCE-sum"]),
        ({"strategy": "FedCE", "strategies": ["FedAvg", "CGSV"]}, [], ["FedAvg", "CGSV"]),
        ({"strategies": ["FedAvg", "CGSV"]}, ["--strategy", "FedCE"], ["FedCE"]),
        ({"strategy": "FedAvg"}, ["--strategies", "FedCE", "CGSV"], ["FedCE", "CGSV"]),
        ({"rounds": 3}, [], ["FedAvg"]),
    ],
)
def test_a_files_strategies_count_where_the_command_names_none(
    in_file: dict[str, Any], given: list[str], trained: list[str], sites: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own.json"
    own.write_text(json.dumps(in_file))
    args = _parser().parse_args(["train", str(sites), "--config", str(own), *given])
    line = line_of(args, sites, named_strategies(args))
    assert line.arguments["run_dir"].endswith("-".join(["train-sites", *trained]))
    # What the federation reads in the line.
    found = line.configuration()
    read = found.get("strategies") or [found.get("strategy")]
    assert [strategy_of(one).name for one in read] == trained


@pytest.mark.long
@pytest.mark.slow
def test_several_strategies_are_one_report_with_one_count_of_runs(
    sites: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    names = ["FedAvg", "Standalone", "FedCE"]
    given = ["--strategy", *names, *TINY, "--adapt", "1"]
    assert main(["train", str(sites), "--out", str(tmp_path / "run"), *given]) == 0
    printed = capfd.readouterr()
    # The models trained alone are candidates of the others: they come first.
    assert [line.split(":")[0] for line in printed.err.splitlines() if "done" in line] == [
        "1/3 Standalone",
        "2/3 FedAvg",
        "3/3 FedCE",
    ]
    assert "The last mile: " in printed.out
    assert f"Model of FedCE: {tmp_path / 'run' / 'FedCE' / 'models' / 'global.pt'}" in printed.out
    assert "Model of Standalone" not in printed.out
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert set(report["strategies"]) == set(names)


@pytest.mark.long
@pytest.mark.slow
def test_no_global_model_is_named_where_hospitals_keep_some_tensors(
    sites: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own.json"
    own.write_text(json.dumps({"local_norm": True}))
    given = ["--strategy", "FedAvg", *TINY, "--config", str(own)]
    assert main(["train", str(sites), "--out", str(tmp_path / "run"), *given]) == 0
    printed = capfd.readouterr().out
    assert "FedAvg has no complete global model: its hospitals keep some tensors" in printed
    assert "global.pt" not in printed and "Segment images with" not in printed
    assert "Own models of 2 hospitals" in printed


@pytest.mark.slow
def test_a_training_that_a_signal_stopped_is_not_shown_as_one_that_is_done(
    trained: Path, tmp_path: Path
) -> None:
    require_end(trained)
    shutil.copytree(trained, tmp_path / "run")
    ledger = tmp_path / "run" / "ledger.jsonl"
    # Without its last record, as a signal leaves it.
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(FederationError, match="run stopped with 2 rounds done. The same command"):
        require_end(tmp_path / "run")
