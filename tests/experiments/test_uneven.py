# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Uneven federations: their splits, their tables with no, some and all cells, their yardsticks."""

from __future__ import annotations

import doctest
import importlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.checkout import CHECKOUT

from monai_fairfl.data import SITES, write_sites
from monai_fairfl.data.splits import split_cases

HOSPITALS = {"BIDMC": 6, "HK": 9, "RUNMC": 9, "UCL": 10}
CLINICS = {"acacia": 7, "beech": 9, "cypress": 6, "dogwood": 15, "ebony": 8, "fir": 20}
CUT = {
    "uneven_prostate": {"": "BIDMC", "float32": "BIDMC", "instance_norm": "BIDMC"},
    "uneven_others": {"HK": "HK", "RUNMC": "RUNMC", "UCL": "UCL"},
}
PAPERS = (
    "uneven_prostate",
    "uneven_predictions",
    "uneven_others",
    "uneven_views",
    "uneven_corrupted",
    "uneven_corrupted_longer",
)
TITLES = {
    "uneven_fusion": "majority of the masks",
    "uneven_pooled": "all volumes in one place",
}
SPLIT = {"folds": "split_folds", "fold": "split_fold", "validation": "split_validation"}


@pytest.fixture(autouse=True)
def _experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(CHECKOUT / "experiments"))


def load(name: str) -> Any:
    return importlib.import_module(name)


def split(study: Any, cell: Any, site: str, number: int) -> dict[str, list[str]]:
    """Split so many cases as a cell does: part -> names."""
    of_site = study.arguments_of(cell).get("sites", {}).get(site, {})
    settings = {"split_validation": 0.2, **study.overrides_of(cell), **of_site}
    cases = [{"image": f"{site}{n:02d}", "label": f"{n:02d}"} for n in range(number)]
    arguments = {name: settings[key] for name, key in SPLIT.items()}
    parts = split_cases(cases, seed=settings["split_seed"], **arguments)
    return {part: [case["image"] for case in members] for part, members in parts.items()}


@pytest.mark.parametrize("name", CUT)
def test_a_cut_hospital_trains_on_a_quarter_and_no_volume_is_in_two_parts(name: str) -> None:
    study = load("study").Study.read(name)
    tested: dict[tuple[str, str, str], list[str]] = {}
    for cell in study.cells():
        cut = CUT[name][cell.setting]
        numbers = {}
        for site, number in HOSPITALS.items():
            parts = split(study, cell, site, number)
            together = [case for part in parts.values() for case in part]
            assert len(set(together)) == len(together) == number
            assert len(parts["testing"]) >= 2
            # BIDMC's six volumes leave one where it trains on three of them.
            assert len(parts["validation"]) >= 2 or (site == "BIDMC" and cut != site)
            numbers[site] = len(parts["training"])
            tested.setdefault((cell.setting, cell.strategy, site), []).extend(parts["testing"])
        small = numbers.pop(cut)
        assert small / np.mean(list(numbers.values())) == pytest.approx(0.25, abs=0.03)
        assert study.seed_of(cell) == cell.fold
    for (_, _, site), cases in tested.items():
        assert sorted(cases) == [f"{site}{n:02d}" for n in range(HOSPITALS[site])]


def test_a_setting_takes_the_models_trained_alone_of_another_one() -> None:
    study = load("study").Study.read("uneven_prostate")
    alone = {cell.name: study.alone_of(cell) for cell in study.cells() if not cell.fold}
    assert alone["float32-FedISM-0.01-fold0"].name == "Standalone-fold0"
    assert alone["instance_norm-CGSV-fold0"].name == "instance_norm-Standalone-fold0"
    assert alone["FedCE-fold0"].name == "Standalone-fold0"
    assert alone["Standalone-fold0"] is alone["instance_norm-Standalone-fold0"] is None
    with pytest.raises(ValueError, match="setting 'x' takes models trained alone from 'y'"):
        replace(study, settings={"x": {"alone": "y"}})


def dice_of(cell: Any, site: str, number: int) -> list[float]:
    """Invent Dice: FedCE is 0.06 better where a hospital is bad, all others are alike."""
    rng = np.random.default_rng([cell.fold, *site.encode()])
    scores = 0.9 + 0.02 * rng.random(number)
    if site in ("BIDMC", "HK") or cell.fold == 2:
        scores -= 0.1
    if cell.strategy in ("FedCE", "FedCE-sum") and site in ("BIDMC", "HK"):
        scores += 0.06
    if cell.setting == "instance_norm":
        scores -= 0.01 * rng.random()
    return [round(float(score), 4) for score in scores]


def invented(study: Any, cell: Any) -> dict[str, Any]:
    """Make a result as a run of the cell would leave it."""
    sizes: dict[str, int] = HOSPITALS
    if study.name == "uneven_views":
        sizes = CLINICS
    cases = {}
    groups = study.arguments_of(cell).get("groups", {})
    if groups:
        cases = {site: ["c1", "c2", "c3"] for site in [*groups["corrupted"], *groups["clean"]]}
    else:
        for site, number in sizes.items():
            cases[site] = split(study, cell, site, number)["testing"]
    dice = {site: dice_of(cell, site, len(names)) for site, names in cases.items()}
    result: dict[str, Any] = {
        "strategy": cell.strategy,
        "seed": study.seed_of(cell),
        "minutes": 1.0,
        "test": {"cases": cases, "dice": dice},
        "closing": {site: {"own": {"sharpness": 0.1}} for site in cases},
    }
    for site in groups.get("corrupted", ()):
        result["closing"][site]["own"]["sharpness"] = 0.4
    if cell.strategy == "Ditto":
        result["closing"] = {site: {"own": {}} for site in cases}
    if groups:
        result["test"]["cases"] = {"all": ["c1", "c2", "c3"]}
    if study.arguments_of(cell).get("adapt_epochs"):
        result["last_mile"] = {site: {"taken": "adapted"} for site in cases}
        better = {site: [round(score + 0.01, 4) for score in of] for site, of in dice.items()}
        result["test_used"] = {"dice": better}
    return result


@pytest.fixture
def invented_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """All cells of the five studies with invented numbers."""
    study = load("study")
    monkeypatch.setattr(study.Study, "results", property(lambda self: tmp_path / self.name))
    studies = (*CUT, "uneven_views", "uneven_corrupted", "uneven_corrupted_longer")
    for name in studies:
        which = study.Study.read(name)
        which.results.mkdir()
        for cell in which.cells():
            which.path(cell).write_text(json.dumps(invented(which, cell)))
    yield tmp_path


def rows(table: str) -> dict[str, list[str]]:
    """First cell -> the other cells, of the first row that begins so."""
    found: dict[str, list[str]] = {}
    for line in table.splitlines():
        if line.startswith("| "):
            first, *others = line.strip("| ").split(" | ")
            found.setdefault(first, others)
    return found


@pytest.mark.slow
def test_every_cell_is_in_its_table(invented_results: Path) -> None:
    results = load("results")
    for name in PAPERS:
        assert "Not finished" not in results.block(name)
    study = load("study").Study.read("uneven_prostate")
    found = rows(load("papers.uneven_prostate").table())
    for cell in study.cells():
        assert cell.strategy in found
    assert found["Standalone, instance norm"][0] != found["Standalone"][0]

    # The numbers, from the files alone.
    scores: dict[str, dict[str, list[float]]] = {"FedAvg": {}, "FedCE-sum": {}}
    for method, of_sites in scores.items():
        for path in sorted(study.results.glob(f"{method}-fold*.json")):
            for site, dice in json.loads(path.read_text())["test"]["dice"].items():
                of_sites.setdefault(site, []).extend(dice)
    means = {}
    for method, of_sites in scores.items():
        means[method] = {site: np.mean(dice) for site, dice in of_sites.items()}
    of_fedce = list(means["FedCE-sum"].values())
    row = found["FedCE-sum"]
    assert row[0] == f"**{np.mean(of_fedce):.3f}**"
    assert row[1] == f"{np.std(of_fedce, ddof=1):.3f}"
    assert row[2].startswith(f"{min(of_fedce):.3f} (")
    assert row[3] == f"{means['FedCE-sum']['BIDMC']:.3f}"
    assert row[4].startswith("+0.030 (") and row[6].startswith("+0.060 (+0.060 to +0.060)")
    worst = min(of_fedce) - min(means["FedAvg"].values())
    assert row[5].startswith(f"{worst:+.3f} (")
    assert found["FedAvg"][4:] == ["–"] * 3


@pytest.mark.slow
def test_who_is_sharper_is_said_where_it_was_measured(invented_results: Path) -> None:
    found = rows(load("papers.uneven_corrupted").table())
    assert found["FedAvg"][-1] == "4.0, 4.0, 4.0" and found["Ditto"][-1] == "–"


@pytest.mark.slow
def test_predictions_are_judged_by_their_numbers(invented_results: Path) -> None:
    predictions = load("papers.uneven_predictions")
    judged = rows(predictions.table())
    texts = list(judged.values())[2:]
    assert [text[0].split("**")[1] for text in texts] == ["yes", "yes", "no", "no", "yes", "no"]
    assert texts[1][0] == "**yes**: 2 seeds"  # in the third, no hospital is worse than another
    assert texts[2][0] == "**no**: paper 0 seeds, released 0 seeds"
    assert texts[5] == [
        "**no**: corrupted +0.000 (+0.000 to +0.000), clean +0.000 (+0.000 to +0.000)",
        "–",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPERS)
def test_what_is_not_complete_is_left_out(name: str, invented_results: Path) -> None:
    results, module = load("results"), load(f"papers.{name}")
    # A method without its last seed, then none but FedAvg, then nothing.
    for method in ("FedCE", "FedCE-sum"):
        for path in invented_results.glob(f"uneven_*/*{method}-fold2.json"):
            path.unlink()
    some = results.block(name)
    # FedCE is none of its methods.
    is_whole = name == "uneven_corrupted_longer"
    assert (
        is_whole or "*Not finished. Missing: " in some and "Incomplete parts are left out" in some
    )
    if name == "uneven_predictions":
        assert rows(some)[next(key for key in rows(some) if key.startswith("FedCE"))] == ["–", "–"]
    elif name != "uneven_corrupted_longer":
        assert "FedCE-sum" not in rows(some) and "FedAvg" in rows(some)
    for path in invented_results.glob("uneven_*/*FedAvg-fold1.json"):
        path.unlink()
    without_baseline = rows(results.block(name))
    if name in ("uneven_prostate", "uneven_views"):
        assert without_baseline["Ditto"][4:7] == ["–"] * 3
    for path in invented_results.glob("uneven_others/RUNMC-*.json"):
        path.unlink()
    if name == "uneven_others":
        assert "UCL is small" in results.block(name) and "RUNMC is" not in results.block(name)
    for path in invented_results.glob("uneven_*/*.json"):
        path.unlink()
    assert results.block(name).startswith("*Not finished. Missing: ")
    assert module.STUDIES


def test_masks_of_other_cases_than_those_that_the_run_tested_are_refused() -> None:
    require_recorded = load("yardsticks").require_recorded
    result = {"seed": 0, "test": {"dice": {"A": [1.0, 0.0]}}}
    full, empty = np.ones(4, dtype=bool), np.zeros(4, dtype=bool)
    require_recorded(result, "A", [full, empty], [full, full])
    with pytest.raises(ValueError, match="A, seed 0: test case 1 has Dice 1.0000 here and 0.0 in"):
        require_recorded(result, "A", [full, full], [full, full])
    with pytest.raises(ValueError, match="A, seed 0: 1 test cases here and 2 in its run"):
        require_recorded(result, "A", [full], [full])


def test_two_folds_of_one_seed_are_refused() -> None:
    result = {"strategy": "FedAvg", "seed": 99, "test": {"cases": {"A": ["c"]}, "dice": {"A": [1]}}}
    with pytest.raises(ValueError, match="FedAvg: two folds have the seed 99"):
        load("uneven").by_seed([result, result])


def scores_of(**sites: Mapping[str, float]) -> dict[int, Any]:
    return {0: sites, 1: sites}


@pytest.mark.slow
def test_both_methods_are_drawn_with_the_same_seeds_and_cases() -> None:
    reading = load("reading")
    rng = np.random.default_rng(0)
    one: dict[int, Any] = {}
    for seed in range(3):
        one[seed] = {}
        for site in "AB":
            one[seed][site] = {f"{seed} c{n}": float(rng.random()) for n in range(4)}
    other: dict[int, Any] = {}
    for seed, of_sites in one.items():
        other[seed] = {}
        for site, scores in of_sites.items():
            other[seed][site] = {case: score - 0.25 for case, score in scores.items()}
    for over_sites in (np.mean, np.min):
        found = reading.hierarchical_difference(one, other, over_sites)
        assert found == pytest.approx((0.25, 0.25, 0.25))
    std = partial(np.std, ddof=1)
    assert reading.hierarchical_difference(one, other, std) == pytest.approx((0, 0, 0))


def test_the_worst_site_may_be_another_one() -> None:
    reading = load("reading")
    one = scores_of(A={"c1": 0.5, "c2": 0.5}, B={"c3": 0.9, "c4": 0.9})
    other = scores_of(A={"c1": 0.8, "c2": 0.8}, B={"c3": 0.4, "c4": 0.4})
    assert reading.hierarchical_difference(one, other, np.min).estimate == pytest.approx(0.1)
    assert reading.hierarchical_difference(one, other).estimate == pytest.approx(0.1)
    with pytest.raises(ValueError, match="the same seeds, sites and cases"):
        reading.hierarchical_difference(one, scores_of(A={"c1": 0.8}))


def test_the_model_used_has_the_cases_of_the_test() -> None:
    result = {
        "strategy": "FedAvg",
        "test": {"cases": {"A": ["c1", "c2"]}, "dice": {"A": [0.5, 0.6]}},
        "test_used": {"dice": {"A": [0.7, 0.8]}},
    }
    cases = load("reading").cases
    assert cases([result], model="test_used") == {"A": {"c1": 0.7, "c2": 0.8}}
    assert cases([result]) == {"A": {"c1": 0.5, "c2": 0.6}}


@pytest.mark.parametrize(
    "module",
    ["uneven", "yardsticks", "papers.uneven_fusion", "papers.uneven_prostate"],
)
def test_examples_in_the_docstrings_run(module: str) -> None:
    assert doctest.testmod(load(module)).failed == 0


def test_majority_takes_what_half_of_the_masks_have() -> None:
    fusion = load("papers.uneven_fusion")
    masks = [np.array(mask) for mask in ([True, True, True], [True, True, False])]
    masks += [np.array([True, False, False]), np.array([False, False, False])]
    assert fusion.majority(masks).tolist() == [True, True, False]


@pytest.mark.slow
def test_staple_trusts_the_masks_that_agree() -> None:
    pytest.importorskip("SimpleITK")
    fusion, dice = load("papers.uneven_fusion"), load("yardsticks").dice
    rng = np.random.default_rng(0)
    truth = np.zeros((20, 20, 6), dtype=bool)
    truth[5:15, 5:15, 1:5] = True
    masks = [truth ^ (rng.random(truth.shape) < wrong) for wrong in (0.05, 0.05, 0.05, 0.4)]
    fused = fusion.staple(masks)
    assert fused.shape == truth.shape
    assert dice(fused, truth) > 0.95 > dice(fusion.majority(masks), truth)


@pytest.mark.slow
def test_yardsticks_are_beside_fedavg_and_what_is_absent_is_named(invented_results: Path) -> None:
    results, reading = load("results"), load("reading")
    study = load("study").Study.read("uneven_prostate")
    measured: dict[str, Any] = {}
    for fold in range(3):
        result = json.loads((study.results / f"FedAvg-fold{fold}.json").read_text())
        of_sites = {}
        for site, scores in reading.cases([result]).items():
            of_sites[site] = {case: score + 0.05 for case, score in scores.items()}
        measured[str(fold)] = of_sites
    for name, content in {
        "uneven_fusion": {"majority": measured},
        "uneven_pooled": {"dice": measured},
    }.items():
        module = load(f"papers.{name}")
        with pytest.MonkeyPatch.context() as patch:
            # Nothing is measured there.
            patch.setattr(reading, "HERE", invented_results)
            assert results.block(name).startswith("*Not finished. Missing: the measurement itself")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "measurement", lambda _, content=content: content)
            table = module.table()
        assert rows(table)[TITLES[name]][4] == "+0.050 (+0.050 to +0.050)"
        assert rows(table)["FedAvg"][4:] == ["–"] * 3 and "training alone" in rows(table)
        assert ("SimpleITK was not installed: STAPLE" in table) == (name == "uneven_fusion")


@pytest.mark.extended
@pytest.mark.long
@pytest.mark.slow
def test_yardsticks_test_the_models_as_their_own_runs_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, run = load("study"), load("run")
    sites = [replace(site, cases=6) for site in SITES[:3]]
    write_sites(tmp_path / "prostate", sites=sites, size=(48, 48, 8))
    which = replace(
        study.Study.read("uneven_prostate"),
        settings={"": {"strategies": ["Standalone"]}},
        repeats=[1],
        rounds=3,
        overrides={"size": [32, 32], "channels": [8, 16, 16], "split_validation": 0.35},
        arguments={
            "config": ["configs/train.json", "configs/strong.json"],
            "sites": {"birch": {"split_validation": 0.75}},
            "evaluate": [],
        },
    )
    monkeypatch.setattr(study.Study, "results", property(lambda self: tmp_path / "results"))
    monkeypatch.setattr(study.Study, "read", lambda name: which)
    folders = ["--data", str(tmp_path), "--runs", str(tmp_path / "runs")]
    run.main([which.name, *folders, "--jobs", "1"])
    result = json.loads((tmp_path / "results" / "Standalone-fold1.json").read_text())
    assert any(score > 0.05 for scores in result["test"]["dice"].values() for score in scores)

    names_of_cases = load("yardsticks").names_of_cases
    names = {site: names_of_cases(result, site) for site in ("alder", "birch", "cedar")}
    fused = load("papers.uneven_fusion").measure(tmp_path, tmp_path / "runs")
    trains, configurations = load("papers.uneven_pooled"), []
    make = trains.training_configuration

    def noted(*arguments: Any) -> Any:
        configurations.append(make(*arguments))
        return configurations[-1]

    monkeypatch.setattr(trains, "training_configuration", noted)
    pooled = trains.measure(tmp_path, tmp_path / "runs")
    # Three volumes of two hospitals and one of the third; three rounds of four epochs.
    assert len(configurations[0]["datalist"]["training"]) == 3 + 1 + 3
    assert configurations[0].get_parsed_content("train#trainer").state.epoch == 12
    for found in (fused["majority"]["1"], pooled["dice"]["1"]):
        assert {site: list(scores) for site, scores in found.items()} == names
    # Another model is not taken for the recorded one.
    models = tmp_path / "runs" / which.name / "Standalone-fold1" / "models"
    shutil.copy(models / "alder.pt", models / "birch.pt")
    shutil.copy(models / "cedar.pt", models / "alder.pt")
    with pytest.raises(ValueError, match="test case . has Dice .* here and .* in its run"):
        load("papers.uneven_fusion").measure(tmp_path, tmp_path / "runs")
