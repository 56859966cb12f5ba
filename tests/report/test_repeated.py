# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The tables and the page of a comparison over seeds, made of the text of a cases.csv."""

from __future__ import annotations

import html
import itertools
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.report.csv_files import RUN_COLUMNS
from monai_fairfl.report.repeated import compared_cases, comparison_csv, write_comparison
from monai_fairfl.report.repeated_page import render_comparison
from monai_fairfl.report.repeated_tables import comparison_text, tables_of
from monai_fairfl.utils.spreadsheets import csv_text, read_csv_text

STRATEGIES = ("FedAvg", "FedCE-sum")
HOSTILE = ("<b>&_1", "5% $x$ \\input{y}", "a~b^c#d", "[2pt]e", "*f")


def made_csv(
    sites: Sequence[str] = ("alder", "birch"),
    seeds: Sequence[int] = (0, 1, 2),
    measurement: str = "test_score",
    strategies: Sequence[str] = STRATEGIES,
) -> str:
    """The text of a cases.csv of two metrics; FedCE is better by two points, more or less."""
    rng = np.random.default_rng(3)
    rows = []
    for number, strategy in enumerate(strategies):
        for seed in seeds:
            for site in sites:
                for case in range(4):
                    dice = 0.6 + 0.05 * case + 0.01 * seed + 0.02 * number + rng.normal(0, 0.004)
                    about = {"run": strategy, "strategy": strategy, "seed": seed, "fold": case % 2}
                    of_case = {**about, "site": site, "case": f"Case{case}"}
                    for column, value in (("dice", dice), ("gland", dice - 0.1)):
                        metric = f"{measurement}:{column}"
                        rows.append({**of_case, "metric": metric, "value": value})
    return csv_text((*RUN_COLUMNS, "site", "case", "metric", "value"), rows)


def comparison_of(cases: str, strategies: Sequence[str] = STRATEGIES) -> dict[str, Any]:
    """What a comparison returns of these cases."""
    plan = {
        "bundle": "prostate",
        "strategies": {name: name for name in strategies},
        "seeds": [0, 1, 2],
        "folds": 2,
        "rounds": 3,
        "local_epochs": 1,
    }
    return {"plan": plan, **compared_cases(cases, strategies), "warnings": [], "failed": {}}


def without(cases: str, **unwanted: str) -> str:
    """The table without the rows that have all of these cells."""
    rows = []
    for row in read_csv_text(cases):
        if not all(row[name] == value for name, value in unwanted.items()):
            rows.append({**row, "value": float(row["value"])})
    return csv_text((*RUN_COLUMNS, "site", "case", "metric", "value"), rows)


def test_every_metric_of_the_test_cases_is_compared_and_dice_comes_first() -> None:
    found = comparison_of(made_csv())
    assert found["main"] == "test_score:dice"
    assert list(found["metrics"]) == ["test_score:dice", "test_score:gland"]
    dice, gland = found["metrics"].values()
    for of_dice, of_gland in zip(dice["strategies"], gland["strategies"]):
        assert of_gland["mean"] == pytest.approx(of_dice["mean"] - 0.1)
    assert dice["pairs"][0]["strategy"] == "FedCE-sum"
    assert dice["pairs"][0]["difference"]["estimate"] == pytest.approx(0.02, abs=0.005)


def test_the_tables_show_the_numbers_of_the_files() -> None:
    found = comparison_of(made_csv())
    json.dumps(found, allow_nan=False)
    of_file: dict[tuple[str, ...], dict[str, str]] = {}
    for row in read_csv_text(comparison_csv(found)):
        key = (row["metric"], row["quantity"], row["strategy"], row["reference"], row["site"])
        of_file[key] = row
    assert len(of_file) > 15

    strategies, sites, pairs = list(tables_of(found))[:3]
    main = found["main"]
    for name, mean, _, rank in strategies.rows:
        value = float(of_file[main, "mean", name, "", ""]["value"])
        std = float(of_file[main, "std", name, "", ""]["value"])
        assert mean == f"{value:.3f} ± {std:.3f}"
        assert rank == f"{float(of_file[main, 'rank', name, '', '']['value']):.2f}"
    for site, _, *values in sites.rows:
        expected = [
            float(of_file[main, "mean_of_site", name, "", site]["value"]) for name in STRATEGIES
        ]
        assert values == [f"{value:.3f}" for value in expected]
    row = of_file[main, "difference", "FedCE-sum", "FedAvg", ""]
    low, high, estimate = (float(row[name]) for name in ("low", "high", "value"))
    assert low < estimate < high
    assert pairs.rows[0][1] == f"{estimate:.3f} ({low:.3f} to {high:.3f})"
    assert pairs.rows[0][2:] == [f"{float(row[name]):.3f}" for name in ("p_value", "p_holm")]


def test_a_case_that_validates_in_two_folds_counts_once_with_their_mean() -> None:
    """Of ten folds, a case validates in two or three."""
    rows = []
    for strategy, seed, fold in itertools.product(STRATEGIES, (0, 1), (0, 1)):
        more = 0.01 * (strategy == "FedCE-sum") + 0.1 * fold
        for number in range(4):
            about = {"run": strategy, "strategy": strategy, "seed": seed, "fold": fold}
            of_case = {**about, "site": "alder", "case": f"Case{number}", "metric": "score:dice"}
            # Case3 validates in fold 1 only, and Case2 lacks a score of it.
            is_lost = (strategy, seed, fold, number) == ("FedAvg", 1, 1, 2)
            if not is_lost and (fold, number) != (0, 3):
                rows.append({**of_case, "value": 0.5 + 0.05 * number + more})
    found = compared_cases(
        csv_text((*RUN_COLUMNS, "site", "case", "metric", "value"), rows), STRATEGIES
    )
    dice = found["metrics"]["score:dice"]
    assert dice["cases"] == {"alder": 4}
    fedavg, fedce = dice["strategies"]
    assert fedavg["mean"] == pytest.approx(np.mean([0.55, 0.60, 0.60, 0.75]))
    assert fedce["mean"] - fedavg["mean"] == pytest.approx(0.01)


@pytest.mark.slow
def test_terminal_and_page_show_the_same_cells() -> None:
    found = comparison_of(made_csv())
    text = comparison_text(found)
    page = html.unescape(render_comparison(found))
    for table in tables_of(found):
        for row in table.rows:
            for cell in row:
                assert cell in text
                assert f">{cell}</td>" in page or f">{cell}</th>" in page


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 3, 5])
def test_fewer_than_five_seeds_say_so_in_every_form(number: int) -> None:
    found = comparison_of(made_csv(seeds=range(number)))
    for shown in (comparison_text(found), render_comparison(found)):
        assert ("five seeds or more" in shown.lower()) == (number < 5)
        assert ("Two to four seeds give too narrow an interval" in shown) == (number == 3)


@pytest.mark.slow
def test_names_from_outside_are_text_on_the_page() -> None:
    hostile = "<script>alert(1)</script>"
    found = comparison_of(made_csv([hostile, "elm"]))
    found["warnings"] = [hostile]
    page = render_comparison(found)
    assert hostile not in page
    assert "&lt;script&gt;" in page
    assert "default-src 'none'" in page


@pytest.mark.slow
def test_the_page_draws_each_pair_with_its_interval() -> None:
    found = comparison_of(made_csv())
    page = render_comparison(found)
    titles = re.findall(r"<title>((?:Difference of )?Test Dice[^<]*)</title>", page)
    assert titles == [
        "Difference of Test Dice",
        "Test Dice",
        "Difference of Test Dice of gland",
        "Test Dice of gland",
    ]
    difference = found["metrics"][found["main"]]["pairs"][0]["difference"]
    words = "{estimate:.3f} ({low:.3f} to {high:.3f})".format(**difference)
    assert f"<desc>FedCE-sum less FedAvg: {words}</desc>" in page


@pytest.mark.slow
def test_one_seed_shows_no_deviation_and_no_interval() -> None:
    found = comparison_of(made_csv(seeds=[4]))
    strategies, _, pairs = list(tables_of(found))[:3]
    assert [re.fullmatch(r"0\.\d{3}", row[1]) is not None for row in strategies.rows] == [True] * 2
    assert re.fullmatch(r"0\.\d{3}", pairs.rows[0][1])
    assert "one seed: there is no standard deviation" in comparison_text(found)
    assert found["metrics"][found["main"]]["strategies"][0]["std"] is None
    [std] = [
        row["value"]
        for row in read_csv_text(comparison_csv(found))
        if (row["metric"], row["quantity"], row["strategy"]) == (found["main"], "std", "FedAvg")
    ]
    assert std == ""
    assert "one seed: there is no standard deviation" in render_comparison(found)


def test_without_test_cases_validation_cases_are_compared_and_it_says_so() -> None:
    found = comparison_of(made_csv(measurement="score"))
    assert found["main"] == "score:dice"
    assert "these are validation cases" in comparison_text(found)


def test_a_structure_that_nobody_has_in_common_is_not_compared_and_is_named() -> None:
    cases = without(made_csv(), strategy="FedAvg", metric="test_score:gland")
    found = comparison_of(cases)
    assert list(found["metrics"]) == ["test_score:dice"]
    assert "test_score:gland is not compared" in comparison_text(found)


def test_a_case_that_one_lacks_is_named_in_the_text() -> None:
    cases = without(made_csv(), strategy="FedAvg", site="alder", case="Case3", seed="1")
    assert "FedAvg with seed 1 has no score of them: alder/Case3" in comparison_text(
        comparison_of(cases)
    )


def test_cases_without_scores_cannot_be_compared() -> None:
    with pytest.raises(ConfigError, match="has no score of a case"):
        comparison_of(csv_text((*RUN_COLUMNS, "site", "case", "metric", "value"), []))


def test_nothing_is_written_when_no_training_finished(tmp_path: Any) -> None:
    plan = {"strategies": {"FedAvg": "FedAvg"}, "seeds": [0], "folds": None}
    with pytest.raises(FederationError, match="no training finished: FedAvg, seed 0: no disk"):
        write_comparison(tmp_path, plan, [], {"FedAvg, seed 0": "no disk"})
    assert not list(tmp_path.iterdir())
