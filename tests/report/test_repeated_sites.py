# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Hospitals that lack scores in a comparison over seeds and folds: no row and no reason is lost."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monai_fairfl.client.state import ClientState
from monai_fairfl.report.repeated import write_comparison
from monai_fairfl.report.repeated_tables import remarks_of
from monai_fairfl.run_folder.ledger import Ledger

pytest.importorskip("jinja2")
pytestmark = pytest.mark.slow

WriteRun = Callable[..., Path]
Scores = dict[str, dict[str, float]]
Change = Callable[[Scores, dict[str, Any]], None]
"""Changes what the hospitals close with, and the record of a training's end."""

DICE = {"Standalone": 0.7, "FedAvg": 0.8, "FedCE": 0.79}
HARDER = {"elm": 0.0, "oak": 0.0, "yew": 0.3}
"""Hospital -> by how much its Dice is lower with every strategy."""

CLOSING = ("score", "test_score")
CASES = 3
NOTHING: Mapping[tuple[str, int], Change] = {}


def no_change(scores: Scores, end: dict[str, Any]) -> None:
    """Leave everything."""


def train(
    write_run: WriteRun, strategy: str, seed: int, fold: int | None, change: Change = no_change
) -> Path:
    """A finished run with the tables of its cases; with fold 1 all cases are harder.

    A change takes scores away before the end is written, and adds to its record.
    """
    dice = DICE[strategy]
    config: dict[str, Any] = {"share_cases": True}
    if fold is not None:
        config["overrides"] = {"split_fold": fold}
        dice -= 0.2 * fold
    scores: Scores = {}
    for site, harder in HARDER.items():
        scores[site] = dict.fromkeys(CLOSING, dice - harder)
    end: dict[str, Any] = {"kind": "end"}
    change(scores, end)

    folder = f"{strategy}-{seed}-{fold}"
    sites = dict.fromkeys(HARDER, 0.0)
    run = write_run(
        strategy, sites, seed=seed, folder=folder, config=config, finished=False, rounds=[{}]
    )
    closing: dict[str, Any] = {}
    for site, of_site in scores.items():
        closing[site] = {"own": {}}
        for measurement, value in of_site.items():
            number = {"value": value, "stderr": 0.01, "n": CASES}
            if measurement not in CLOSING:
                closing[site]["own"][measurement] = number
                continue
            closing[site]["own"][measurement] = {"mean": number}
            save_cases(run, site, measurement, value, fold)
    Ledger(run / "ledger.jsonl").append({**end, "scores": closing})
    return run


def save_cases(run: Path, site: str, measurement: str, mean: float, fold: int | None) -> None:
    """The table of a site, whose mean is the score in the ledger."""
    cases = {}
    for number, more in enumerate(np.linspace(-0.02, 0.02, CASES)):
        cases[f"fold{fold}-case{number}.nii"] = {"dice": round(mean + float(more), 6)}
    ClientState(run / "sites" / site / "state").save_cases(run.name, f"{measurement}-1-0", cases)


def compare(
    write_run: WriteRun,
    folder: Path,
    changes: Mapping[tuple[str, int], Change] = NOTHING,
    *,
    folds: Sequence[int | None] = (None,),
    failed: Sequence[tuple[str, int, int | None]] = (),
    everywhere: Change = no_change,
) -> dict[str, Any]:
    """A comparison with two seeds.

    Args:
        write_run: the fixture.
        folder: of the comparison.
        changes: strategy and seed -> what this training lacks.
        folds: of each seed.
        failed: trainings that did not finish.
        everywhere: what every training lacks.
    """
    runs = []
    for strategy, seed, fold in itertools.product(DICE, (0, 1), folds):
        if (strategy, seed, fold) not in failed:
            change = changes.get((strategy, seed), everywhere)
            runs.append(train(write_run, strategy, seed, fold, change))
    plan: dict[str, Any] = {
        "strategies": {name: name for name in DICE},
        "seeds": [0, 1],
        "folds": None,
    }
    plan |= {"rounds": 1, "local_epochs": 1, "bundle": "b"}
    return write_comparison(folder, plan, runs)


def scores_validation_cases(scores: Scores, end: dict[str, Any]) -> None:
    """The evaluator of yew reads its validation cases."""
    del scores["yew"]["test_score"]
    scores["yew"]["test_cases_in_validation"] = float(CASES)
    scores["yew"]["test_cases_in_training"] = 0.0


def trains_on_test_cases(scores: Scores, end: dict[str, Any]) -> None:
    """Yew trains on two of its test cases."""
    del scores["yew"]["test_score"]
    scores["yew"]["test_cases_in_validation"] = 0.0
    scores["yew"]["test_cases_in_training"] = 2.0


def has_empty_test_labels(scores: Scores, end: dict[str, Any]) -> None:
    """All test labels of yew are empty."""
    del scores["yew"]["test_score"]
    scores["yew"]["test_hd95"] = 4.0


def sends_nothing(scores: Scores, end: dict[str, Any]) -> None:
    """The closing request to yew fails."""
    del scores["yew"]
    end["missing"] = {"yew": "RuntimeError: no line"}


def has_test_cases_alone(scores: Scores, end: dict[str, Any]) -> None:
    """Elm has no validation case, and yew no test case."""
    del scores["elm"]["score"]
    del scores["yew"]["test_score"]


def lacks_validation(scores: Scores, end: dict[str, Any]) -> None:
    """Yew has a score of test cases only."""
    del scores["yew"]["score"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (scores_validation_cases, "evaluator"),
        (trains_on_test_cases, "2 in training"),
        (has_empty_test_labels, "3 of 3 test labels are empty"),
    ],
)
def test_a_hospital_without_test_dice_makes_all_compare_validation_cases(
    write_run: WriteRun, tmp_path: Path, change: Change, why: str
) -> None:
    found = compare(write_run, tmp_path, everywhere=change)
    assert found["main"] == "score:dice"
    hospitals = found["decision"]["hospitals"]
    assert list(hospitals) == list(found["metrics"]["score:dice"]["cases"]) == list(HARDER)
    assert hospitals["yew"]["federation"] == pytest.approx(0.5)
    assert hospitals["yew"]["difference"]["value"] == pytest.approx(0.1)
    [warning] = found["warnings"]
    assert warning.startswith("yew") and why in warning


def test_folds_in_which_a_hospital_lacks_test_labels_do_not_change_the_measurement(
    write_run: WriteRun, tmp_path: Path
) -> None:
    """Yew has test labels in fold 1."""
    runs = []
    for strategy, seed, fold in itertools.product(DICE, (0, 1), (0, 1)):
        change = has_empty_test_labels if fold == 0 else no_change
        runs.append(train(write_run, strategy, seed, fold, change))
    plan: dict[str, Any] = {
        "strategies": {name: name for name in DICE},
        "seeds": [0, 1],
        "folds": 2,
    }
    plan |= {"rounds": 1, "local_epochs": 1, "bundle": "b"}
    found = write_comparison(tmp_path, plan, runs)
    assert found["main"] == "test_score:dice"
    assert found["metrics"]["test_score:dice"]["cases"] == {"elm": 6, "oak": 6, "yew": 3}


def test_a_hospital_that_sent_no_score_at_all_keeps_its_row_and_is_named(
    write_run: WriteRun, tmp_path: Path
) -> None:
    found = compare(write_run, tmp_path, everywhere=sends_nothing)
    assert found["main"] == "test_score:dice"
    assert list(found["metrics"]["test_score:dice"]["cases"]) == ["elm", "oak"]
    yew = found["decision"]["hospitals"]["yew"]
    assert (yew["verdict"], yew["federation"]) == ("no_score", None)
    [line] = [text for text in remarks_of(found) if "site yew is left out" in text]
    assert "Standalone with seed 0 (RuntimeError: no line)" in line
    assert "yew" in (tmp_path / "comparison.html").read_text()


def test_where_no_measurement_is_of_all_hospitals_test_cases_are_compared(
    write_run: WriteRun, tmp_path: Path
) -> None:
    found = compare(write_run, tmp_path, everywhere=has_test_cases_alone)
    assert found["main"] == "test_score:dice"
    assert found["decision"]["hospitals"]["yew"]["verdict"] == "no_score"
    [line] = found["metrics"]["test_score:dice"]["left_out"]
    assert "yew" in line and "no score of a test case" in line


def test_a_comparison_that_has_everything_leaves_nothing_out(
    write_run: WriteRun, tmp_path: Path
) -> None:
    found = compare(write_run, tmp_path)
    assert found["metrics"]["test_score:dice"]["left_out"] == []
    why = found["decision"]["why"]
    assert why.endswith("FedAvg 0.700, FedCE 0.690.")


def test_the_strategy_of_the_rows_is_chosen_on_seeds_and_folds_that_all_strategies_have(
    write_run: WriteRun, tmp_path: Path
) -> None:
    """FedCE lacks one training with the harder fold 1, and is worse in all that it has."""
    found = compare(write_run, tmp_path, folds=(0, 1), failed=[("FedCE", 1, 1)])
    decision = found["decision"]
    assert decision["strategy"] == "FedAvg"
    # Seed 0 with both folds, and seed 1 with fold 0.
    mean = np.mean([0.8, 0.6, 0.8]) - 0.1
    assert f"FedAvg {mean:.3f}, FedCE {mean - 0.01:.3f}." in decision["why"]
    assert "leave out seed 1, fold 1:" in decision["why"]
    assert "leave out seed 1, fold 1:" in (tmp_path / "comparison.html").read_text()


def test_a_training_of_standalone_that_failed_counts_for_no_strategy(
    write_run: WriteRun, tmp_path: Path
) -> None:
    found = compare(write_run, tmp_path, folds=(0, 1), failed=[("Standalone", 0, 0)])
    why = found["decision"]["why"]
    assert "leave out seed 0, fold 0:" in why
    assert f"FedAvg {np.mean([0.6, 0.8, 0.6]) - 0.1:.3f}" in why


def test_the_strategy_of_the_rows_is_chosen_on_hospitals_that_all_trainings_scored(
    write_run: WriteRun, tmp_path: Path
) -> None:
    """FedCE with seed 1 lacks yew, the hardest, and is worse at all hospitals that it has."""
    found = compare(write_run, tmp_path, {("FedCE", 1): sends_nothing})
    decision = found["decision"]
    assert decision["strategy"] == "FedAvg"
    assert "FedAvg 0.800, FedCE 0.790." in decision["why"]
    assert "leave out yew:" in decision["why"]


def test_a_hospital_that_never_validates_is_named_beside_the_means(
    write_run: WriteRun, tmp_path: Path
) -> None:
    found = compare(write_run, tmp_path, everywhere=lacks_validation)
    assert found["main"] == "test_score:dice"
    assert "leave out yew:" in found["decision"]["why"]


def test_why_a_training_failed_is_in_every_file_whatever_its_characters(
    write_run: WriteRun, tmp_path: Path
) -> None:
    plan = compare(write_run, tmp_path)["plan"]
    file = os.fsdecode(b"Pr\xfcfung.nii")  # as a system with another encoding wrote it
    runs = sorted((tmp_path / "runs").iterdir())
    write_comparison(tmp_path, plan, runs, {"FedCE, seed 2": f"{file} is damaged"})
    for ending in ("json", "html"):
        assert "fung.nii is damaged" in (tmp_path / f"comparison.{ending}").read_text()
