# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Which scores the tables show, and which of them are compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from helpers.ledgers import replace_closing_scores

from monai_fairfl.report.collect import load_runs
from monai_fairfl.report.summary import summarise
from monai_fairfl.run_folder.ledger import Ledger

WriteRun = Callable[..., Path]


def scores_in(strategy: dict[str, Any]) -> dict[str, float]:
    """site -> Dice shown of it."""
    return {site: found["score"]["value"] for site, found in strategy["sites"].items()}


def rounds_with_dice(*dice: float) -> list[dict[str, Any]]:
    """Records of rounds in which elm and oak received a model of this Dice."""
    records = []
    for value in dice:
        measured = {"elm": {"global_score": value}, "oak": {"global_score": value}}
        records.append({"measurements": measured})
    return records


def test_the_shown_measurement_is_one_that_every_scored_site_has(write_run: WriteRun) -> None:
    run = write_run("FedAvg", {"elm": 0.8, "oak": 0.7}, finished=False)
    closing = {"elm": {"own": {"score": 0.6, "test_score": 0.9}}, "oak": {"own": {"score": 0.5}}}
    Ledger(run / "ledger.jsonl").append({"kind": "end", "scores": closing})
    report = summarise(load_runs([run]))
    assert report["measurement"] == "score"
    assert scores_in(report["strategies"]["FedAvg"]) == {"elm": 0.6, "oak": 0.5}


def test_test_scores_are_shown_only_where_every_finished_run_has_them(write_run: WriteRun) -> None:
    runs = [write_run("FedAvg", {"elm": 0.6}), write_run("FedCE", {"elm": 0.6})]
    assert summarise(load_runs(runs))["measurement"] == "test_score"

    both = write_run("Ditto", {"elm": 0})
    replace_closing_scores(both, {"elm": {"own": {"score": 0.7, "test_score": 0.6}}})
    only_validation = write_run("CGSV", {"elm": 0})
    replace_closing_scores(only_validation, {"elm": {"own": {"score": 0.5}}})
    report = summarise(load_runs([both, only_validation]))
    assert report["measurement"] == "score"
    assert scores_in(report["strategies"]["Ditto"]) == {"elm": 0.7}
    assert scores_in(report["strategies"]["CGSV"]) == {"elm": 0.5}


def test_a_score_may_be_above_one_by_rounding(write_run: WriteRun) -> None:
    report = summarise(load_runs([write_run("FedAvg", {"elm": (1.0000001, 0.0, 5), "oak": 1.1})]))
    found = report["strategies"]["FedAvg"]["sites"]
    assert found["elm"]["score"]["value"] == 1
    assert found["oak"]["score"] is None


def test_a_score_that_is_no_fraction_is_left_out_with_a_warning(write_run: WriteRun) -> None:
    report = summarise(load_runs([write_run("FedAvg", {"elm": 81.0, "oak": 0.8})]))
    assert report["strategies"]["FedAvg"]["sites"]["elm"]["score"] is None
    assert "elm" in report["warnings"][0]


def test_means_over_some_of_the_sites_are_marked_and_not_compared(write_run: WriteRun) -> None:
    scores = {"elm": 0.8, "oak": 0.7, "yew": 0.4}
    alone = write_run("Standalone", scores)
    run = write_run("FedAvg", scores, finished=False)
    closing: dict[str, Any] = {"elm": {"own": {"test_score": 0.8}}}
    closing["oak"] = {"own": {"test_score": 0.7}}
    closing["yew"] = {"own": {}}
    end = {"kind": "end", "scores": closing, "not_finite": {"yew": ["test_score"]}}
    Ledger(run / "ledger.jsonl").append(end)

    report = summarise(load_runs([alone, run]))
    found = report["strategies"]["FedAvg"]
    assert found["collaboration"] is None
    assert not found["comparable"]
    assert found["sites"]["elm"]["gain"]["value"] == 0
    (warning,) = [text for text in report["warnings"] if "FedAvg: no Dice of yew" in text]
    assert "2 of 3 sites" in warning
    assert [event["text"] for event in report["events"]] == ["dropped measurements: test_score"]


def test_an_unfinished_run_shows_its_last_validation_dice_and_is_not_compared(
    write_run: WriteRun,
) -> None:
    alone = write_run("Standalone", {"elm": 0.7, "oak": 0.8})
    rounds = rounds_with_dice(0.1, 0.2)
    partly = write_run("FedAvg", {"elm": 0.0, "oak": 0.0}, rounds=rounds, finished=False)
    (partly / "config.json").write_text('{"rounds": 9, "strategies": ["FedAvg"]}')
    report = summarise(load_runs([alone, partly]))
    found = report["strategies"]["FedAvg"]
    assert not found["finished"]
    assert found["rounds"] == 2
    assert found["planned_rounds"] == 9
    assert not found["comparable"]
    assert found["measurement"] == "global_score"
    assert found["after_rounds"] == 1
    assert found["sites"]["elm"]["score"]["value"] == 0.2
    assert found["sites"]["elm"]["gain"] is None
    assert found["collaboration"] is None
    assert "differ in their numbers of rounds" in report["warnings"][0]


def test_runs_still_in_training_are_compared_only_after_equally_many_rounds(
    write_run: WriteRun,
) -> None:
    measured = rounds_with_dice(0.1, 0.2, 0.3)
    runs = []
    for name, rounds in (("Standalone", 3), ("FedAvg", 3), ("FedCE", 2)):
        run = write_run(name, {"elm": 0, "oak": 0}, rounds=measured[:rounds], finished=False)
        runs.append(run)
    strategies = summarise(load_runs(runs))["strategies"]
    assert [found["comparable"] for found in strategies.values()] == [True, True, False]
    assert strategies["FedAvg"]["sites"]["elm"]["gain"]["value"] == 0
    assert strategies["FedCE"]["sites"]["elm"]["gain"] is None


def test_a_run_that_stopped_before_its_first_round_is_reported_empty(write_run: WriteRun) -> None:
    run = write_run("FedAvg", {"elm": 0}, rounds=(), finished=False)
    found = summarise(load_runs([run]))["strategies"]["FedAvg"]
    assert found["rounds"] == 0
    assert found["performance"] is None
    assert found["sites"]["elm"]["score"] is None


def test_a_strategy_that_lacks_a_site_is_not_compared(write_run: WriteRun) -> None:
    runs = [write_run("FedAvg", {"elm": 0.7, "oak": 0.8}), write_run("FedCE", {"elm": 0.9})]
    report = summarise(load_runs(runs))
    assert [found["comparable"] for found in report["strategies"].values()] == [True, False]
    assert any("differ in their sites" in warning for warning in report["warnings"])
