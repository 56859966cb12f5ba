# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``monai-fairfl train`` and ``try``: a run's folder, its numbers, and what is refused."""

from __future__ import annotations

import ast
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import public_layouts as made
from helpers import warm_python
from helpers.command_line import (
    FEDCE,
    FUNDUS,
    NO_DEVICE,
    PROSTATE,
    TINY,
    Commands,
    bytes_of,
    lines_in,
    wait_until,
)

from monai_fairfl import read_ledger

Keys = Callable[..., dict[str, str]]


@pytest.fixture
def keys(sites: Path, tmp_path: Path, cli: Commands) -> Keys:
    """Maker of the keys of the line that a command line stands for; nothing is trained."""

    def of(*given: object) -> dict[str, str]:
        words = ["train", sites, *given, *NO_DEVICE]
        if "--out" not in given:
            words += ["--out", tmp_path / "asked"]
        return cli.keys(*words)

    return of


def test_a_run_leaves_its_files_and_the_same_command_finds_all_done(
    trained: Path, sites: Path, cli: Commands
) -> None:
    records = read_ledger(trained / "ledger.jsonl")
    assert [record["kind"] for record in records] == ["start", "round", "round", "end"]
    assert (records[0]["strategy"], records[0]["clients"]) == ("FedCE", ["alder", "elm"])
    for name in ("report.html", "models/global.pt", "datalists/elm.json", "log.txt"):
        assert (trained / name).stat().st_size > 0
    assert set(json.loads((trained / "report.json").read_text())["sites"]) == {"alder", "elm"}
    before = bytes_of(trained, "ledger.jsonl", "models/*")
    found = cli.json("train", sites, "--out", trained, *FEDCE, *TINY)
    assert found["report"] == str(trained / "report.html")
    assert found["models"] == {"FedCE-sum": str(trained / "models" / "global.pt")}
    assert bytes_of(trained, "ledger.jsonl", "models/*") == before


def test_a_run_that_a_signal_stopped_says_so_and_its_log_has_what_libraries_print(
    sites: Path, tmp_path: Path
) -> None:
    out, shown, log = tmp_path / "run", tmp_path / "shown", tmp_path / "log"
    words = ["-m", "monai_fairfl", "train", str(sites), "--out", str(out), *FEDCE, *TINY]
    words += ["--local-epochs", "1"]
    process = warm_python.start(words, tmp_path, shown, log)
    wait_until(lambda: lines_in(out / "ledger.jsonl") >= 1, process, log)
    os.kill(process.pid or 0, signal.SIGINT)
    process.join()
    # The round that has begun ends; the run does not, and nothing says that it did.
    assert process.exitcode == 2
    kinds = [record["kind"] for record in read_ledger(out / "ledger.jsonl")]
    assert "end" not in kinds
    assert "report.html" not in shown.read_text()
    # What libraries print is in the log alone.
    for text in ("eval()", "input summary of monai.bundle"):
        assert text in (out / "log.txt").read_text()
        assert text not in shown.read_text() + log.read_text()


def test_another_training_is_refused_in_the_folder_of_this_one(
    trained: Path, sites: Path, cli: Commands
) -> None:
    before = bytes_of(trained, "ledger.jsonl", "settings.json", "models/*")
    for given, named in (
        (["--strategy", "FedAvg"], "strategy"),
        ([*FEDCE, "--seed", "1"], "seed"),
        # A run that has ended gets no last mile.
        ([*FEDCE, "--adapt-epochs", "10"], "last mile"),
    ):
        assert named in cli.refusal("train", sites, "--out", trained, *TINY, *given)
    assert bytes_of(trained, "ledger.jsonl", "settings.json", "models/*") == before


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--strategy", "fedce"], ["fedce", "FedCE"]),
        (["--bundle", "prostat"], ["prostat", PROSTATE]),
        (["--bundle", FUNDUS], [PROSTATE, FUNDUS]),
        (["--overrides", "{'sise': [32, 32]}"], ["'sise'", "'size'"]),
        (["--recipe", "stong"], ["'stong'", "strong"]),
        (["--settings", "none.json"], ["none.json"]),
        (["--settings", __file__], [Path(__file__).name]),
        (["--out", "Läufe (1)"], ["Läufe (1)"]),
        (["--overrides", "{1: 2}"], ["--overrides", "{1: 2}"]),
        (["--overrides", "open('x')"], ["--overrides", "open('x')"]),
    ],
)
def test_what_is_wrong_is_named_before_anything_is_trained(
    given: list[str],
    named: list[str],
    sites: Path,
    tmp_path: Path,
    cli: Commands,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    said = cli.refusal("train", sites, "--out", "out", *given)
    for word in named:
        assert word in said
    assert not list(tmp_path.rglob("ledger.jsonl"))


def test_one_hospital_is_no_federation(sites: Path, tmp_path: Path, cli: Commands) -> None:
    shutil.copytree(sites / "elm", tmp_path / "one" / "elm")
    out = tmp_path / "out"
    for words in (["train"], ["try"], ["compare", "--strategy", "FedAvg", "FedCE"]):
        said = cli.refusal(*words, "--out", out, "--", tmp_path / "one")
        assert "elm" in said and "two" in said
        assert not out.exists()


def test_a_run_without_out_has_a_folder_with_the_name_of_its_data(
    sites: Path, tmp_path: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in ("train", "try"):
        found = cli.keys(command, sites, *NO_DEVICE)
        assert found["run_dir"] == str(tmp_path / f"{command}-two_hospitals")


def test_an_option_is_a_key_and_what_is_not_given_is_left_to_the_bundle(keys: Keys) -> None:
    always = {"config_file", "bundle_root", "sites_root", "run_dir", "resume"}
    assert set(keys()) == {*always, "devices"}
    given = ["--adapt-epochs", "10", "--seed", "3", "--jobs", "2", "--local-epochs", "4", *FEDCE]
    found = keys(*given, "--overrides", "{'stereo': False}")
    assert found["adapt_epochs"] == "10"
    assert (found["seed"], found["jobs"], found["local_epochs"]) == ("3", "2", "4")
    assert found["strategies"] == "[\"FedCE('sum')\"]"
    # MONAI reads the words as Python does.
    assert found["overrides"] == "{'stereo': False}"


def test_files_come_after_those_of_the_bundle_and_the_commands_values_beside_theirs(
    keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own.json"
    own.write_text('{"rounds": 7, "overrides": {"size": [48, 48]}}')
    found = keys("--quick", "--settings", own, "--overrides", "{'channels': [4, 8]}")
    names = [Path(file).name for file in ast.literal_eval(found["config_file"])]
    assert names == ["federate.json", "quick.json", "own.json"]
    assert ast.literal_eval(found["overrides"]) == {"size": [48, 48], "channels": [4, 8]}
    found = keys("--settings", own, "--overrides", "{'loss#batch': True}")
    assert found["overrides"] == "{'size': [48, 48], 'loss#batch': True}"
    # The line is the same in any folder.
    monkeypatch.chdir(tmp_path)
    assert keys("--settings", "own.json") == keys("--settings", own)


# --- the first look


def clinics(root: Path) -> Path:
    """Two sites of photographs."""
    made.folders(root / "elm")
    made.folders(root / "oak", first=10)
    return root


def test_try_compares_three_strategies_and_finds_all_done_the_second_time(
    sites: Path, tmp_path: Path, cli: Commands
) -> None:
    out = tmp_path / "out"
    words = ["try", sites, "--out", out, *TINY, "--rounds", "1", "--local-epochs", "1"]
    words += ["--evaluate", "[]", "--final", '["test_score"]']
    found = cli.json(*words)
    report = json.loads(Path(found["report"]).with_suffix(".json").read_text())
    assert list(report["strategies"]) == ["Standalone", "FedAvg", "FedCE"]
    # A first look judges nobody.
    assert not any(strategy["judged"] for strategy in report["strategies"].values())
    before = bytes_of(out, "*/ledger.jsonl")
    # Its page is there.
    assert cli.json(*words, "--report", "False") == found
    assert bytes_of(out, "*/ledger.jsonl") == before

    # It is never shown for other hospitals.
    said = cli.refusal("try", clinics(tmp_path / "others"), "--out", out)
    assert str(out) in said and "--out" in said


def test_the_bundle_follows_from_the_images_and_whether_they_are_pairs_is_of_photographs(
    sites: Path, tmp_path: Path, cli: Commands
) -> None:
    root = clinics(tmp_path / "clinics")
    words = ["--out", tmp_path / "asked", *NO_DEVICE]
    for folder, bundle in ((sites, PROSTATE), (root, FUNDUS)):
        found = cli.keys("train", folder, *words)
        assert Path(found["bundle_root"]).name == bundle
    # Volumes and photographs train no common model; grey slices are no photographs.
    (root / "alder").symlink_to(sites / "alder")
    assert "alder" in cli.refusal("train", root, *words)
    (root / "alder").unlink()
    made.write(root / "elm" / "images" / "eye00.png", made.photo(0)[..., 0])
    assert "elm" in cli.refusal("train", root, *words)
