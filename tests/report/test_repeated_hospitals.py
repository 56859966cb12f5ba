# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The rows of the hospitals in a comparison over seeds."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from monai_fairfl.client.state import ClientState
from monai_fairfl.report.repeated import write_comparison
from monai_fairfl.report.repeated_tables import comparison_text, remarks_of
from monai_fairfl.statistics.paired import CaseScore, compare_paired

pytest.importorskip("jinja2")

WriteRun = Callable[..., Path]
SEEDS = (0, 1, 2)
GAINS = {"Standalone": {"elm": 0.0, "oak": 0.0, "yew": 0.0}}
GAINS["FedAvg"] = {"elm": 0.02, "oak": 0.01, "yew": -0.10}
GAINS["FedCE"] = {"elm": 0.06, "oak": 0.0, "yew": -0.01}
"""Strategy -> site -> Dice more than alone, in the mean."""

SHARES = {0: 0.5, 1: 0.56, 2: 0.53}
"""Seed, or fold -> FedCE's contribution of yew."""


VALIDATION = {"Standalone": 0.4, "FedAvg": 0.45, "FedCE": 0.5}
"""Strategy -> Dice on validation cases of the first seed."""


EXTRA: dict[tuple[str, int], dict[str, Any]] = {}
"""Strategy and seed -> what else the records of its rounds hold."""


def case_scores(strategy: str, seed: int, site: str) -> dict[str, float]:
    """Case -> Dice: cases differ most, then strategies, then seeds."""
    generator = np.random.default_rng([seed, len(strategy), len(site), ord(site[0])])
    hardness = np.random.default_rng(ord(site[0])).uniform(0.6, 0.9, 6)
    scores = hardness + GAINS[strategy][site] + 0.004 * generator.normal(size=6)
    return {f"case{number}.nii": round(float(score), 6) for number, score in enumerate(scores)}


def train(
    write_run: WriteRun, strategy: str, seed: int, fold: int | None = None, **config: Any
) -> Path:
    """A finished run of one seed and fold, with the tables of its cases."""
    tables = {site: case_scores(strategy, seed, site) for site in ("elm", "oak", "yew")}
    if fold is not None:
        config["overrides"] = {"split_fold": fold}
        for site, table in tables.items():
            tables[site] = {f"fold{fold}-{case}": score for case, score in table.items()}
    scores = {}
    for site, table in tables.items():
        values = list(table.values())
        scores[site] = (float(np.mean(values)), float(stats.sem(values)), len(values))
    contributions = {}
    if strategy == "FedCE":
        of_yew = SHARES[seed if fold is None else fold]
        rest = (1 - of_yew) / 2
        contributions = {"elm": rest, "oak": rest, "yew": of_yew}
    record = {
        "contributions": contributions,
        "samples": {"elm": 40, "oak": 40, "yew": 20},
        "measurements": {
            site: {"global_score": VALIDATION[strategy] + 0.1 * seed} for site in tables
        },
        **EXTRA.get((strategy, seed), {}),
    }
    run = write_run(
        strategy,
        scores,
        rounds=[record, record],
        seed=seed,
        folder=f"{strategy}-{seed}-{fold}",
        config={"share_cases": True, **config},
    )
    for site, table in tables.items():
        cases = {case: {"dice": score} for case, score in table.items()}
        ClientState(run / "sites" / site / "state").save_cases(run.name, "test_score-2-0", cases)
    return run


def compared(
    write_run: WriteRun,
    folder: Path,
    seeds: tuple[int, ...] = SEEDS,
    folds: tuple[int | None, ...] = (None,),
    **config: Any,
) -> dict[str, Any]:
    runs = []
    for strategy, seed, fold in itertools.product(GAINS, seeds, folds):
        runs.append(train(write_run, strategy, seed, fold, **config))
    plan = {"strategies": {name: name for name in GAINS}, "seeds": list(seeds), "folds": None}
    plan |= {"rounds": 2, "local_epochs": 1, "bundle": "b"}
    return write_comparison(folder, plan, runs)


def interval_over_cases(site: str) -> tuple[float, float]:
    """Student's, of what FedCE gains over training alone, the mean over the seeds of each case."""
    gains = []
    for seed in SEEDS:
        joined = case_scores("FedCE", seed, site)
        alone = case_scores("Standalone", seed, site)
        gains.append([joined[case] - alone[case] for case in sorted(joined)])
    of_cases = np.mean(gains, axis=0)
    low, high = stats.t.interval(0.95, len(of_cases) - 1, of_cases.mean(), stats.sem(of_cases))
    return float(low), float(high)


@pytest.mark.slow
def test_the_interval_of_a_hospital_is_that_over_seeds_and_its_cases(
    write_run: WriteRun, tmp_path: Path
) -> None:
    found = compared(write_run, tmp_path)
    decision = found["decision"]
    assert decision["strategy"] == "FedCE"
    assert decision["contributions"]["strategy"] == "FedCE"
    for site, hospital in decision["hospitals"].items():
        scores = []
        for strategy in GAINS:
            for seed in SEEDS:
                for case, value in case_scores(strategy, seed, site).items():
                    scores.append(CaseScore(strategy, seed, None, site, case, value))
        pairs = compare_paired(scores, list(GAINS)).pairs
        [pair] = [one for one in pairs if (one.strategy, one.reference) == ("FedCE", "Standalone")]
        difference = hospital["difference"]
        assert difference["value"] == pytest.approx(pair.difference.estimate, abs=1e-9)
        over_cases = interval_over_cases(site)
        low = min(pair.difference.low, over_cases[0])
        high = max(pair.difference.high, over_cases[1])
        assert (difference["low"], difference["high"]) == pytest.approx((low, high), abs=1e-9)
        least, most = difference["seeds"]
        assert least < difference["value"] < most
    verdicts = {site: hospital["verdict"] for site, hospital in decision["hospitals"].items()}
    assert verdicts == {"elm": "better", "oak": "as_good", "yew": "worse"}


def test_contributions_have_an_interval_over_the_seeds(write_run: WriteRun, tmp_path: Path) -> None:
    yew = compared(write_run, tmp_path)["decision"]["hospitals"]["yew"]["contribution"]
    values = list(SHARES.values())
    expected = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    assert (yew["least"], yew["most"]) == pytest.approx(expected)
    assert yew["interval"] and yew["range_of"] == "3 seeds"
    assert yew["words"] == "carries two and a half times its share of the images"


def test_of_one_seed_contributions_are_the_mean_over_its_folds(
    write_run: WriteRun, tmp_path: Path
) -> None:
    found = compared(write_run, tmp_path, seeds=(0,), folds=(0, 1, 2))
    yew = found["decision"]["hospitals"]["yew"]["contribution"]
    assert yew["value"] == pytest.approx(np.mean(list(SHARES.values())))
    assert (yew["least"], yew["most"], yew["range_of"]) == (0.5, 0.56, "3 folds")
    assert yew["interval"] is False
    meaning = found["decision"]["contributions"]["meaning"]
    assert "The mean and the range are over 3 folds; it is not a confidence interval." in meaning
    assert "By FedCE, with the range over 3 folds" in (tmp_path / "comparison.html").read_text()


def test_guards_and_limits_are_counted_in_the_rounds_of_all_trainings(
    write_run: WriteRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elm is refused with the first seed only, and yew with the last two."""
    noise = [{"guard": "Noise", "action": "quarantine", "reason": "it is random numbers"}]
    limited = {"notes": {"oak": "leave_one_out_error 1 clipped to 0.6"}}
    monkeypatch.setitem(EXTRA, ("FedCE", 0), {"verdicts": {"elm": noise}})
    monkeypatch.setitem(EXTRA, ("FedCE", 1), {"verdicts": {"yew": noise}})
    monkeypatch.setitem(EXTRA, ("FedCE", 2), {"verdicts": {"yew": noise}, **limited})
    hospitals = compared(write_run, tmp_path)["decision"]["hospitals"]
    assert hospitals["elm"]["guards"] == ["update refused in 2 of 6 rounds (Noise)"]
    assert hospitals["yew"]["guards"] == ["update refused in 4 of 6 rounds (Noise)"]
    assert hospitals["oak"]["guards"] == ["own report limited in 2 of 6 rounds"]
    assert any("Ask oak how it validates" in line for line in hospitals["oak"]["advice"])


def test_rounds_missed_are_counted_over_all_trainings_without_those_refused(
    write_run: WriteRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opposed = [{"guard": "Opposed", "action": "quarantine", "reason": "it is opposed"}]
    lost = {"missing": {"elm": "timeout", "oak": "quarantined: it is opposed"}}
    for seed in SEEDS[1:]:
        monkeypatch.setitem(EXTRA, ("FedCE", seed), {**lost, "verdicts": {"oak": opposed}})
    hospitals = compared(write_run, tmp_path)["decision"]["hospitals"]
    assert "Find out why elm was missing in 4 of 6 rounds" in hospitals["elm"]["advice"]
    assert hospitals["oak"]["guards"] == ["update refused in 4 of 6 rounds (Opposed)"]
    assert not [line for line in hospitals["oak"]["advice"] if "missing" in line]


def test_a_hospital_that_is_doubted_with_one_seed_counts_with_none(
    write_run: WriteRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All means on validation cases are over elm and oak, which report 0.5."""
    noise = [{"guard": "Noise", "action": "quarantine", "reason": "it is random numbers"}]
    dice = {"elm": 0.5, "oak": 0.5, "yew": 0.0}
    reported = {site: {"global_score": value} for site, value in dice.items()}
    for strategy, seed in itertools.product(GAINS, SEEDS):
        extra: dict[str, Any] = {"measurements": reported}
        if (strategy, seed) == ("FedCE", 2):
            extra["verdicts"] = {"yew": noise}
        monkeypatch.setitem(EXTRA, (strategy, seed), extra)
    why = compared(write_run, tmp_path)["decision"]["why"]
    assert "FedAvg 0.500, FedCE 0.500. It excludes yew" in why


def test_what_changed_against_fedavg_and_the_band_over_seeds_are_on_the_page(
    write_run: WriteRun, tmp_path: Path
) -> None:
    found = compared(write_run, tmp_path)
    changes = {row["site"]: row["words"] for row in found["changes"]["rows"]}
    assert changes == {"elm": "better", "oak": "worse", "yew": "better"}
    [first, *_] = found["series"]["dice"]["FedCE, 3 trainings"]["elm"]
    assert (first["least"], first["value"], first["most"]) == pytest.approx((0.5, 0.6, 0.7))
    page = (tmp_path / "comparison.html").read_text()
    assert len(page.encode()) < 100_000 and "<script" not in page
    assert page.count('class="verdict good"') == 2 and page.count('class="verdict bad"') == 1
    assert '<polygon class="band c0 d0"' in page
    assert "95 % interval over 3 seeds" in page


def test_one_seed_has_the_interval_over_its_cases(write_run: WriteRun, tmp_path: Path) -> None:
    found = compared(write_run, tmp_path, seeds=(1,))
    elm = found["decision"]["hospitals"]["elm"]
    joined = np.array(list(case_scores("FedCE", 1, "elm").values()))
    alone = np.array(list(case_scores("Standalone", 1, "elm").values()))
    interval = stats.ttest_rel(joined, alone).confidence_interval(0.95)
    assert elm["difference"]["low"] == pytest.approx(interval.low)
    assert elm["difference"]["seeds"] is None
    assert elm["contribution"]["interval"] is False


def test_short_trainings_are_a_first_look_here_too(write_run: WriteRun, tmp_path: Path) -> None:
    full_run = {"rounds": 60, "local_epochs": 4, "mean_dice": 0.5}
    found = compared(write_run, tmp_path, full_run=full_run)
    verdicts = {hospital["verdict"] for hospital in found["decision"]["hospitals"].values()}
    assert verdicts == {"not_judged"}
    words = "This was a first look. It calls no hospital better off"
    page = (tmp_path / "comparison.html").read_text()
    assert words in page
    assert comparison_text(found).startswith(words)


def test_tables_of_full_runs_are_no_first_look(write_run: WriteRun, tmp_path: Path) -> None:
    found = compared(write_run, tmp_path)
    assert "first look" not in comparison_text(found)


def test_the_terminal_has_a_line_for_each_hospital(write_run: WriteRun, tmp_path: Path) -> None:
    text = comparison_text(compared(write_run, tmp_path))
    assert re.search(r"^elm: Better off than alone; Dice 0\.\d{3}, alone 0\.\d{3}", text, re.M)
    assert "Who contributed what: FedCE estimates contributions" in text


def test_the_rows_are_of_the_strategy_that_validates_best_and_the_weights_of_fedce(
    write_run: WriteRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(VALIDATION, "FedAvg", 0.55)
    found = compared(write_run, tmp_path)
    decision = found["decision"]
    assert decision["strategy"] == "FedAvg"
    assert decision["contributions"]["strategy"] == "FedCE"
    verdicts = {site: hospital["verdict"] for site, hospital in decision["hospitals"].items()}
    assert verdicts["yew"] != "better"
    assert decision["hospitals"]["yew"]["contribution"]["range_of"] == "3 seeds"
    # What FedCE changes against FedAvg stays on the page.
    assert found["changes"]["strategy"] == "FedCE"
    page = (tmp_path / "comparison.html").read_text()
    assert "By FedCE, with the range over 3 seeds" in page
    assert "p gives each case the same weight" in page


def test_one_case_gives_no_verdict_over_seeds_and_is_marked(
    write_run: WriteRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every_case = case_scores

    def one_case_at_elm(strategy: str, seed: int, site: str) -> dict[str, float]:
        scores = every_case(strategy, seed, site)
        return dict(list(scores.items())[:1]) if site == "elm" else scores

    monkeypatch.setitem(globals(), "case_scores", one_case_at_elm)
    found = compared(write_run, tmp_path)
    elm = found["decision"]["hospitals"]["elm"]
    assert elm["n"] == 1 and elm["difference"]["low"] > 0
    assert elm["verdict"] == "too_few_cases"
    page = (tmp_path / "comparison.html").read_text()
    assert page.count("one case: the interval is over the seeds only") == 1
    assert "elm tested fewer than 5 cases" in page


def test_two_cases_that_gain_are_no_verdict_over_several_seeds(
    write_run: WriteRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two cases without a difference, both gain or both lose every other time."""
    every_case = case_scores

    def two_cases_at_elm(strategy: str, seed: int, site: str) -> dict[str, float]:
        scores = every_case(strategy, seed, site)
        if site == "elm":
            scores = dict(list(scores.items())[:2])
            if strategy == "FedCE":
                scores["case0.nii"] += 0.05
        return scores

    monkeypatch.setitem(globals(), "case_scores", two_cases_at_elm)
    elm = compared(write_run, tmp_path)["decision"]["hospitals"]["elm"]
    low, high = interval_over_cases("elm")
    assert elm["difference"]["seeds"][0] > 0
    assert elm["difference"]["low"] == pytest.approx(low)
    assert elm["verdict"] == "unclear"
    assert "elm tested fewer than 5 cases" in (tmp_path / "comparison.html").read_text()


def test_a_row_is_of_the_cases_that_every_training_scored(
    write_run: WriteRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one seed FedCE lacks elm's easiest case and all of yew's; neither is in any number."""
    every_case = case_scores

    def some_cases(strategy: str, seed: int, site: str) -> dict[str, float]:
        scores = every_case(strategy, seed, site)
        lost = {"elm": {"case0.nii"}, "yew": set(scores)}.get(site, set())
        if (strategy, seed) != ("FedCE", 1):
            return scores
        return {case: score for case, score in scores.items() if case not in lost} or {"new": 0.5}

    monkeypatch.setitem(globals(), "case_scores", some_cases)
    found = compared(write_run, tmp_path)
    elm, yew = (found["decision"]["hospitals"][site] for site in ("elm", "yew"))
    difference = elm["difference"]["value"]
    assert elm["federation"] - elm["alone"] == pytest.approx(difference)
    by_strategy = found["metrics"]["test_score:dice"]["strategies"]
    by_site = {each["strategy"]: each["by_site"]["elm"] for each in by_strategy}
    assert (elm["federation"], elm["alone"]) == pytest.approx(
        (by_site["FedCE"], by_site["Standalone"])
    )
    assert elm["n"] == 5
    gains = []
    for seed in SEEDS:
        joined, alone = (every_case(name, seed, "elm") for name in ("FedCE", "Standalone"))
        gains.append(
            np.mean([joined[case] - alone[case] for case in joined if case != "case0.nii"])
        )
    assert elm["difference"]["seeds"] == pytest.approx([min(gains), max(gains)], abs=1e-9)
    assert (yew["verdict"], yew["federation"], yew["difference"]) == ("no_score", None, None)
    assert yew["advice"][0] == "Look at the notes: no test case of it was scored in every training"
    assert any("site yew is left out" in text for text in remarks_of(found))
    assert "yew" in (tmp_path / "comparison.html").read_text()


def test_a_first_look_of_many_trainings_names_strategies(
    write_run: WriteRun, tmp_path: Path
) -> None:
    full_run = {"rounds": 60, "local_epochs": 4, "mean_dice": 0.5}
    found = compared(write_run, tmp_path, full_run=full_run)
    names = "FedAvg (3 trainings), FedCE (3 trainings), Standalone (3 trainings): "
    assert any(line.startswith(names) for line in found["first_look"])
