# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A comparison over seeds and folds: its rows, intervals and tables are those of the cases."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.reports import Page, hospital, rows_of, verdicts
from helpers.scripted_run import mean_of, train, with_cases
from scipy import stats

from monai_fairfl import read_ledger
from monai_fairfl.errors import FederationError
from monai_fairfl.guards import NonFinite
from monai_fairfl.report import write_comparison
from monai_fairfl.statistics.paired import CaseScore, compare_paired
from monai_fairfl.strategies import FedAvg, FedCE, Standalone

STRATEGIES = {"Standalone": Standalone, "FedAvg": FedAvg, "FedCE": FedCE}
GAINS = {
    "Standalone": {"elm": 0.0, "oak": 0.0, "yew": 0.0},
    "FedAvg": {"elm": 0.02, "oak": 0.01, "yew": -0.10},
    "FedCE": {"elm": 0.06, "oak": 0.0, "yew": -0.01},
}
"""Strategy -> hospital -> Dice more than alone, in the mean."""

Tables = dict[str, dict[str, dict[str, float]]]
"""Measurement -> hospital -> case -> Dice."""


def tables_of(strategy: str, seed: int, fold: int | None = None) -> Tables:
    """Cases differ most, then strategies, then seeds; all of fold 1 are harder."""
    found: Tables = {"test_score": {}, "score": {}}
    for site, gain in GAINS[strategy].items():
        hardness = np.random.default_rng(ord(site[0])).uniform(0.6, 0.9, 6)
        noise = np.random.default_rng([seed, len(strategy), ord(site[0])]).normal(size=6)
        scores = hardness + gain + 0.004 * noise - 0.2 * (fold or 0)
        names = [f"f{fold}-case{number}.nii" for number in range(6)]
        found["test_score"][site] = dict(zip(names, scores.round(6).tolist()))
        found["score"][site] = dict.fromkeys(["v1.nii", "v2.nii"], round(scores.mean() - 0.1, 6))
    return found


class Comparison:
    """Trains every strategy, seed and fold below a folder, and compares the runs."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.given: dict[tuple[str, int], Tables] = {}
        self.tables: dict[tuple[str, int], Tables] = {}
        self.settings: dict[tuple[str, int], dict[str, Any]] = {}
        self.failed: dict[str, str] = {}
        self.runs: dict[tuple[str, int, int | None], Path] = {}

    def run(
        self, seeds: tuple[int, ...] = (0, 1, 2), folds: tuple[int | None, ...] = (None,)
    ) -> dict[str, Any]:
        """What ``comparison.json`` holds."""
        for key in itertools.product(STRATEGIES, seeds, folds):
            if ", ".join(map(str, key)) not in self.failed:
                self.runs[key] = self._train(*key)
        plan = {"strategies": {name: name for name in STRATEGIES}, "seeds": list(seeds)}
        plan |= {"folds": len(folds) if None not in folds else None}
        plan |= {"rounds": 2, "local_epochs": 1, "bundle": "b"}
        runs = list(self.runs.values())
        found = write_comparison(self.folder, plan, runs, self.failed)
        assert found == json.loads((self.folder / "comparison.json").read_text())
        return found

    def _train(self, strategy: str, seed: int, fold: int | None) -> Path:
        tables = self.given.get((strategy, seed)) or tables_of(strategy, seed, fold)
        self.tables[strategy, seed] = tables
        scores: dict[str, Any] = {site: {} for site in GAINS[strategy]}
        for name, of_sites in tables.items():
            for site, cases in of_sites.items():
                values = list(cases.values())
                scores[site][name] = mean_of(values) if len(values) > 1 else (values[0], None, 1)
        given = {"config": {"share_cases": True}, **self.settings.get((strategy, seed), {})}
        if fold is not None:
            given["config"] = {**given["config"], "overrides": {"split_fold": fold}}
        error = {"measured": {"leave_one_out_error": 0.3 + 0.1 * seed + 0.02 * (fold or 0)}}
        folder = self.folder / "runs" / f"{strategy}-{seed}-{fold}"
        about = {"yew": error, **given.pop("about", {})}
        run = train(folder, STRATEGIES[strategy](), scores, 2, seed=seed, about=about, **given)
        for name, of_sites in tables.items():
            for site, cases in of_sites.items():
                with_cases(run, site, cases, name)
        return run

    def contributions(self, site: str) -> list[float]:
        """FedCE's last contribution of a hospital, in each run."""
        found = []
        for (strategy, _, _), run in self.runs.items():
            if strategy == "FedCE":
                value = read_ledger(run / "ledger.jsonl")[-2]["contributions"][site]
                found.append(value["value"] if isinstance(value, dict) else value)
        return found

    def gains(self, site: str) -> np.ndarray:
        """What FedCE gains over training alone: seeds by cases."""
        found = []
        for seed in sorted({seed for _, seed in self.tables}):
            joined, alone = (
                self.tables[name, seed]["test_score"][site] for name in ("FedCE", "Standalone")
            )
            found.append([joined[case] - alone[case] for case in sorted(joined)])
        return np.array(found)


@pytest.fixture
def comparison(tmp_path: Path) -> Comparison:
    return Comparison(tmp_path)


def t_interval(values: np.ndarray | list[float]) -> tuple[float, float]:
    low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    return float(low), float(high)


def test_a_hospitals_interval_is_over_seeds_and_never_narrower_than_over_its_cases(
    comparison: Comparison,
) -> None:
    found = comparison.run()
    assert found["decision"]["strategy"] == "FedCE"
    for site in GAINS["FedCE"]:
        scores = []
        for (strategy, seed), tables in comparison.tables.items():
            for case, value in tables["test_score"][site].items():
                scores.append(CaseScore(strategy, seed, None, site, case, value))
        pairs = compare_paired(scores, list(STRATEGIES)).pairs
        [pair] = [one for one in pairs if (one.strategy, one.reference) == ("FedCE", "Standalone")]
        gains = comparison.gains(site)
        low, high = t_interval(gains.mean(axis=0))
        row = hospital(found, site)
        difference = row["difference"]
        assert difference["value"] == pytest.approx(gains.mean(), abs=1e-9)
        assert difference["low"] == pytest.approx(min(low, pair.difference.low), abs=1e-9)
        assert difference["high"] == pytest.approx(max(high, pair.difference.high), abs=1e-9)
        by_seed = gains.mean(axis=1)
        assert difference["seeds"] == pytest.approx([by_seed.min(), by_seed.max()], abs=1e-9)
        assert row["federation"] - row["alone"] == pytest.approx(difference["value"])
    assert verdicts(found) == {"elm": "better", "oak": "as_good", "yew": "worse"}
    words = {row["site"]: row["words"] for row in found["changes"]["rows"]}
    assert words == {"elm": "better", "oak": "worse", "yew": "better"}


def test_the_tables_are_the_means_of_cases_csv_and_the_page_shows_them(
    comparison: Comparison, tmp_path: Path
) -> None:
    comparison.run()
    cases = [row for row in rows_of(tmp_path / "cases.csv") if row["metric"] == "test_score:dice"]
    text = Page(tmp_path / "comparison.html").text
    of_file = {}
    for row in rows_of(tmp_path / "comparison.csv"):
        if row["metric"] == "test_score:dice":
            key = (row["quantity"], row["strategy"], row["site"], row["seed"], row["reference"])
            of_file[key] = row
    for strategy in STRATEGIES:
        by_seed = []
        for seed in ("0", "1", "2"):
            sites = []
            for site in GAINS[strategy]:
                about = (strategy, seed, site)
                values = [float(r["value"]) for r in cases if about_of(r) == about]
                sites.append(np.mean(values))
            by_seed.append(np.mean(sites))
            found = float(of_file["mean_of_seed", strategy, "", seed, ""]["value"])
            assert found == pytest.approx(by_seed[-1])
        mean, std = np.mean(by_seed), np.std(by_seed, ddof=1)
        assert float(of_file["mean", strategy, "", "", ""]["value"]) == pytest.approx(mean)
        assert float(of_file["std", strategy, "", "", ""]["value"]) == pytest.approx(std)
        assert f"{mean:.3f} ± {std:.3f}" in text
    row = of_file["difference", "FedCE", "", "", "FedAvg"]
    values = {name: f"{float(row[name]):.3f}" for name in ("value", "low", "high", "p_holm")}
    assert "{value} ({low} to {high})".format(**values) in text and values["p_holm"] in text


def about_of(row: Mapping[str, str]) -> tuple[str, str, str]:
    return row["strategy"], row["seed"], row["site"]


def test_contributions_have_an_interval_over_seeds_and_only_a_range_over_folds(
    comparison: Comparison, tmp_path: Path
) -> None:
    found = hospital(comparison.run(), "yew")["contribution"]
    values = comparison.contributions("yew")
    assert (found["least"], found["most"]) == pytest.approx(t_interval(values))
    assert found["interval"] is True

    folds = Comparison(tmp_path / "folds")
    found = hospital(folds.run(seeds=(0,), folds=(0, 1, 2)), "yew")["contribution"]
    values = folds.contributions("yew")
    shown = (found["value"], found["least"], found["most"])
    assert shown == pytest.approx((np.mean(values), min(values), max(values)))
    assert found["interval"] is False


def test_one_seed_has_the_interval_of_a_paired_t_test_and_no_deviation(
    comparison: Comparison,
) -> None:
    found = comparison.run(seeds=(1,))
    difference = hospital(found)["difference"]
    expected = t_interval(comparison.gains("elm")[0])
    assert (difference["low"], difference["high"]) == pytest.approx(expected)
    assert difference["seeds"] is None
    assert found["metrics"][found["main"]]["strategies"][0]["std"] is None


@pytest.mark.parametrize(("number", "verdict"), [(1, "too_few_cases"), (2, "unclear")])
def test_other_seeds_do_not_make_few_cases_certain(
    number: int, verdict: str, comparison: Comparison, tmp_path: Path
) -> None:
    for strategy, seed in itertools.product(STRATEGIES, range(3)):
        tables = comparison.given[strategy, seed] = tables_of(strategy, seed)
        elm = dict(list(tables["test_score"]["elm"].items())[:number])
        if strategy == "FedCE" and number == 2:
            elm["fNone-case0.nii"] += 0.05
        tables["test_score"]["elm"] = elm
    elm = hospital(comparison.run())
    assert elm["difference"]["seeds"][0] > 0
    assert (elm["n"], elm["verdict"]) == (number, verdict)
    assert "fewer than 5 cases" in Page(tmp_path / "comparison.html").text


def test_a_row_is_of_the_cases_that_every_run_scored_and_else_names_who_lacks_them(
    comparison: Comparison,
) -> None:
    """With one seed FedCE lacks elm's first case and every case of yew."""
    tables = comparison.given["FedCE", 1] = tables_of("FedCE", 1)
    del tables["test_score"]["elm"]["fNone-case0.nii"]
    tables["test_score"]["yew"] = {"another.nii": 0.5}
    found = comparison.run()
    gains = []
    for seed in range(3):
        joined, alone = (
            comparison.tables[name, seed]["test_score"]["elm"] for name in ("FedCE", "Standalone")
        )
        gains.append(np.mean([joined[case] - alone[case] for case in joined if "0" not in case]))
    elm, yew = hospital(found), hospital(found, "yew")
    assert elm["n"] == 5
    assert elm["difference"]["value"] == pytest.approx(np.mean(gains))
    assert (yew["verdict"], yew["federation"], yew["difference"]) == ("no_score", None, None)
    assert any("yew" in line for line in found["metrics"][found["main"]]["left_out"])


def test_without_test_cases_of_a_hospital_validation_cases_of_all_are_compared(
    comparison: Comparison,
) -> None:
    for strategy, seed in itertools.product(STRATEGIES, range(2)):
        tables = comparison.given[strategy, seed] = tables_of(strategy, seed)
        del tables["test_score"]["yew"]
    found = comparison.run(seeds=(0, 1))
    assert found["main"] == "score:dice"
    assert found["metrics"]["score:dice"]["cases"] == {"elm": 2, "oak": 2, "yew": 2}
    assert any("yew" in note and "validation" in note for note in found["notes"])


def test_the_strategy_is_chosen_on_seeds_and_folds_that_all_strategies_have(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedCE lacks a run of the harder fold 1, and is worse in all that it has."""
    monkeypatch.setitem(GAINS, "FedCE", dict.fromkeys(GAINS["FedCE"], -0.05))
    comparison.failed = {"FedCE, 1, 1": "no disk"}
    found = comparison.run(seeds=(0, 1), folds=(0, 1))
    assert found["decision"]["strategy"] == "FedAvg"
    assert "seed 1, fold 1" in found["decision"]["why"]
    assert found["failed"] == {"FedCE, 1, 1": "no disk"}


def test_guards_and_absences_are_counted_in_the_rounds_of_all_runs(
    comparison: Comparison,
) -> None:
    nan = {"updates": [float("nan")]}
    about = {"elm": nan, "oak": {"away": [0, 1]}}
    for seed in (1, 2):
        comparison.settings["FedCE", seed] = {"about": about, "guards": [NonFinite()]}
    found = comparison.run()
    [guards] = hospital(found)["guards"]
    assert "4 of 6" in guards and "NonFinite" in guards
    assert any("4 of 6" in line and "missing" in line for line in hospital(found, "oak")["advice"])
    # What a refused hospital reports of itself does not help to choose.
    assert "elm" in found["decision"]["why"]


def test_short_runs_are_a_first_look_and_names_from_outside_are_text(
    comparison: Comparison, tmp_path: Path
) -> None:
    full = {"full_run": {"rounds": 60, "local_epochs": 4, "mean_dice": 0.5}, "share_cases": True}
    for key in itertools.product(STRATEGIES, (0, 1)):
        comparison.settings[key] = {"config": full}
    evil = "<script>alert(1)</script>"
    comparison.failed = {f"{evil}, seed 2": "Pr\udcfcfung.nii is damaged"}
    found = comparison.run(seeds=(0, 1))
    assert set(verdicts(found).values()) == {"not_judged"} and found["first_look"]
    page = Page(tmp_path / "comparison.html")
    assert evil in page.text and "fung.nii" in page.text
    assert not {"script", "link", "img"} & {tag for tag, _ in page.tags}


def test_nothing_is_written_when_no_run_finished(tmp_path: Path) -> None:
    plan = {"strategies": {"FedAvg": "FedAvg"}, "seeds": [0], "folds": None}
    with pytest.raises(FederationError, match="FedAvg, seed 0: no disk"):
        write_comparison(tmp_path, plan, [], {"FedAvg, seed 0": "no disk"})
    assert not list(tmp_path.iterdir())
