# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``monai-fairfl train`` and ``try``: a run's folder, its numbers, and what is refused."""

from __future__ import annotations

import ast
import json
import os
import shlex
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
    OVERRIDES,
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


def test_a_run_leaves_its_ledger_models_report_and_log(trained: Path) -> None:
    records = read_ledger(trained / "ledger.jsonl")
    assert [record["kind"] for record in records] == ["start", "round", "round", "end"]
    assert (records[0]["strategy"], records[0]["clients"]) == ("FedCE", ["alder", "elm"])
    for name in ("report.html", "models/global.pt", "datalists/elm.json", "log.txt"):
        assert (trained / name).stat().st_size > 0
    assert set(json.loads((trained / "report.json").read_text())["sites"]) == {"alder", "elm"}
    keys = json.loads((trained / "settings.json").read_text())["keys"]
    assert (keys["rounds"], keys["overrides"]) == (2, OVERRIDES)


def test_the_same_command_finds_all_done_and_says_where_it_is(
    trained: Path, sites: Path, cli: Commands
) -> None:
    before = bytes_of(trained, "ledger.jsonl", "models/*")
    found = cli.json("train", sites, "--out", trained, *FEDCE, *TINY)
    assert (found["run"], found["report"]) == (str(trained), str(trained / "report.html"))
    assert found["models"] == {"FedCE-sum": str(trained / "models" / "global.pt")}
    assert bytes_of(trained, "ledger.jsonl", "models/*") == before


def test_stopped_by_a_signal_and_resumed_by_the_logged_line_the_run_is_the_same(
    trained: Path, sites: Path, tmp_path: Path
) -> None:
    out, shown, log = tmp_path / "run", tmp_path / "shown", tmp_path / "log"
    words = ["-m", "monai_fairfl", "train", str(sites), "--out", str(out), *FEDCE, *TINY]
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

    logged = (out / "log.txt").read_text().splitlines()
    [line] = [line for line in logged if line.startswith("python -m monai.bundle")]
    done = warm_python.run(shlex.split(line)[1:], tmp_path)
    assert done.returncode == 0, done.stderr
    for pattern in ("ledger.jsonl", "models/*.pt", "metrics.csv"):
        assert bytes_of(out, pattern) == bytes_of(trained, pattern)


def test_another_training_is_refused_in_the_folder_of_this_one(
    trained: Path, sites: Path, cli: Commands
) -> None:
    before = bytes_of(trained, "ledger.jsonl", "settings.json", "models/*")
    for given, named in (
        (["--strategy", "FedAvg"], "strategy"),
        ([*FEDCE, "--seed", "1"], "seed"),
        # A run that has ended gets no last mile.
        ([*FEDCE, "--adapt"], "--adapt"),
    ):
        assert named in cli.refusal("train", sites, "--out", trained, *TINY, *given)
    assert bytes_of(trained, "ledger.jsonl", "settings.json", "models/*") == before


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--strategy", "fedce"], ["fedce", "FedCE"]),
        (["--bundle", "prostat"], ["prostat", PROSTATE]),
        (["--bundle", FUNDUS], ["volumes", FUNDUS, "--bundle"]),
        (["--overrides", "{'sise': [32, 32]}"], ["'sise'", "'size'"]),
        (["--recipe", "stong"], ["'stong'", "strong"]),
        (["--settings", "none.json"], ["none.json", "--settings"]),
        (["--settings", __file__], [Path(__file__).name]),
        (["--out", "Läufe (1)"], ["--out", "Läufe (1)"]),
    ],
)
def test_what_is_wrong_is_named_before_anything_is_trained(
    given: list[str],
    named: list[str],
    sites: Path,
    tmp_path: Path,
    cli: Commands,
) -> None:
    said = cli.refusal("train", sites, "--out", tmp_path / "out", *given)
    for word in named:
        assert word in said
    assert not (tmp_path / "out" / "ledger.jsonl").exists()


def test_overrides_are_plain_values_by_name(sites: Path, tmp_path: Path, cli: Commands) -> None:
    for text in ("3", "[1]", "size", "{1: 2}", "{'size': 1 + 1}", "open('x')"):
        said = cli.refusal("train", sites, "--overrides", text, "--out", tmp_path / "out")
        assert "--overrides" in said and text in said
    assert not (tmp_path / "out").exists()


def test_one_hospital_is_no_federation(sites: Path, tmp_path: Path, cli: Commands) -> None:
    shutil.copytree(sites / "elm", tmp_path / "one" / "elm")
    out = tmp_path / "out"
    for words in (["train"], ["try"], ["compare", "--strategy", "FedAvg", "FedCE"]):
        said = cli.refusal(*words, "--out", out, "--", tmp_path / "one")
        assert "elm" in said and "two" in said
        assert not out.exists()


def test_a_run_without_out_has_a_folder_that_says_what_it_trains(
    sites: Path,
    tmp_path: Path,
    cli: Commands,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Köln").symlink_to(sites)
    both = ["--strategy", "FedAvg", "FedCE"]
    for words, name in (
        (["train", "Köln"], "train-K_ln-FedAvg"),
        (["train", sites, *both, "--quick"], f"train-{sites.name}-FedAvg-FedCE-quick"),
        (["compare", sites, *both], f"compare-{sites.name}"),
        (["compare", sites, *both, "--quick"], f"compare-{sites.name}-quick"),
    ):
        found = cli.keys(*words, *NO_DEVICE)
        assert found["run_dir"] == str(tmp_path / name)


def test_an_option_is_a_key_and_what_is_not_given_is_left_to_the_bundle(keys: Keys) -> None:
    always = {"config_file", "bundle_root", "sites_root", "run_dir", "resume"}
    assert set(keys()) == {*always, "devices"}
    given = ["--adapt", "--seed", "3", "--jobs", "2", "--local-epochs", "4", *FEDCE]
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
    names = [Path(file).name for file in json.loads(found["config_file"])]
    assert names == ["federate.json", "quick.json", "own.json"]
    assert ast.literal_eval(found["overrides"]) == {"size": [48, 48], "channels": [4, 8]}
    found = keys("--settings", own, "--overrides", "{'loss#batch': True}")
    assert found["overrides"] == "{'size': [48, 48], 'loss#batch': True}"
    # The line is the same in any folder.
    monkeypatch.chdir(tmp_path)
    assert keys("--settings", "own.json") == keys("--settings", own)


def test_a_files_strategies_count_where_the_command_names_none(
    sites: Path, tmp_path: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "own.json"
    words = ["train", sites, "--settings", own, *NO_DEVICE]
    one = {"strategy": {"_target_": "FedCE", "mode": "sum"}}
    several = {"strategy": "FedCE", "strategies": ["FedAvg", "CGSV"]}
    for of_file, given, name in (
        (one, [], "FedCE-sum"),
        (several, [], "FedAvg-CGSV"),
        (several, FEDCE, "FedCE-sum"),
    ):
        own.write_text(json.dumps(of_file))
        assert Path(cli.keys(*words, *given)["run_dir"]).name == f"train-{sites.name}-{name}"


def test_several_strategies_with_a_last_mile_are_one_report(
    sites: Path, tmp_path: Path, cli: Commands
) -> None:
    out = tmp_path / "run"
    given = ["--strategy", "FedAvg", "Standalone", *TINY, "--rounds", "1", "--adapt", "1"]
    found = cli.json("train", sites, "--out", out, *given)
    # Nobody trained the global model of Standalone.
    assert found["models"] == {"FedAvg": str(out / "FedAvg" / "models" / "global.pt")}
    report = json.loads((out / "report.json").read_text())
    assert set(report["strategies"]) == {"FedAvg", "Standalone"}
    # The models trained alone come first, and are candidates of the last mile.
    scores = {}
    for name in ("FedAvg", "Standalone"):
        scores[name] = read_ledger(out / name / "ledger.jsonl")[-1]["scores"]
    for site in ("alder", "elm"):
        alone = scores["Standalone"][site]["own"]["score"]
        assert scores["FedAvg"][site]["alone"]["score"] == alone


def test_no_global_model_is_named_where_hospitals_keep_some_tensors(
    sites: Path, tmp_path: Path, cli: Commands
) -> None:
    own = tmp_path / "own.json"
    own.write_text(json.dumps({"local_norm": True, "rounds": 1, "overrides": OVERRIDES}))
    words = ["train", sites, "--out", tmp_path / "run", "--settings", own, "--jobs", "1"]
    found = cli.json(*words, "--local-epochs", "1")
    assert found["models"] == {}
    assert list((tmp_path / "run").glob("sites/*/state/*-own.pt"))


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
    found = cli.json(*words)
    report = json.loads(Path(found["report"]).with_suffix(".json").read_text())
    assert list(report["strategies"]) == ["Standalone", "FedAvg", "FedCE"]
    # A first look judges nobody.
    assert not any(strategy["judged"] for strategy in report["strategies"].values())
    before = bytes_of(out, "*/ledger.jsonl")
    assert cli.json(*words) == found
    assert bytes_of(out, "*/ledger.jsonl") == before

    # It is never shown for other hospitals.
    said = cli.refusal("try", clinics(tmp_path / "others"), "--out", out)
    assert str(out) in said and "--out" in said


def test_files_at_fault_are_named_before_anything_is_tried(
    sites: Path, tmp_path: Path, cli: Commands
) -> None:
    root = clinics(tmp_path / "sites")
    shutil.copy(root / "elm" / "images" / "eye01.png", root / "elm" / "masks")
    words = ["try", root, "--out", tmp_path / "out"]
    said = cli.refusal(*words)
    assert "elm" in said and "eye01.png" in said
    # Volumes and photographs train no common model.
    shutil.copytree(sites / "alder", root / "alder")
    said = cli.refusal(*words)
    assert "alder" in said and "elm" in said
    assert not list((tmp_path / "out").glob("*/ledger.jsonl"))


def test_the_bundle_follows_from_the_images_and_whether_they_are_pairs_is_of_photographs(
    sites: Path, tmp_path: Path, cli: Commands
) -> None:
    root = clinics(tmp_path / "clinics")
    words = ["--out", tmp_path / "asked", *NO_DEVICE]
    for folder, bundle in ((sites, PROSTATE), (root, FUNDUS)):
        found = cli.keys("train", folder, *words)
        assert Path(found["bundle_root"]).name == bundle
    said = cli.refusal("try", sites, "--stereo", "yes", "--out", tmp_path / "out")
    assert "stereo" in said
    # Grey slices are no photographs of the fundus.
    made.write(root / "elm" / "images" / "eye00.png", made.photo(0)[..., 0])
    assert "elm" in cli.refusal("train", root, *words)
