# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The published numbers are those of the committed files; a cell runs from command to JSON."""

from __future__ import annotations

import ast
import doctest
import importlib
import itertools
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.checkout import CHECKOUT

from monai_fairfl.guards import DEFAULT
from monai_fairfl.statistics.intervals import bootstrap_site_mean
from monai_fairfl.utils.names import safe_name

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
        assert page.read_text() == results.filled(page), f"{page}: run make results"


def test_a_page_whose_block_does_not_end_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- begin fedce_figure3 -->\n<!-- end fedce_figure2 -->\nmy own text\n")
    with pytest.raises(SystemExit, match="page.md: <!-- begin fedce_figure3 --> has no <!-- end"):
        load("results").filled(page)


def test_every_experiment_has_its_place_in_the_results() -> None:
    results = load("results")
    # Bundles' pages may repeat a table.
    pages = [page.read_text() for page in results.PAGES if "bundles" not in page.parts]
    for name in results.papers():
        module = results.load(name)
        begun = [page.count(f"<!-- begin {name} -->") for page in pages]
        ended = [page.count(f"<!-- end {name} -->") for page in pages]
        assert sum(begun) == 1, f"{name} stands {sum(begun)} times on the pages of results"
        assert begun == ended
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


def test_links_of_a_block_lead_to_the_same_place_from_every_page() -> None:
    results = load("results")
    text = "![a](images/results/a.svg) [b](controls.md#cgsv) [c](https://example.org/d) [e](#here)"
    assert results.relinked(text, CHECKOUT / "docs") == text
    assert results.relinked(text, CHECKOUT / "docs" / "results") == (
        "![a](../images/results/a.svg) [b](../controls.md#cgsv) [c](https://example.org/d) "
        "[e](#here)"
    )
    assert "](../images/results/" in results.block("fedce_figure3", CHECKOUT / "docs" / "results")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedce_table1_prostate", "fedce_table1_fundus"])
def test_a_short_table_has_some_rows_of_the_whole_one(name: str) -> None:
    results = load("results")
    whole, short = results.block(name).splitlines(), results.block(name, short=True).splitlines()
    assert "| FedAvg |" in "\n".join(short)
    assert set(short) < set(whole)


def test_client_rounds_that_a_guard_touched_are_counted_in_new_results_and_in_old_ones() -> None:
    summary, reading = load("summary"), load("reading")
    rounds = [
        {"clients": ["A", "B"], "guards": {}},
        {"clients": ["A", "B"], "guards": {"A": "clip: too long", "B": "share: a copy"}},
        {"clients": ["A", "B"], "guards": {"A": "clip: too long; share: a copy"}},
    ]
    found = summary.guards_of({"guards": ["NonFinite"]}, rounds)
    assert found == {"names": ["NonFinite"], "client_rounds": 6, "touched": {"A": 2, "B": 1}}
    old = {"aggregation": None, "contributions": {"A": [0.5, None], "B": [None, None]}}
    assert reading.touched_by_guards([{"guards": found}, old]) == (3 + 3, 6 + 4)
    assert reading.touched_by_guards([{"guards": found}, old], attackers=["A"]) == (1 + 2, 6 + 4)
    alone = {"aggregation": None, "contributions": None}
    without_verdicts = {"last_mile": {}, **old}
    assert reading.touched_by_guards([alone, without_verdicts]) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("change", ["missing", "another number"])
def test_a_missing_or_changed_file_is_noticed(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, study = load("results"), load("study")
    page = next(page for page in results.PAGES if "prostate" in str(page))
    shutil.copytree(CHECKOUT / "experiments" / "results", tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(study.Study, "results", property(lambda self: tmp_path / self.name))
    assert results.filled(page) == page.read_text()
    file = tmp_path / "prostate" / "FedAvg-fold1.json"
    if change == "missing":
        file.unlink()
    else:
        file.write_text(file.read_text().replace('"minutes": ', '"minutes": 1'))
    assert results.filled(page) != page.read_text()


def keys_of(command: str) -> dict[str, Any]:
    """The keys of a recorded command, where the light recipe is the bundle's own.

    It was when these studies were trained: then ``light.json`` was not there, and no first look
    was at a part of a photograph.
    """
    words = shlex.split(command)
    begin = words.index("--config_file")
    found: dict[str, Any] = dict(zip(words[begin::2], words[begin + 1 :: 2], strict=True))
    config = ast.literal_eval(found.get("--config", "['configs/train.json']"))
    found["--config"] = [file for file in config if file != "configs/light.json"]
    overrides = ast.literal_eval(found.get("--overrides", "{}"))
    assert overrides.pop("scales", []) == []
    return {**found, "--overrides": overrides}


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
        words = shlex.split(result["command"])
        device = words[words.index("--device") + 1]
        now = study.recorded_command(cell, device)
        assert keys_of(result["command"]) == keys_of(
            now
        ), f"{path} is of other settings: delete it, and its folder of runs"
        rounds = study.arguments_of(cell).get("rounds", study.rounds)
        assert all(len(values) == rounds for values in (result.get("global_score") or {}).values())


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
        "*Not finished. Missing: runs with uniform weights.*"
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


@pytest.mark.parametrize("folds", [1, 2, 3, 5])
def test_an_interval_over_folds_is_that_of_every_draw(folds: int) -> None:
    reading = load("reading")
    values = np.random.default_rng(folds).normal(size=folds).round(1).tolist()
    found = reading.over_folds(values, lambda drawn: round(float(np.mean(drawn)), 9))
    every = [np.mean(drawn).round(9) for drawn in itertools.product(values, repeat=folds)]
    ends = np.quantile(every, [0.025, 0.975], method="inverted_cdf")
    assert [found.low, found.high] == ends.tolist()


def test_a_draw_of_folds_without_a_number_has_no_part() -> None:
    found = load("reading").over_folds([math.nan, 1.0, 2.0], np.mean)
    assert math.isnan(found.estimate) and (found.low, found.high) == (1.0, 2.0)


def test_a_site_without_a_weight_in_the_last_rounds_has_no_share() -> None:
    weights = {
        "A": [0.5] * 5 + [None] * 10,
        "B": [0.5] * 5 + [0.6] * 10,
        "C": [None] * 5 + [0.4] * 10,
    }
    shares = load("reading").shares({"contributions": None, "aggregation": weights})
    assert shares == pytest.approx({"B": 0.6, "C": 0.4})


def test_a_rider_without_a_score_has_no_rank_in_that_round() -> None:
    scores = {"A": [None, 0.5, *[3.0] * 8], "B": [1.0] * 10, "C": [2.0, None, *[2.0] * 8]}
    ranks = load("papers.fedce_rider_ranks")._ranks(scores, "A")
    assert np.isnan(ranks[0]) and ranks[1:] == [2, *[1] * 8]


def gains_of(rng: np.random.Generator, seeds: int, cases: int) -> dict[int, Any]:
    """Make gains that differ between seeds by 0.1 and between cases by 0.01."""
    gains: dict[int, Any] = {}
    for seed, of_seed in enumerate(rng.normal(0.0, 0.1, seeds)):
        of_cases = rng.normal(of_seed, 0.01, cases)
        gains[seed] = {"A": {f"c{case}": float(gain) for case, gain in enumerate(of_cases)}}
    return gains


@pytest.mark.slow
def test_an_interval_over_seeds_and_cases_covers_the_truth_where_one_over_cases_does_not() -> None:
    reading, rng = load("reading"), np.random.default_rng(0)
    covered = {"hierarchical": 0, "cases": 0}
    for _ in range(100):
        gains = gains_of(rng, seeds=8, cases=10)
        pooled = [gain for of_seed in gains.values() for gain in of_seed["A"].values()]
        over_cases = bootstrap_site_mean({"A": pooled}, resamples=1000)
        over_both = reading.hierarchical_interval(gains)
        assert over_both.estimate == pytest.approx(over_cases.estimate)
        covered["cases"] += over_cases.low <= 0 <= over_cases.high
        covered["hierarchical"] += over_both.low <= 0 <= over_both.high
    assert covered["hierarchical"] >= 80 > 60 > covered["cases"]


def test_seeds_do_not_make_the_same_cases_count_as_more() -> None:
    reading = load("reading")
    one = {0: {"A": {"c1": 0.1, "c2": 0.5, "c3": 0.3}, "B": {"c1": 0.2, "c4": 0.4}}}
    again = {seed: one[0] for seed in range(9)}
    width = [np.diff(reading.hierarchical_interval(gains)[1:]) for gains in (one, again)]
    assert width[0] == pytest.approx(width[1], abs=0.02)


def test_an_interval_over_seeds_and_cases_leaves_out_what_was_not_tested() -> None:
    reading = load("reading")
    some = {0: {"A": {"c1": 0.1, "c2": 0.2}, "B": {"c3": 0.4}}, 1: {"A": {"c1": 0.3}}}
    found = reading.hierarchical_interval(some)
    assert found.estimate == pytest.approx((0.2 + 0.4) / 2)
    assert found.low < found.estimate <= found.high
    shuffled = {1: some[1], 0: {"B": some[0]["B"], "A": {"c2": 0.2, "c1": 0.1}}}
    assert reading.hierarchical_interval(shuffled) == found
    assert np.isnan(reading.hierarchical_interval({0: {"A": {"c1": 0.5}}}).low)
    for nothing in ({}, {0: {}}, {0: {"A": {}}}):
        with pytest.raises(reading.NotFinished):
            reading.hierarchical_interval(nothing)
    with pytest.raises(ValueError, match="c1: nan is not finite"):
        reading.hierarchical_interval({0: {"A": {"c1": float("nan")}}})


@pytest.mark.parametrize(
    "module",
    [
        "reading",
        "seeds",
        "study",
        "papers.predicates",
        "classification.data",
        "classification.summaries",
        "simulated.content",
        "simulated.labels",
        "simulated.partition",
        "simulated.quality",
    ],
)
def test_examples_in_the_docstrings_run(module: str) -> None:
    assert doctest.testmod(load(module)).failed == 0


def tiny(**changes: Any) -> Any:
    """A study of six small clinics that trains for two short rounds."""
    small: dict[str, Any] = {
        "sites": {"kind": "fundus", "size": 64, "seed": 0},
        "rounds": 2,
        "local_epochs": 1,
        "folds": 5,
        "repeats": [3],
        "overrides": {"size": [32, 32], "working_size": 48, "channels": [4, 8]},
        "keep": ["global_score", "leave_one_out_error"],
    }
    return replace(load("study").Study.read("six_fundus"), **{**small, **changes})


def run_study(
    which: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *words: str
) -> dict[str, Any]:
    """Run a study by the command; return its results by the names of their files."""
    study, run = load("study"), load("run")
    monkeypatch.setattr(study.Study, "results", property(lambda self: tmp_path / "results"))
    monkeypatch.setattr(study.Study, "read", lambda name: which)
    folders = ["--data", str(tmp_path), "--runs", str(tmp_path / "runs")]
    run.main([which.name, *folders, "--jobs", "1", *words])
    return {
        path.stem: json.loads(path.read_text()) for path in (tmp_path / "results").glob("*.json")
    }


@pytest.mark.long
@pytest.mark.slow
def test_a_cell_runs_from_its_command_to_its_json_and_is_not_run_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = "FedCE-fold3"
    found = run_study(tiny(), tmp_path, monkeypatch, "--only", cell)
    assert list(found) == [cell]
    result = found[cell]
    assert (result["strategy"], result["fold"], result["seed"], result["name"]) == (
        "FedCE",
        3,
        3,
        "FedCE",
    )
    assert len(result["test"]["dice"]) == 6 and all(result["test"]["cases"].values())
    assert all(len(values) == 2 for values in result["leave_one_out_error"].values())
    assert result["guards"] == {
        "names": [type(guard).__name__ for guard in DEFAULT],
        "client_rounds": 12,
        "touched": {},
    }
    assert "1/1 six_fundus FedCE-fold3: done" in capsys.readouterr().err
    folder = tmp_path / "runs" / "six_fundus" / cell
    assert not (folder / "checkpoints").exists()
    assert not list(folder.glob("sites/*/state/*.pt"))

    file = tmp_path / "results" / f"{cell}.json"
    before = file.read_bytes()
    run_study(tiny(), tmp_path, monkeypatch, "--only", cell)
    assert capsys.readouterr().err == ""
    # From what the run left: its checkpoints are gone.
    file.unlink()
    run_study(tiny(), tmp_path, monkeypatch, "--only", cell)
    assert file.read_bytes() == before


@pytest.mark.long
@pytest.mark.slow
def test_a_finished_run_of_other_settings_is_not_taken_for_one_of_these(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    which = tiny(settings={"": {"strategies": ["FedAvg"]}}, rounds=1)
    run_study(which, tmp_path, monkeypatch)
    (tmp_path / "results" / "FedAvg-fold3.json").unlink()
    with pytest.raises(SystemExit, match="1 of 1 cells are not done"):
        run_study(replace(which, rounds=2), tmp_path, monkeypatch)
    assert not list((tmp_path / "results").iterdir())
    told = "FedAvg-fold3 has a finished run of another command .*: delete this folder"
    assert re.search(told, capsys.readouterr().err)


@pytest.mark.extended
@pytest.mark.long
@pytest.mark.slow
def test_who_repeats_the_recorded_command_gets_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two cells at a time, in processes of their own; one of them with keys of its own.
    settings = {
        "": {"strategies": ["FedCE"]},
        "fewer": {
            "strategies": ["FedAvg"],
            "arguments": {"evaluate": ["local_score"], "federation#final": ["score", "test_score"]},
        },
    }
    which = tiny(settings=settings, seeds=[7], sites="fundus")
    tiny().sites_root(tmp_path, tmp_path / "made").rename(tmp_path / "fundus")
    found = run_study(which, tmp_path, monkeypatch, "--jobs", "2")
    assert sorted(found) == ["FedCE-fold3-seed7", "fewer-FedAvg-fold3-seed7"]
    for name, result in found.items():
        words = shlex.split(result["command"].replace("DATA", str(tmp_path)))
        words[words.index("RUN")] = str(tmp_path / name)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(CHECKOUT)}
        subprocess.run([sys.executable, *words[1:]], cwd=CHECKOUT, env=environment, check=True)
        again = load("summary").summary(tmp_path / name, which.keep)
        assert load("study").rounded(again) == {key: result[key] for key in again}


@pytest.mark.long
@pytest.mark.slow
def test_a_cell_that_fails_is_named_with_its_reason_and_the_others_are_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {
        "": {"strategies": ["FedAvg"]},
        "no_such_fold": {"strategies": ["FedAvg"], "overrides": {"split_fold": 9}},
    }
    which = tiny(settings=settings, rounds=1)
    with pytest.raises(SystemExit, match="1 of 2 cells are not done; the same command goes on"):
        run_study(which, tmp_path, monkeypatch)
    assert [path.stem for path in (tmp_path / "results").iterdir()] == ["FedAvg-fold3"]
    failed = "2/2 six_fundus no_such_fold-FedAvg-fold3 failed: .*fold 9 does not exist: with 5"
    assert re.search(failed, capsys.readouterr().err)


def test_a_misspelt_key_is_refused_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tiny(arguments={"local_epoch": 1}, sites={"clients": 2})
    with pytest.raises(SystemExit, match="six_fundus Standalone-fold3: unknown key 'local_epoch'"):
        run_study(broken, tmp_path, monkeypatch)
    assert not (tmp_path / "runs" / "six_fundus").exists()


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"override": {"size": [16, 16]}}, "setting 'small' has .'override'.; a setting has only"),
        ({"strategies": ["FedAvg", "FedCEE"]}, "setting 'small' trains 'FedCEE', which is no"),
    ],
)
def test_what_is_misspelt_in_a_setting_is_refused(setting: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        tiny(settings={"small": setting})


def test_a_pattern_that_no_cell_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match="--only 'FedEC-.': there is no such cell; the first one"):
        run_study(tiny(), tmp_path, monkeypatch, "--only", "FedAvg-*", "FedEC-*")


def test_a_study_may_name_seeds_for_each_of_its_folds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, reading = load("study"), load("reading")
    settings = {"": {"strategies": ["FedAvg", "FedCE"]}}
    which = tiny(settings=settings, repeats=[0, 1], seeds=[4, 9])
    assert [cell.name for cell in which.cells()] == [
        *("FedAvg-fold0-seed4", "FedCE-fold0-seed4", "FedAvg-fold1-seed4", "FedCE-fold1-seed4"),
        *("FedAvg-fold0-seed9", "FedCE-fold0-seed9", "FedAvg-fold1-seed9", "FedCE-fold1-seed9"),
    ]
    cells = list(which.cells())
    assert " --seed 9 " in which.recorded_command(cells[-1])
    # A fold has the same cases, whatever the seed.
    assert which.overrides_of(cells[0]) == which.overrides_of(cells[4])

    monkeypatch.setattr(study.Study, "results", property(lambda self: tmp_path))
    monkeypatch.setattr(study.Study, "read", lambda name: which)
    for cell in cells[:-1]:
        which.path(cell).write_text(json.dumps({"seed": which.seed_of(cell), "fold": cell.fold}))
    assert reading.read("six_fundus", seed=4)["FedCE"] == [
        {"seed": 4, "fold": 0},
        {"seed": 4, "fold": 1},
    ]
    assert list(reading.read("six_fundus", seed=9)) == ["FedAvg"]
    with pytest.raises(reading.NotFinished, match="runs of six_fundus with seed 5"):
        reading.read("six_fundus", seed=5)

    with pytest.raises(ValueError, match="setting 'other' has a seed of its own.*leave out one"):
        tiny(settings={"other": {"arguments": {"seed": 99}}}, seeds=[4])


@pytest.mark.slow
def test_a_process_that_ends_while_it_writes_a_result_leaves_none(tmp_path: Path) -> None:
    script = """
import os, resource, signal, sys
from pathlib import Path
from study import write_result
# The system ends the process as it writes beyond this, as where the power fails.
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
write_result(Path(sys.argv[1]), {"scores": list(range(10000))})
"""
    file = tmp_path / "cell.json"
    environment = {
        "PYTHONPATH": f"{CHECKOUT}:{CHECKOUT / 'experiments'}",
        "PATH": os.environ["PATH"],
    }
    ended = subprocess.run([sys.executable, "-c", script, str(file)], env=environment)
    assert ended.returncode < 0 and not file.exists()


def test_a_study_names_the_images_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = load("study").Study
    read = study.read
    needed = {"prostate": ["prostate"], "six_fundus": [], "quality": ["fundus/DrishtiGS1"]}
    assert {name: read(name).folders_of_data() for name in needed} == needed
    pool = {"pool": ["{data}/fundus/IDRiD"]}
    assert tiny(settings={"dealt": {"overrides": pool}}).folders_of_data() == ["fundus/IDRiD"]
    monkeypatch.setattr(
        study, "missing", lambda self: list(self.cells())
    )  # as before anything was trained
    with pytest.raises(
        SystemExit, match="quality needs real images in .*DrishtiGS1; name their folder with --data"
    ):
        load("run").main(["quality", "--data", str(tmp_path), "--runs", str(tmp_path / "runs")])


@pytest.mark.extended
@pytest.mark.long
@pytest.mark.slow
def test_a_last_mile_has_the_models_trained_alone_and_the_used_models_test_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    which = tiny(
        settings={"": {"strategies": ["FedAvg", "Standalone"]}},
        arguments={"adapt_epochs": 2, "adapt_rate": 0.01},
        overrides={**tiny().overrides, "split_validation": 0.5},
    )
    found = run_study(which, tmp_path, monkeypatch)
    federated, alone = found["FedAvg-fold3"], found["Standalone-fold3"]
    assert "--trained_alone Standalone-fold3/models" in federated["command"]
    for site, mile in federated["last_mile"].items():
        assert list(mile["gains"]) == ["adapted", "alone"]
        closing = federated["closing"][site]
        assert closing["alone"]["test_score"] == alone["closing"][site]["own"]["test_score"]
        name = mile["taken"] or "own"
        used = federated["test_used"]["dice"][site]
        assert sum(used) / len(used) == pytest.approx(closing[name]["test_score"], abs=1e-4)
        assert list(alone["last_mile"][site]["gains"]) == ["adapted"]
    assert any(mile["taken"] for mile in federated["last_mile"].values())

    # Without the runs that left the models, nobody guesses.
    (tmp_path / "results" / "FedAvg-fold3.json").unlink()
    shutil.rmtree(tmp_path / "runs")
    with pytest.raises(SystemExit, match="models are not committed: delete .*Standalone-fold3"):
        run_study(which, tmp_path, monkeypatch)
