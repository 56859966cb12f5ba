# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The published numbers are those of the committed files; a cell runs from command to JSON."""

from __future__ import annotations

import doctest
import importlib
import json
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from helpers.checkout import CHECKOUT

from monai_fairfl.utils.files import safe_name

IMAGES = {("prostate", "prostate_other_folds"): 34, ("prostate",): 20, ("fundus",): 165}


@pytest.fixture(autouse=True)
def _experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(CHECKOUT / "experiments"))


def load(name: str) -> Any:
    return importlib.import_module(name)


def names() -> list[str]:
    return sorted(path.stem for path in (CHECKOUT / "experiments" / "studies").glob("*.json"))


@pytest.mark.long
@pytest.mark.slow
def test_every_page_is_made_of_the_committed_files() -> None:
    results = load("results")
    for page in results.PAGES:
        assert page.read_text() == results.filled(page.read_text()), f"{page}: run make results"


def test_every_experiment_has_its_place_in_the_results() -> None:
    results = load("results")
    for name in results.papers():
        module = results.load(name)
        # Trainings with guards stand on the guards' page, classifiers on that of the controls, all
        # others on the page of results.
        shown_on = "results.md"
        for page in ("guards", "controls"):
            if name.startswith(f"{page}_"):
                shown_on = f"{page}.md"
        page = (CHECKOUT / "docs" / shown_on).read_text()
        assert page.count(f"<!-- begin {name} -->") == page.count(f"<!-- end {name} -->") == 1
        assert hasattr(module, "table") or hasattr(module, "figure")
        assert set(module.STUDIES) <= set(names())


def test_no_table_or_figure_calls_the_loss_weighted_average_q_fedavg() -> None:
    results = load("results")
    shown = [
        line
        for page in results.PAGES
        for line in page.read_text().splitlines()
        if line.startswith("|")
    ]
    for figure in (CHECKOUT / "docs" / "images" / "results").glob("*.svg"):
        shown += figure.read_text().splitlines()
    assert any("loss-weighted" in line for line in shown)
    assert not [line for line in shown if "qfedavg" in line.lower().replace("-", "")]


@pytest.mark.slow
@pytest.mark.parametrize("change", ["missing", "another number"])
def test_a_missing_or_changed_file_is_noticed(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, study = load("results"), load("study")
    page = next(page for page in results.PAGES if "prostate" in str(page))
    shutil.copytree(CHECKOUT / "experiments" / "results", tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(study.Study, "results", property(lambda self: tmp_path / self.name))
    assert results.filled(page.read_text()) == page.read_text()
    file = tmp_path / "prostate" / "FedAvg-fold1.json"
    if change == "missing":
        file.unlink()
    else:
        file.write_text(file.read_text().replace('"minutes": ', '"minutes": 1'))
    assert results.filled(page.read_text()) != page.read_text()


@pytest.mark.parametrize("name", names())
def test_a_studys_files_are_its_cells_made_by_the_command_that_it_gives_now(name: str) -> None:
    study = load("study").Study.read(name)
    cells = {cell.name: cell for cell in study.cells()}
    assert all(safe_name(name, most=128) for name in cells)
    for path in study.results.glob("*.json"):
        result, cell = json.loads(path.read_text()), cells[path.stem]
        assert (result["study"], result["setting"], result["strategy"]) == (
            name,
            cell.setting,
            cell.strategy,
        )
        assert (result["fold"], result["seed"]) == (cell.fold, study.seed_of(cell))
        assert result["command"] == study.recorded_command(
            cell
        ), f"{path} is of other settings: delete it"
        rounds = study.arguments_of(cell).get("rounds", study.rounds)
        assert all(len(values) == rounds for values in (result["global_score"] or {}).values())


@pytest.mark.parametrize("name", names())
def test_a_results_cases_are_all_that_the_run_tested(name: str) -> None:
    reading, study = load("reading"), load("study").Study.read(name)
    for result in study.committed():
        for site, scores in reading.cases([result]).items():
            tested = result["closing"][site]["own"]
            whole = tested.get("personal_test_score", tested["test_score"])
            assert sum(scores.values()) / len(scores) == pytest.approx(whole, abs=1e-4), (
                result["command"],
                site,
            )


@pytest.mark.parametrize("names", IMAGES, ids=" and ".join)
def test_every_real_image_is_tested_once_by_every_complete_strategy(names: tuple[str, ...]) -> None:
    reading = load("reading")
    found = reading.joined(*names)
    assert {"FedAvg", "FedCE"} <= set(found)
    for results in found.values():
        assert sum(len(cases) for cases in reading.cases(results).values()) == IMAGES[names]


def rounding_shifts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shift: float) -> None:
    """Take the committed results of `fundus`; FedAvg's second training scores ``shift`` more than
    its first.
    """
    study = load("study")
    folder = tmp_path / "fundus"
    shutil.copytree(CHECKOUT / "experiments" / "results" / "fundus", folder)
    monkeypatch.setattr(study.Study, "results", property(lambda self: tmp_path / self.name))
    for fold in range(3):
        again = json.loads((folder / f"FedAvg-fold{fold}.json").read_text())
        for site, scores in again["test"]["dice"].items():
            again["test"]["dice"][site] = [score + shift for score in scores]
        (folder / f"uniform-FedAvg-fold{fold}.json").write_text(json.dumps(again))
        shutil.copy(
            folder / f"FedCE-fold{fold}.json", folder / f"uniform-FedAvg-uniform-fold{fold}.json"
        )


@pytest.mark.slow
@pytest.mark.parametrize(("shift", "marked"), [(0.0, False), (0.001, False), (0.003, True)])
def test_uniform_weights_are_compared_with_the_fedavg_that_was_trained_beside_them(
    shift: float, marked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounding_shifts(tmp_path, monkeypatch, shift)
    reading, lines = load("reading"), load("papers.control_uniform").table().splitlines()
    whole = next(line for line in lines if line.startswith("| fundus | all |")).split(" | ")
    gain = reading.difference(
        reading.read("fundus")["FedCE"], reading.read("fundus")["FedAvg"]
    ).estimate
    assert whole[5].startswith(f"{gain - shift:+.3f} (")
    assert whole[3].endswith("*") == marked
    gains = {line.split(" | ")[0]: line for line in lines if line.count(" | ") == 5}
    assert f" {gain - shift:+.3f} (" in gains["| uniform weights"]
    assert f" {gain:+.3f} (" in gains["| FedCE"]  # its own FedAvg is the first one


@pytest.mark.slow
def test_a_study_without_all_folds_of_uniform_weights_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounding_shifts(tmp_path, monkeypatch, 0.0)
    results = load("results")
    assert "| fundus | 2 |" in results.block("control_uniform")
    (tmp_path / "fundus" / "uniform-FedAvg-uniform-fold1.json").unlink()
    assert results.block("control_uniform").startswith(
        "*Not finished: without runs with uniform weights.*"
    )


def result(**scores: list[float]) -> dict[str, Any]:
    cases = {
        site: [f"{site}{number}" for number in range(len(values))]
        for site, values in scores.items()
    }
    return {"strategy": "FedAvg", "test": {"cases": cases, "dice": scores}}


def test_means_are_over_cases_and_gains_are_case_by_case() -> None:
    reading = load("reading")
    one, other = [result(A=[0.5, 0.7], B=[0.9])], [result(A=[0.4, 0.6], B=[0.6])]
    assert reading.site_means(reading.cases(one)) == pytest.approx({"A": 0.6, "B": 0.9})
    assert reading.difference(one, other).estimate == pytest.approx((0.1 + 0.3) / 2)
    assert reading.difference(one, other, ["A"]) == pytest.approx((0.1, 0.1, 0.1))
    with pytest.raises(ValueError, match="FedAvg: A tested .*A0.* in two folds"):
        reading.cases(one + one)


def test_tests_common_to_all_sites_are_read_for_each_and_unlabelled_ones_left_out() -> None:
    test = {
        "cases": {"all": ["c1", "c2"]},
        "dice": {"A": [0.5, 0.7], "B": [None, None], "C": [None, 0.2]},
    }
    assert load("reading").cases([{"strategy": "FedAvg", "test": test}]) == {
        "A": {"c1": 0.5, "c2": 0.7},
        "C": {"c2": 0.2},
    }


def test_a_strategy_that_is_not_complete_is_said() -> None:
    reading = load("reading")
    with pytest.raises(reading.NotFinished, match="runs of C"):
        reading.Results({"A": [{"fold": 0}]})["C"]


def test_shares_are_of_the_last_ten_rounds_and_never_negative() -> None:
    series = {
        "A": [9.0] * 5 + [0.2] * 10,
        "B": [9.0] * 5 + [0.6] * 10,
        "C": [9.0] * 5 + [-1.0] * 10,
    }
    assert load("reading").shares({"contributions": series}) == pytest.approx(
        {"A": 0.25, "B": 0.75, "C": 0.0}
    )


@pytest.mark.parametrize(
    "module", ["reading", "study", "classification.data", "classification.summaries"]
)
def test_examples_in_the_docstrings_run(module: str) -> None:
    assert doctest.testmod(load(module)).failed == 0


@pytest.mark.long
@pytest.mark.slow
def test_a_cell_runs_from_its_command_to_its_json_and_is_not_run_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, run = load("study"), load("run")
    monkeypatch.setattr(
        study.Study, "results", property(lambda self: tmp_path / "results" / self.name)
    )
    small = {"size": [32, 32], "working_size": 48, "channels": [4, 8]}
    tiny = replace(
        study.Study.read("six_fundus"),
        sites={"kind": "fundus", "size": 64, "seed": 0},
        rounds=2,
        local_epochs=1,
        folds=5,
        repeats=[3],
        overrides=small,
        keep=["global_score", "leave_one_out_error"],
    )
    cell = next(cell for cell in tiny.cells() if cell.strategy == "FedCE")
    root = tiny.sites_root(tmp_path, tmp_path / "runs")
    run.run_cell(tiny, cell, root, tmp_path, tmp_path / "runs")
    found = json.loads(tiny.path(cell).read_text())
    assert (found["strategy"], found["fold"], found["seed"], found["name"]) == (
        "FedCE",
        3,
        3,
        "FedCE",
    )
    assert len(found["test"]["dice"]) == 6 and all(found["test"]["cases"].values())
    assert all(len(values) == 2 for values in found["leave_one_out_error"].values())
    assert not list((tmp_path / "runs" / "six_fundus" / cell.name).glob("checkpoints"))
    before = tiny.path(cell).read_bytes()
    tiny.path(cell).unlink()
    run.run_cell(
        tiny, cell, root, tmp_path, tmp_path / "runs"
    )  # from what the run left: its checkpoints are gone
    assert tiny.path(cell).read_bytes() == before


def test_a_study_names_the_images_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = load("study").Study
    read = study.read
    needed = {"prostate": ["prostate"], "six_fundus": [], "quality": ["fundus/DrishtiGS1"]}
    assert {name: read(name).folders_of_data() for name in needed} == needed
    monkeypatch.setattr(
        study, "missing", lambda self: list(self.cells())
    )  # as before anything was trained
    with pytest.raises(
        SystemExit, match="quality needs real images in .*DrishtiGS1; name their folder with --data"
    ):
        load("run").main(["quality", "--data", str(tmp_path), "--runs", str(tmp_path / "runs")])


@pytest.mark.long
@pytest.mark.slow
def test_a_stopped_run_is_said_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, run = load("study"), load("run")
    broken = replace(study.Study.read("six_fundus"), arguments={"no_such_key": 1})
    cell = next(broken.cells())
    with pytest.raises(
        RuntimeError, match=f"{cell.name} ended before its last round; see .*log.txt"
    ):
        run.run_cell(broken, cell, tmp_path, tmp_path, tmp_path / "runs")
    assert "no_such_key" in (tmp_path / "runs" / "six_fundus" / cell.name / "log.txt").read_text()


def test_the_time_left_is_told_by_what_cells_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study, run = load("study").Study, load("run")
    monkeypatch.setattr(study, "missing", lambda self: list(self.cells())[:3])
    monkeypatch.setattr(run, "run_cell", lambda study, *arguments: study.minutes * 3)
    (tmp_path / "fundus").mkdir()
    run.main(["fundus", "--data", str(tmp_path), "--runs", str(tmp_path / "runs"), "--jobs", "1"])
    minutes = study.read("fundus").minutes
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith(f"{3 * minutes:.1f} min; about {timedelta(minutes=3 * minutes)} left")
    assert lines[2].endswith("about 0:00:00 left")
