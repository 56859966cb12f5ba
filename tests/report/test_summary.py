# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The numbers of the report against numpy and scipy on the ledgers themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.ledgers import read_lines, replace_closing_scores
from scipy import stats

from monai_fairfl.report.collect import load_runs
from monai_fairfl.report.hospitals import decision_of
from monai_fairfl.report.summary import summarise

WriteRun = Callable[..., Path]


def closing_scores(run: Path) -> dict[str, dict[str, Any]]:
    """site -> its closing test score, sorted by site."""
    end = read_lines(run)[-1]
    scores = {}
    for site, models in sorted(end["scores"].items()):
        scores[site] = models["own"]["test_score"]["mean"]
    return scores


def test_scores_gains_and_fairness_are_those_of_the_ledgers(comparison: Path) -> None:
    report = summarise(load_runs([comparison]))
    assert report["measurement"] == "test_score"
    scores_alone = closing_scores(comparison / "Standalone")
    alone = np.array([score["value"] for score in scores_alone.values()])
    for name in ("FedAvg", "FedCE"):
        scores = closing_scores(comparison / name)
        dice = np.array([score["value"] for score in scores.values()])
        found = report["strategies"][name]

        performance = found["performance"]
        assert performance["mean"] == pytest.approx(dice.mean())
        assert performance["std"] == pytest.approx(dice.std(ddof=1))
        assert performance["worst"] == pytest.approx(dice.min())
        assert performance["gap"] == pytest.approx(np.ptp(dice))
        assert performance["jain"] == pytest.approx(dice.mean() ** 2 / np.mean(dice**2))

        r, p_value = stats.pearsonr(alone, dice)
        distance = np.sqrt(np.sum((alone - dice) ** 2))
        assert found["collaboration"] == pytest.approx(
            {"pearson": 100 * r, "p_value": p_value, "euclid": 100 * distance}
        )

        gains = [found["sites"][site]["gain"] for site in report["sites"]]
        assert [gain["value"] for gain in gains] == pytest.approx(list(dice - alone))
        errors = []
        for site in report["sites"]:
            errors.append(np.hypot(scores_alone[site]["stderr"], scores[site]["stderr"]))
        assert [gain["stderr"] for gain in gains] == pytest.approx(errors)


def test_the_header_holds_sites_seed_rounds_and_verified_heads(comparison: Path) -> None:
    report = summarise(load_runs([comparison]))
    assert list(report["strategies"]) == ["Standalone", "FedAvg", "FedCE"]
    assert report["sites"]["hazel"] == {"cases": 6, "images": 48, "scored": 3}
    found = report["strategies"]["FedCE"]
    assert found["rounds"] == 4
    assert found["seed"] == 0
    assert found["finished"] is True
    assert found["chain_verified"] is True
    assert report["warnings"] == []


def with_scores(run: Path, score: float, test_score: float) -> Path:
    """The run, with these closing scores of elm."""
    replace_closing_scores(run, {"elm": {"own": {"score": score, "test_score": test_score}}})
    return run


def test_the_report_is_about_the_strategy_that_validates_best_not_that_tests_best(
    write_run: WriteRun,
) -> None:
    first = with_scores(write_run("CGSV", {"elm": 0}), score=0.9, test_score=0.5)
    second = with_scores(write_run("FedCE", {"elm": 0}), score=0.6, test_score=0.8)
    assert summarise(load_runs([first, second]))["focus"] == "CGSV"


def test_runs_are_chosen_by_validation_scores_of_the_same_sites(write_run: WriteRun) -> None:
    """FedCE lacks the score of the worst site, without which its mean would be the best."""
    validation = {"elm": 0.8, "oak": 0.3}
    average = write_run("FedAvg", validation)
    fedce = write_run("FedCE", validation)
    tested = {"test_score": 0.5}
    closing = {site: {"own": {"score": dice, **tested}} for site, dice in validation.items()}
    replace_closing_scores(average, closing)
    worse = {"elm": {"own": {"score": 0.7, **tested}}, "oak": {"own": tested}}
    replace_closing_scores(fedce, worse)
    report = summarise(load_runs([average, fedce]))
    assert report["focus"] == "FedAvg"
    means = {name: found["validation_mean"] for name, found in report["strategies"].items()}
    assert means == {"FedAvg": 0.8, "FedCE": 0.7}
    assert (
        "The mean Dice on validation cases is without oak, which has none in FedCE"
        in report["warnings"]
    )


def test_verdicts_are_of_the_model_that_validates_best_and_contributions_of_who_has_them(
    write_run: WriteRun,
) -> None:
    shares = {"contributions": {"elm": 1.0}}
    average = with_scores(write_run("FedAvg", {"elm": 0}), score=0.9, test_score=0.5)
    fedce = write_run("FedCE", {"elm": 0}, rounds=[shares])
    other = with_scores(fedce, score=0.6, test_score=0.8)
    report = summarise(load_runs([average, other]))
    decision = decision_of(report, report["focus"])
    assert decision.strategy == "FedAvg"
    assert decision.hospitals["elm"].federation == 0.5
    assert decision.contributions.strategy == "FedCE"

    # FedAvg answers itself where it is valued.
    (average / "valuations").mkdir()
    shares = {"name": "v", "values": {}, "shares": {"elm": 1.0}, "own": None}
    shares |= dict.fromkeys(("strategy", "method", "utility", "data"), "mean")
    shares |= {"evaluations": 1, "rank_stability": None, "total": 0.1}
    (average / "valuations" / "v.json").write_text(json.dumps(shares))
    report = summarise(load_runs([average, other]))
    assert decision_of(report, report["focus"]).contributions.strategy == "FedAvg"


def test_the_sentences_are_never_about_a_strategy_that_lacks_a_weak_site(
    write_run: WriteRun,
) -> None:
    strong = {"elm": {"own": {"score": 0.9, "test_score": 0.9}}}
    weak = {"oak": {"own": {"score": 0.4, "test_score": 0.4}}}
    whole = write_run("FedAvg", {"elm": 0, "oak": 0})
    replace_closing_scores(whole, {**strong, **weak})
    part = write_run("FedCE", {"elm": 0, "oak": 0})
    replace_closing_scores(part, {"elm": {"own": {"score": 0.8, "test_score": 0.8}}})
    assert summarise(load_runs([whole, part]))["focus"] == "FedAvg"


def test_runs_that_are_scored_on_other_numbers_of_cases_are_not_compared(
    write_run: WriteRun,
) -> None:
    one = write_run("FedAvg", {"elm": (0.8, 0.1, 5), "oak": (0.7, 0.1, 5)})
    two = write_run("FedCE", {"elm": (0.9, 0.1, 4), "oak": (0.8, 0.1, 5)})
    report = summarise(load_runs([one, two]))
    assert report["compared"] == [["FedAvg"], ["FedCE"]]
    assert report["sites"]["elm"]["scored"] == 4
