# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A comparison over seeds and folds: its rows, intervals and tables are those of the cases."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.reports import Page, gain_of, hospital, rows_of, site_of, verdicts
from helpers.scripted_run import contributions_of, mean_of, train, with_cases
from scipy import stats

from monai_fairfl import strategies
from monai_fairfl.guards import NonFinite
from monai_fairfl.report import write_comparison
from monai_fairfl.statistics import CaseScore, compare_paired

GAINS = {
    "Standalone": {"elm": 0.0, "oak": 0.0, "yew": 0.0},
    "FedAvg": {"elm": 0.02, "oak": 0.01, "yew": -0.10},
    "FedCE": {"elm": 0.06, "oak": 0.0, "yew": -0.01},
}
"""Strategy -> hospital -> Dice more than alone, in the mean."""

Tables = dict[str, dict[str, dict[str, float]]]
"""Measurement -> hospital -> case -> Dice."""


@dataclass
class Cell:
    """One run of a comparison.

    Args:
        strategy: its class.
        seed: of the run.
        tables: the closing scores of its cases.
        given: further arguments of :func:`helpers.scripted_run.train`.
    """

    strategy: str
    seed: int
    tables: Tables
    given: dict[str, Any]


def tables_of(strategy: str, seed: int, fold: int | None) -> Tables:
    """Cases differ most, then strategies, then seeds; all of fold 1 are harder."""
    found: Tables = {"test_score": {}, "score": {}}
    for site, gain in GAINS[strategy].items():
        hardness = np.random.default_rng(ord(site[0])).uniform(0.6, 0.9, 6)
        noise = np.random.default_rng([seed, len(strategy), ord(site[0])]).normal(size=6)
        scores = (hardness + gain + 0.004 * noise - 0.2 * (fold or 0)).round(6).tolist()
        found["test_score"][site] = {f"f{fold}-case{n}.nii": dice for n, dice in enumerate(scores)}
        found["score"][site] = dict.fromkeys(["v1.nii", "v2.nii"], round(np.mean(scores) - 0.1, 6))
    return found


def compare(
    folder: Path,
    seeds: Sequence[int] = (0, 1, 2),
    folds: Sequence[int | None] = (None,),
    change: Callable[[Cell], object] = lambda cell: None,
    failed: Mapping[str, str] = {},
) -> dict[str, Any]:
    """Train every strategy, seed and fold, and compare the runs.

    Args:
        folder: of the comparison.
        seeds: of every strategy.
        folds: of every seed.
        change: of each cell before it is trained.
        failed: ``STRATEGY-SEED-FOLD`` -> why; these are not trained.

    Returns:
        What ``comparison.json`` holds.
    """
    runs = []
    for strategy, seed, fold in itertools.product(GAINS, seeds, folds):
        name = f"{strategy}-{seed}-{fold}"
        if name in failed:
            continue
        tables = tables_of(strategy, seed, fold)
        error = {"measured": {"leave_one_out_error": 0.3 + 0.1 * seed + 0.02 * (fold or 0)}}
        given: dict[str, Any] = {"config": {"share_cases": True}, "about": {"yew": error}}
        if fold is not None:
            given["config"]["overrides"] = {"split_fold": fold}
        change(Cell(strategy, seed, tables, given))
        scores: dict[str, Any] = {site: {} for site in GAINS[strategy]}
        for measurement, of_sites in tables.items():
            for site, cases in of_sites.items():
                scores[site][measurement] = mean_of(list(cases.values()))
        made = getattr(strategies, strategy)()
        run = train(folder / "runs" / name, made, scores, 2, seed=seed, **given)
        for measurement, of_sites in tables.items():
            for site, cases in of_sites.items():
                with_cases(run, site, cases, measurement)
        runs.append(run)
    plan = {"strategies": {name: name for name in GAINS}, "seeds": list(seeds), "bundle": "b"}
    plan |= {"folds": len(folds) if None not in folds else None, "rounds": 2, "local_epochs": 1}
    found = write_comparison(folder, plan, runs, failed)
    assert found == json.loads((folder / "comparison.json").read_text())
    return found


def scores_of(folder: Path) -> list[CaseScore]:
    """The Dice of test cases in ``cases.csv``."""
    found = []
    for row in rows_of(folder / "cases.csv"):
        if row["metric"] == "test_score:dice":
            about = row["strategy"], int(row["seed"]), None, row["site"], row["case"]
            found.append(CaseScore(*about, float(row["value"])))
    return found


def array_of(folder: Path, strategy: str, site: str) -> np.ndarray:
    """Dice of a strategy at a hospital: seeds by cases."""
    by_seed: dict[int, list[float]] = {}
    for score in scores_of(folder):
        if (score.strategy, score.site) == (strategy, site):
            by_seed.setdefault(score.seed, []).append(score.value)
    return np.array(list(by_seed.values()))


def t_interval(values: np.ndarray | list[float]) -> tuple[float, float]:
    low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    return float(low), float(high)


def test_intervals_are_over_seeds_and_never_narrower_than_over_a_hospitals_cases(
    tmp_path: Path,
) -> None:
    found = compare(tmp_path)
    assert found["decision"]["strategy"] == "FedCE"
    for site in GAINS["FedCE"]:
        of_site = [score for score in scores_of(tmp_path) if score.site == site]
        pairs = compare_paired(of_site, list(GAINS)).pairs
        [pair] = [one for one in pairs if (one.strategy, one.reference) == ("FedCE", "Standalone")]
        gains = array_of(tmp_path, "FedCE", site) - array_of(tmp_path, "Standalone", site)
        low, high = t_interval(gains.mean(axis=0))
        of_fedce = site_of(found, "FedCE", site)
        difference = of_fedce["gain"]
        assert difference["value"] == pytest.approx(gains.mean(), abs=1e-9)
        assert difference["low"] == pytest.approx(min(low, pair.difference.low), abs=1e-9)
        assert difference["high"] == pytest.approx(max(high, pair.difference.high), abs=1e-9)
    assert verdicts(found) == {"elm": "better", "oak": "as_good", "yew": "worse"}
    signs = {}
    for site, result in found["strategies"]["FedCE"]["sites"].items():
        against = result["against_fedavg"]
        signs[site] = 0 if against["within_noise"] else np.sign(against["value"])
    assert signs == {"elm": 1, "oak": -1, "yew": 1}

    contribution = hospital(found, "yew")["contribution"]
    runs = sorted((tmp_path / "runs").glob("FedCE-*"))
    values = [contributions_of(run)[-1]["yew"] for run in runs]
    shown = (contribution["value"], contribution["least"], contribution["most"])
    assert shown == pytest.approx((np.mean(values), *t_interval(values)))

    # The tables are the means of the cases, and the page shows them.
    text = Page(tmp_path / "comparison.html").text
    compared = found["metrics"][found["main"]]
    for standing in compared["strategies"]:
        name = standing["strategy"]
        sites = [array_of(tmp_path, name, site).mean(axis=1) for site in GAINS[name]]
        assert standing["mean"] == pytest.approx(np.mean(sites))
        assert f"{standing['mean']:.3f} ± {standing['std']:.3f}" in text
    for pair in compared["pairs"]:
        value, low, high = (f"{pair['difference'][n]:.3f}" for n in ("estimate", "low", "high"))
        assert f"{value} ({low} to {high})" in text and f"{pair['p_holm']:.3f}" in text


@pytest.mark.parametrize("number", [1, 2])
def test_other_seeds_do_not_make_few_cases_certain(number: int, tmp_path: Path) -> None:
    def change(cell: Cell) -> None:
        elm = dict(list(cell.tables["test_score"]["elm"].items())[:number])
        if cell.strategy == "FedCE" and number == 2:
            elm["fNone-case0.nii"] += 0.05
        cell.tables["test_score"]["elm"] = elm

    found = compare(tmp_path, change=change)
    assert gain_of(found, "FedCE")["value"] > 0
    assert site_of(found, "FedCE")["score"]["n"] == number
    assert verdicts(found)["elm"] == "cannot_tell"


def test_a_row_is_of_the_cases_that_every_run_scored_and_else_names_who_lacks_them(
    tmp_path: Path,
) -> None:
    """With one seed FedCE lacks elm's first case and every case of yew."""

    def change(cell: Cell) -> None:
        if (cell.strategy, cell.seed) == ("FedCE", 1):
            del cell.tables["test_score"]["elm"]["fNone-case0.nii"]
            cell.tables["test_score"]["yew"] = {"another.nii": 0.5}

    found = compare(tmp_path, change=change)
    means = {}
    for strategy in GAINS:
        of_elm = [s for s in scores_of(tmp_path) if (s.strategy, s.site) == (strategy, "elm")]
        means[strategy] = np.mean([s.value for s in of_elm if "case0" not in s.case])
    assert site_of(found, "FedCE")["score"]["n"] == 5
    assert gain_of(found, "FedCE")["value"] == pytest.approx(means["FedCE"] - means["Standalone"])
    yew = site_of(found, "FedCE", "yew")
    assert (yew["score"], yew["gain"]) == (None, None) and verdicts(found)["yew"] == "no_score"
    assert any("yew" in line for line in found["metrics"][found["main"]]["left_out"])


def test_the_strategy_is_chosen_on_seeds_and_folds_that_all_strategies_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedCE lacks a run of the harder fold 1, and is worse in all that it has."""
    monkeypatch.setitem(GAINS, "FedCE", dict.fromkeys(GAINS["FedCE"], -0.05))
    failed = {"FedCE-1-1": "no disk"}
    found = compare(tmp_path, (0, 1), (0, 1), failed=failed)
    assert found["decision"]["strategy"] == "FedAvg" and found["failed"] == failed


def test_guards_and_absences_are_counted_in_the_rounds_of_all_runs(tmp_path: Path) -> None:
    def change(cell: Cell) -> None:
        if cell.strategy == "FedCE" and cell.seed:
            about = {"elm": {"updates": [float("nan")]}, "oak": {"away": [0, 1]}}
            cell.given.update(about=about, guards=[NonFinite()])

    found = compare(tmp_path, change=change)
    [guards] = hospital(found)["guards"]
    assert "4 of 6" in guards and "NonFinite" in guards
    assert "missing in 4 of 6" in str(hospital(found, "oak")["advice"])
    # What was refused had arrived.
    assert "missing" not in str(hospital(found)["advice"])


def test_short_runs_are_a_first_look_and_names_from_outside_are_text(tmp_path: Path) -> None:
    full = {"full_run": {"rounds": 60, "local_epochs": 4, "mean_dice": 0.5}}
    evil = "<script>alert(1)</script>"
    failed = {evil: "Pr\udcfcfung.nii is damaged"}
    found = compare(
        tmp_path, (0, 1), change=lambda cell: cell.given["config"].update(full), failed=failed
    )
    assert set(verdicts(found).values()) == {"not_judged"}
    page = Page(tmp_path / "comparison.html")
    assert evil in page.text and "fung.nii" in page.text
    assert not {"script", "link", "img"} & {tag for tag, _ in page.tags}
