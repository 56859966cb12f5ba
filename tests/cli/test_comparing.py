# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``monai-fairfl compare``: from a folder of hospitals to tables, stopped and resumed."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import warm_python
from helpers.bundle_runs import OVERRIDES
from helpers.bundle_runs import command as federate_command
from helpers.command_line import run_json
from helpers.failing_strategy import Failing
from helpers.worker_clients import all_end, children_of
from monai.bundle import ConfigParser
from scipy import stats

from monai_fairfl.bundle import repeated
from monai_fairfl.bundle.cells import check_plan, run_cell
from monai_fairfl.bundle.first_look import first_look
from monai_fairfl.bundle.plan import Cell, ComparisonPlan
from monai_fairfl.bundle.repeated import RepeatedFederation, run_comparison
from monai_fairfl.bundle.shipped import find_bundle
from monai_fairfl.cli import main
from monai_fairfl.cli.comparing import line_of
from monai_fairfl.cli.program import _parser
from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.run_folder import ledger
from monai_fairfl.run_folder.ledger import read_ledger
from monai_fairfl.transports.workers import Turn

SITES = ("alder", "cedar", "rowan")
SEEDS = (0, 1)
FOLDS = 2
ROUNDS = 2
TINY = ["--rounds", str(ROUNDS), "--local-epochs", "1", "--overrides", json.dumps(OVERRIDES)]
PROSTATE = "prostate_mri_segmentation"
TABLES = ("cases.csv", "comparison.json", "comparison.csv", "comparison.html")


@pytest.fixture(scope="module")
def sites(hospitals: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tiny hospitals of four cases."""
    root = tmp_path_factory.mktemp("compared")
    for site in SITES:
        shutil.copytree(hospitals / site, root / site)
    return root


def words(sites: Path, out: Path, *more: str) -> list[str]:
    """The command that compares two strategies over two seeds and two folds, in one process."""
    if "--jobs" not in more:
        more = (*more, "--jobs", "1")
    seeds = [str(seed) for seed in SEEDS]
    return [
        *("compare", str(sites), "--out", str(out), "--strategies", "FedAvg", "FedCE('sum')"),
        *("--seeds", *seeds, "--folds", str(FOLDS), *TINY, *more),
    ]


def asked(sites: Path, *given: str) -> ComparisonPlan:
    """The plan of a command line."""
    line = line_of(_parser().parse_args(["compare", str(sites), *given]), sites)
    return RepeatedFederation.from_parser(line.configuration()).plan


# --- what is asked for


def test_the_bundle_follows_from_the_images_and_what_is_not_given_from_its_full_run(
    sites: Path,
) -> None:
    plan = asked(sites, "--strategies", "FedAvg", "FedCE")
    assert plan.bundle == find_bundle(PROSTATE)
    assert plan.training() == {"rounds": 100, "local_epochs": 6}
    assert plan.overrides == {}
    assert plan.cells() == [Cell("FedAvg", 0, None), Cell("FedCE", 0, None)]


def test_a_first_look_is_as_small_as_that_of_try_but_for_what_is_given(sites: Path) -> None:
    small = first_look(find_bundle(PROSTATE))
    given = ("--overrides", "{'size': [32, 32]}", "--rounds", "3")
    plan = asked(sites, "--strategies", "FedAvg", "FedCE", "--quick", *given)
    assert plan.training() == {"rounds": 3, "local_epochs": small.local_epochs}
    assert plan.overrides == {**small.overrides, "size": [32, 32]}


def test_a_first_look_and_the_full_comparison_after_it_have_folders_of_their_own(
    sites: Path,
) -> None:
    folders = []
    for given in (["--quick"], []):
        words = ["compare", str(sites), "--strategies", "FedAvg", "FedCE", *given]
        line = line_of(_parser().parse_args(words), sites)
        folders.append(Path(line.arguments["run_dir"]).name)
    assert folders == [f"compare-{sites.name}-quick", f"compare-{sites.name}"]


def test_all_strategies_of_a_fold_share_its_split_whatever_the_seed(sites: Path) -> None:
    plan = asked(
        sites, "--strategies", "FedAvg", "CGSV(gamma=None)", "--seeds", "3", "1", "--folds", "2"
    )
    cells = plan.cells()
    # All strategies of a seed and fold are neighbours: what is done early can be compared.
    assert [(cell.seed, cell.fold, cell.strategy) for cell in cells[:4]] == [
        (3, 0, "FedAvg"),
        (3, 0, "CGSV-no_gamma"),
        (3, 1, "FedAvg"),
        (3, 1, "CGSV-no_gamma"),
    ]
    assert len(cells) == 8
    assert plan.overrides_of(1) == {"split_seed": 0, "split_folds": 2, "split_fold": 1}
    folders = {cell.folder(Path("out")) for cell in cells}
    assert len(folders) == 8
    assert Path("out/cells/CGSV-no_gamma/seed-1-fold-0") in folders


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("seeds", 3, "seeds .*got 3"),
        ("seeds", [0, 1.5], r"seeds .*got \[0, 1.5\]"),
        ("seeds", [0, True], "seeds .*True"),
        ("folds", "four", "folds .*'four'"),
        ("folds", 2.5, "folds .*2.5"),
    ],
)
def test_seeds_and_folds_of_another_type_are_refused_by_their_name(
    key: str, value: Any, problem: str
) -> None:
    parser = parser_of(Path("none"), Path("none"), strategies=["FedAvg", "FedCE"])
    parser[key] = value
    with pytest.raises(ConfigError, match=problem):
        RepeatedFederation.from_parser(parser)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("config", "configs/train.json"),
        ("overrides", None),
        ("overrides", "$dict(size=[32, 32])"),
        ("sites", "$dict(alder={'config': 'configs/train.json'})"),
    ],
)
@pytest.mark.slow
def test_a_comparison_takes_the_forms_of_a_key_that_a_federation_takes(
    key: str, value: Any, sites: Path, tmp_path: Path
) -> None:
    parser = parser_of(sites, tmp_path, strategies=["FedAvg", "FedCE"], seeds=[0, 1])
    parser.update({key: value, "check": None})
    plan = RepeatedFederation.from_parser(parser).plan
    assert plan.files() == ["configs/train.json"]
    assert plan.sites() == (parser.get_parsed_content("sites") or {})
    federation = plan.federation(["FedAvg"], 0, None, tmp_path / "run", check=False)
    assert federation.site_settings.config == ["configs/train.json"]
    assert federation.site_settings.overrides == (parser.get_parsed_content("overrides") or {})
    federation.read_settings()
    assert federation.runs.recipe().files.keys() == {"configs/train.json"}
    assert {file.name for file in check_plan(plan, tmp_path)} == {f"{site}.json" for site in SITES}


def test_a_single_name_of_a_strategy_is_no_list_of_letters(sites: Path, tmp_path: Path) -> None:
    parser = parser_of(sites, tmp_path, strategies="FedAvg", seeds=[0, 1])
    with pytest.raises(ConfigError, match="two strategies"):
        RepeatedFederation.from_parser(parser)


def parser_of(sites: Path, run_dir: Path, **changes: Any) -> ConfigParser:
    """The configuration of the prostate bundle's federation, with other keys."""
    bundle = find_bundle(PROSTATE)
    parser = ConfigParser()
    parser.read_config(str(bundle / "configs" / "federate.json"))
    places = {"bundle_root": bundle, "sites_root": sites, "run_dir": run_dir}
    parser.update({name: str(place) for name, place in places.items()})
    parser.update(changes)
    return parser


def test_a_device_that_is_in_no_list_is_refused_as_such(sites: Path, tmp_path: Path) -> None:
    plan = asked(sites, "--strategies", "FedAvg", "FedCE")
    with pytest.raises(ConfigError, match="devices .*'cpu'"):
        run_comparison(plan, tmp_path / "out", devices="cpu")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["--strategies", "FedAvg"], "two strategies"),
        (["--strategies", "FedAvg", "fedce"], "'fedce'.*'FedCE'"),
        (["--strategies", "FedCE", "FedCE('multi')"], "same strategy"),
        (["--strategies", "FedAvg", "FedCE", "--folds", "1"], "folds"),
        (["--strategies", "FedAvg", "FedCE", "--seeds", "1", "1"], "seed"),
        (
            ["--strategies", "FedAvg", "FedCE", "--overrides", "{'split_fold': 1}"],
            "split_fold",
        ),
        (["--strategies", "FedAvg", "FedCE", "--bundle", "prostrate"], "prostrate"),
        (
            ["--strategies", "FedAvg", "FedCE", "--overrides", "{'sise': [32, 32]}"],
            "'sise'.*train.json.*'size'",
        ),
        (["--strategies", "FedAvg", "FedCE", "--folds", "5"], "'alder'.*5 folds of 4 cases"),
    ],
)
@pytest.mark.slow
def test_what_cannot_be_compared_is_refused_before_anything_is_trained(
    given: list[str],
    problem: str,
    sites: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    error = run_json(capsys, "compare", str(sites), "--out", str(out), *given, code=2)["error"]
    assert re.search(problem, error)
    # Nothing is left that would refuse the right command.
    assert not out.exists() or {path.name for path in out.iterdir()} <= {".lock", "log.txt"}


def test_two_strategies_that_do_not_store_their_argument_are_told_to(
    sites: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "forgetful_of_share.py").write_text(
        "from monai_fairfl.strategies import FedAvg\n\n\n"
        "class Forgetful(FedAvg):\n"
        "    def __init__(self, share: float = 1.0):\n"
        "        super().__init__()\n"
        "        self.used = share\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    given = [f"forgetful_of_share.Forgetful(share={share})" for share in (2, 3)]
    with pytest.raises(ConfigError, match="Forgetful.*argument"):
        asked(sites, "--strategies", *given).names()


def test_a_folder_that_holds_something_else_is_refused(
    sites: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cases.csv").write_text("of another run")
    given = ["--strategies", "FedAvg", "FedCE", "--out", str(tmp_path)]
    error = run_json(capsys, "compare", str(sites), *given, code=2)["error"]
    assert str(tmp_path) in error and "cases.csv" in error
    assert (tmp_path / "cases.csv").read_text() == "of another run"


def test_one_hospital_is_no_federation(
    sites: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(sites / "alder", tmp_path / "one" / "alder")
    given = ["--strategies", "FedAvg", "FedCE", "--out", str(tmp_path / "out")]
    error = run_json(capsys, "compare", str(tmp_path / "one"), *given, code=2)["error"]
    assert "alder" in error and "two" in error


def test_a_bundle_without_a_first_look_is_refused_one(sites: Path, tmp_path: Path) -> None:
    shutil.copytree(find_bundle(PROSTATE), tmp_path / "own")
    (tmp_path / "own" / "configs" / "quick.json").unlink()
    with pytest.raises(ConfigError, match="quick.json"):
        asked(sites, "--strategies", "FedAvg", "FedCE", "--bundle", f"{tmp_path}/own", "--quick")


@pytest.mark.slow
def test_data_lists_that_a_comparison_has_stay_as_they_are(sites: Path, tmp_path: Path) -> None:
    plan = asked(sites, *words(sites, tmp_path)[2:])
    lists = check_plan(plan, tmp_path)
    assert len(lists) == len(SITES) * FOLDS + len(SITES)
    assert not list(tmp_path.iterdir())
    tested = []
    for fold in range(FOLDS):
        content = lists[tmp_path / "datalists" / f"fold-{fold}" / "alder.json"]
        tested += [case["image"] for case in json.loads(content)["testing"]]
    assert sorted(tested) == [f"Case0{number}.nii.gz" for number in range(4)]

    missing = list(lists)[-1]
    for file, content in lists.items():
        if file != missing:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    assert list(check_plan(plan, tmp_path)) == [missing]

    digests = tmp_path / "datalists" / "alder.digests"
    digests.write_text(digests.read_text().replace(digests.read_text()[:64], "0" * 64))
    with pytest.raises(DataError, match="'alder': 1 of 4 cases"):
        check_plan(plan, tmp_path)


def test_a_sites_own_list_or_split_is_the_one_of_its_cells(sites: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    given = ["--strategies", "FedAvg", "FedCE", "--config", str(own)]
    lists = {"alder": {"datalist_file": str(tmp_path / "a.json")}, "cedar": {"split_seed": 5}}
    own.write_text(json.dumps({"sites": lists}))
    with pytest.raises(ConfigError, match="datalist_file.*'alder'"):
        asked(sites, *given, "--folds", "2")
    made = check_plan(asked(sites, *given), tmp_path / "out")
    [file] = [file for file in made if file.stem in lists and file.suffix == ".json"]
    assert file.stem == "cedar" and json.loads(made[file])["split"]["seed"] == 5


@pytest.mark.parametrize("text", ["3", "[1]", "size", "{1: 2}", "{'size': 1 + 1}", "open('x')"])
def test_overrides_are_plain_values_by_name(
    text: str, sites: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        asked(sites, "--strategies", "FedAvg", "FedCE", "--overrides", text)
    assert "--overrides" in capsys.readouterr().err


# --- a whole comparison


@pytest.fixture(scope="module")
def compared(sites: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A comparison that nothing interrupted, and the table that it printed."""
    out = tmp_path_factory.mktemp("whole") / "out"
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.setenv("COLUMNS", "120")
        assert main(words(sites, out)) == 0
    yield out, table_of(printed.getvalue())


def table_of(printed: str) -> str:
    """What a comparison prints after the line of MONAI that it runs."""
    return printed[printed.index(line_in(printed)) + len(line_in(printed)) :]


def line_in(printed: str) -> str:
    """The line of MONAI that a comparison prints."""
    [line] = [line for line in printed.splitlines() if line.startswith("python -m monai.bundle")]
    return line


def rows_of(out: Path, metric: str = "test_score:dice") -> list[dict[str, str]]:
    """The rows of cases.csv, read by the csv module alone."""
    with (out / "cases.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["metric"] == metric]


@pytest.mark.long
@pytest.mark.slow
def test_every_case_is_tested_once_by_every_strategy_and_seed(compared: tuple[Path, str]) -> None:
    rows = rows_of(compared[0])
    assert len(rows) == 2 * len(SEEDS) * len(SITES) * 4
    keys = {(row["strategy"], row["seed"], row["site"], row["case"]) for row in rows}
    assert len(keys) == len(rows)
    folds: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        folds.setdefault((row["site"], row["case"]), set()).add(row["fold"])
    assert all(len(of_case) == 1 for of_case in folds.values())


@pytest.mark.long
@pytest.mark.slow
def test_the_table_equals_one_computed_from_its_csv_with_scipy(compared: tuple[Path, str]) -> None:
    out, printed = compared
    # strategy -> values by seed, site and case
    values: dict[str, Any] = {}
    for strategy in ("FedAvg", "FedCE-sum"):
        chosen = [row for row in rows_of(out) if row["strategy"] == strategy]
        chosen.sort(key=lambda row: (row["seed"], row["site"], row["case"]))
        numbers = [float(row["value"]) for row in chosen]
        values[strategy] = np.array(numbers).reshape(len(SEEDS), len(SITES), -1)

    of_sites = {name: array.mean(axis=2) for name, array in values.items()}
    stacked = np.round(np.stack(list(of_sites.values())), 12)
    ranks = stats.rankdata(-stacked, axis=0).mean(axis=(1, 2))
    for number, (name, array) in enumerate(of_sites.items()):
        mean, std = array.mean(axis=1).mean(), stats.tstd(array.mean(axis=1))
        row = rf"{name} +│ +{mean:.3f} ± {std:.3f} │ .* │ +{ranks[number]:.2f} "
        assert re.search(row, printed), row

    by_case = (values["FedCE-sum"] - values["FedAvg"]).mean(axis=0).ravel()
    p_value = stats.wilcoxon(np.round(by_case, 12)).pvalue
    estimate = (of_sites["FedCE-sum"] - of_sites["FedAvg"]).mean()
    shown = rf"FedCE-sum less FedAvg │ +{estimate:.3f} \(.*\) │ +{p_value:.3f} │ +{p_value:.3f} "
    assert re.search(shown, printed), shown

    found = json.loads((out / "comparison.json").read_text())
    [pair] = found["metrics"]["test_score:dice"]["pairs"]
    assert pair["difference"]["estimate"] == pytest.approx(estimate, abs=1e-12)
    assert pair["p_value"] == pytest.approx(p_value, rel=1e-9)
    assert pair["difference"]["low"] < estimate < pair["difference"]["high"]


@pytest.mark.long
@pytest.mark.slow
def test_the_same_command_trains_nothing_again_and_another_one_is_refused(
    compared: tuple[Path, str],
    sites: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, _ = compared
    before = {name: (out / name).read_bytes() for name in TABLES}
    readings: Counter[Path] = Counter()
    whole_lines = ledger._whole_lines

    def noted(path: Path) -> list[bytes]:
        readings[path] += 1
        return whole_lines(path)

    monkeypatch.setattr(ledger, "_whole_lines", noted)
    ledgers = {file: file.stat().st_mtime_ns for file in out.glob("cells/*/*/ledger.jsonl")}
    assert len(ledgers) == 8
    assert main(words(sites, out)) == 0
    assert {name: (out / name).read_bytes() for name in TABLES} == before
    assert {file: file.stat().st_mtime_ns for file in ledgers} == ledgers
    # Once to see that its cell is done, once for the tables.
    assert readings == dict.fromkeys(ledgers, 2)

    capsys.readouterr()
    error = run_json(capsys, *words(sites, out, "--seeds", "0", "2"), code=2)["error"]
    assert "seeds" in error and "[0, 1]" in error and "[0, 2]" in error
    assert "overrides" not in error


def test_another_comparison_is_refused_before_anything_is_said_of_it(
    sites: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = asked(sites, "--strategies", "FedAvg", "FedCE", *TINY)
    (tmp_path / "plan.json").write_text(json.dumps(before.record(), default=str))
    (tmp_path / "log.txt").write_text("of the comparison")
    given = ["--strategies", "FedAvg", "FedCE", "CGSV", "--out", str(tmp_path), *TINY]
    assert main(["compare", str(sites), *given]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("monai-fairfl: ")
    assert "strategies" in printed.err and "CGSV" in printed.err
    assert (tmp_path / "log.txt").read_text() == "of the comparison"


def test_a_comparison_without_standalone_says_before_it_trains_what_it_cannot_show(
    sites: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stop(*_: object) -> None:
        raise ConfigError("stopped before the training")

    monkeypatch.setattr(repeated, "run_comparison", stop)
    said = "Standalone is not among the strategies"
    for third, expected in (("CGSV", True), ("Standalone", False)):
        given = ["--strategies", "FedAvg", "FedCE", third, "--out", str(tmp_path / third), *TINY]
        assert main(["compare", str(sites), *given]) == 2
        assert (said in capsys.readouterr().out) is expected


def test_other_strategies_are_refused_as_they_were_given(sites: Path, tmp_path: Path) -> None:
    before = asked(sites, "--strategies", "FedAvg", "FedCE('sum')")
    (tmp_path / "plan.json").write_text(json.dumps(before.record(), default=str))
    again = asked(sites, "--strategies", "FedAvg", "FedCE", "--seeds", "1")
    with pytest.raises(ConfigError, match=r"strategies .*FedCE\('sum'\).*seeds") as error:
        run_comparison(again, tmp_path)
    assert "None" not in str(error.value)


@pytest.mark.long
@pytest.mark.slow
def test_a_finished_cell_leaves_no_state_that_only_a_resumed_run_needs(
    compared: tuple[Path, str],
) -> None:
    cell = compared[0] / "cells" / "FedAvg" / "seed-0-fold-0"
    assert (cell / "models" / "global.pt").is_file()
    assert not (cell / "checkpoints").exists()
    assert not list(cell.glob("sites/*/state/*.pt"))
    assert "FedAvg round 2/2" in (cell / "log.txt").read_text()


def rounds_in(folder: Path) -> int:
    """Whole lines of a ledger, the opening included."""
    file = folder / "ledger.jsonl"
    if not file.exists():
        return 0
    return file.read_bytes().count(b"\n")


@pytest.mark.long
@pytest.mark.slow
def test_killed_in_the_middle_and_resumed_every_file_is_the_same(
    compared: tuple[Path, str], sites: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = ["-W", "ignore", "-m", "monai_fairfl", *words(sites, out)]
    process = warm_python.start(command, tmp_path, stderr=tmp_path / "log")
    # The fourth of eight cells has begun, and not ended.
    fourth = out / "cells" / "FedCE-sum" / "seed-0-fold-1"
    wait_until(lambda: rounds_in(fourth) >= 2, process, tmp_path / "log")
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    kinds = [record["kind"] for record in read_ledger(fourth / "ledger.jsonl")]
    assert "end" not in kinds
    assert not (out / "comparison.json").exists()

    log = require_same_when_resumed(command, out, compared)
    assert "8/8 FedCE-sum, seed 1, fold 1: done" in log
    assert "3/8" not in log


def require_same_when_resumed(command: list[str], out: Path, compared: tuple[Path, str]) -> str:
    """The command goes on to the tables and files of a comparison that nothing interrupted.

    Returns:
        What it logged.
    """
    whole, printed = compared
    done = warm_python.run(command, out.parent, COLUMNS="120")
    assert done.returncode == 0, done.stderr
    assert table_of(done.stdout).replace(str(out), str(whole)) == printed
    require_same_files(out, whole, [*TABLES, "plan.json"])
    return done.stderr


def require_same_files(out: Path, whole: Path, names: Sequence[str]) -> None:
    """Both comparisons have the same files of these names, ledgers, models and data lists."""
    for name in names:
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name
    for pattern in ("cells/*/*/ledger.jsonl", "cells/*/*/models/*.pt", "datalists/*/*.json"):
        files = list(whole.glob(pattern))
        assert files
        for file in files:
            assert (out / file.relative_to(whole)).read_bytes() == file.read_bytes(), file


@pytest.mark.long
@pytest.mark.slow
def test_cells_at_a_time_with_killed_workers_and_ctrl_c_leave_the_files_of_one_process(
    compared: tuple[Path, str], sites: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = ["-W", "ignore", "-m", "monai_fairfl", *words(sites, out, "--jobs", "2")]
    process = warm_python.start(command, tmp_path, stderr=tmp_path / "log")
    first, second, third = (cell.folder(out) for cell in asked_cells(sites, out)[:3])

    def both_have_begun() -> bool:
        return rounds_in(first) >= 1 and rounds_in(second) >= 1

    wait_until(both_have_begun, process, tmp_path / "log")
    workers = children_of(process.pid or 0)
    for worker in workers:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
    wait_until(lambda: rounds_in(third) >= 1, process, tmp_path / "log")
    later = children_of(process.pid or 0)
    os.kill(process.pid or 0, signal.SIGINT)
    process.join()
    text = (tmp_path / "log").read_text()
    assert process.exitcode == 2
    assert "SIGKILL" in text and "stopped in " in text
    assert len(workers) >= 2 and not set(workers) & set(later)
    assert all_end(later)

    command = ["-W", "ignore", "-m", "monai_fairfl", *words(sites, out, "--jobs", "3")]
    assert "8/8 " in require_same_when_resumed(command, out, compared)


def asked_cells(sites: Path, out: Path) -> list[Cell]:
    """The cells of the command."""
    return asked(sites, *words(sites, out)[2:]).cells()


def wait_until(condition: Callable[[], bool], process: Any, log: Path) -> None:
    """Wait for something that a process does."""
    deadline = time.monotonic() + 300
    while not condition():
        assert process.is_alive() and time.monotonic() < deadline, log.read_text()
        time.sleep(0.002)


# --- cells


@pytest.mark.long
@pytest.mark.slow
def test_a_cell_that_fails_does_not_stop_the_others_and_is_tried_again(
    sites: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out"
    names = ["FedAvg", "helpers.failing_strategy.Failing", "FedCE"]
    command = ["compare", str(sites), "--out", str(out), "--strategies", *names, *TINY]
    command += ["--jobs", "1"]
    found = run_json(capsys, *command, code=2)
    assert found["failed"] == {"Failing, seed 0": "it fails on purpose"}
    dice = found["metrics"]["test_score:dice"]
    assert [each["strategy"] for each in dice["strategies"]] == ["FedAvg", "FedCE"]
    [left_out] = dice["left_out"]
    assert "Failing" in left_out and "seed 0" in left_out
    assert "it fails on purpose" in (out / "comparison.html").read_text()

    monkeypatch.setattr(Failing, "fails", False)
    found = run_json(capsys, *command)
    assert found["failed"] == {}
    failed, plain = (found["metrics"]["test_score:dice"]["strategies"][n] for n in (1, 0))
    # What failed is FedAvg in all but its name, and went on from its first round.
    assert failed["by_site"] == plain["by_site"]


@pytest.mark.long
@pytest.mark.slow
def test_a_cell_alone_in_worker_processes_is_the_cell_of_the_comparison(
    compared: tuple[Path, str], sites: Path, tmp_path: Path
) -> None:
    # In another order and another folder, as a scheduler may deal it out.
    arguments = words(sites, tmp_path)[2:]
    plan = asked(sites, *arguments)
    cell = plan.cells()[-1]
    assert run_cell(plan, cell, tmp_path, Turn(jobs=2))
    alone = (cell.folder(tmp_path) / "ledger.jsonl").read_bytes()
    assert alone == (cell.folder(compared[0]) / "ledger.jsonl").read_bytes()


# --- by federate.json


def federate(sites: Path, run_dir: Path, *more: str) -> list[str]:
    """The command that asks a bundle's federate.json for the same comparison."""
    targets = [
        {"_target_": "monai_fairfl.strategies.FedAvg"},
        {"_target_": "monai_fairfl.strategies.FedCE", "mode": "sum"},
    ]
    given = ["--strategies", json.dumps(targets), "--seeds", str(list(SEEDS))]
    return federate_command(
        sites, run_dir, *given, "--folds", str(FOLDS), "--rounds", str(ROUNDS), *more
    )


@pytest.mark.long
@pytest.mark.slow
def test_a_federate_json_with_seeds_and_folds_is_the_comparison_of_the_command(
    compared: tuple[Path, str], sites: Path, tmp_path: Path
) -> None:
    whole, printed = compared
    out = tmp_path / "run"
    done = warm_python.run(federate(sites, out, "--jobs", "2"), tmp_path, COLUMNS="120")
    assert done.returncode == 0, done.stderr
    assert printed.replace(str(whole), str(out)).strip() in done.stdout
    require_same_files(out, whole, ["cases.csv", "comparison.csv"])

    # A used folder, and what a resumed comparison would do otherwise.
    again = warm_python.run(federate(sites, out), tmp_path)
    assert again.returncode == 2
    assert "--resume True" in again.stderr
    changed = ["--resume", "True", "--min_clients", "3"]
    again = warm_python.run(federate(sites, out, *changed), tmp_path)
    assert "min_clients" in again.stderr
    again = warm_python.run(federate(sites, out, "--resume", "True", "--keep", "5"), tmp_path)
    assert again.returncode == 0, again.stderr


@pytest.mark.long
@pytest.mark.slow
def test_the_printed_line_is_the_same_comparison_and_libraries_write_into_the_log(
    compared: tuple[Path, str], sites: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(compared[0], out)
    before = (out / "plan.json").read_bytes()
    assert main(words(sites, out)) == 0
    printed = capfd.readouterr()
    assert "eval()" not in printed.out + printed.err and "INFO" not in printed.out + printed.err

    done = warm_python.run(shlex.split(line_in(printed.out))[1:], tmp_path, COLUMNS="120")
    assert done.returncode == 0, done.stderr
    # It finds all done, and prints the same table.
    assert compared[1].replace(str(compared[0]), str(out)).strip() in done.stdout
    assert (out / "plan.json").read_bytes() == before


@pytest.mark.slow
def test_valuations_are_of_one_training(sites: Path, tmp_path: Path) -> None:
    valuations = json.dumps([{"_target_": "monai_fairfl.valuation.Retraining"}])
    done = warm_python.run(federate(sites, tmp_path / "run", "--valuations", valuations), tmp_path)
    assert done.returncode == 2
    assert "valuations" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.extended
@pytest.mark.long
@pytest.mark.slow
def test_with_a_last_mile_the_models_trained_alone_come_first_and_are_candidates(
    sites: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    targets = [
        {"_target_": "monai_fairfl.strategies.FedAvg"},
        {"_target_": "monai_fairfl.strategies.Standalone"},
    ]
    last_mile = ["--adapt_epochs", "1", "--jobs", "2"]
    strategies = ["--strategies", json.dumps(targets), "--seeds", "[0, 1]"]
    done = warm_python.run(
        federate_command(sites, out, *strategies, "--rounds", "2", *last_mile), tmp_path
    )
    assert done.returncode == 0, done.stderr
    for seed in SEEDS:
        federated = read_ledger(out / f"cells/FedAvg/seed-{seed}/ledger.jsonl")[-1]["scores"]
        alone = read_ledger(out / f"cells/Standalone/seed-{seed}/ledger.jsonl")[-1]["scores"]
        for site in SITES:
            assert federated[site]["alone"]["score"] == alone[site]["own"]["score"]
            assert "alone" not in alone[site]
