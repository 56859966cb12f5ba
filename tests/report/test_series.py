# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What the report draws over the rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.ledgers import read_lines, replace_closing_scores

from monai_fairfl.report.collect import load_runs
from monai_fairfl.report.summary import summarise

WriteRun = Callable[..., Path]
SITES = ["elm", "oak", "yew"]
DITTO = [
    {"global_score": 0.1, "personal_score": 0.3},
    {"global_score": 0.2, "personal_score": 0.4},
]


def rounds_of_elm(measured: list[dict[str, float]]) -> list[dict[str, Any]]:
    """Records of rounds in which elm measured this."""
    return [{"measurements": {"elm": found}} for found in measured]


def values_of(points: list[Mapping[str, Any]]) -> list[float]:
    return [point["value"] for point in points]


def rounds_of(points: list[Mapping[str, Any]]) -> list[int]:
    return [point["round"] for point in points]


def test_dice_after_r_rounds_is_what_was_measured_when_round_r_began(comparison: Path) -> None:
    series = summarise(load_runs([comparison]))["strategies"]["FedAvg"]["series"]["dice"]
    *rounds, end = read_lines(comparison / "FedAvg")[1:]
    dice = [record["measurements"]["hazel"]["global_score"]["mean"]["value"] for record in rounds]
    dice.append(end["scores"]["hazel"]["own"]["score"]["mean"]["value"])
    assert values_of(series["hazel"]) == dice
    assert rounds_of(series["elm"]) == [0, 2, 3, 4]  # it was absent in round 1


def test_dice_goes_by_the_round_that_the_ledger_names(write_run: WriteRun) -> None:
    # elm scored the result of round 0 when that round ended, not when round 1 began.
    record = {"measurements": {"elm": {"global_score": 0.3}}, "of_round": {"global_score": 0}}
    named = write_run("FedAvg", {"elm": 0}, rounds=[record, {}], finished=False)
    strategy = summarise(load_runs([named]))["strategies"]["FedAvg"]
    assert rounds_of(strategy["series"]["dice"]["elm"]) == [1]
    assert strategy["after_rounds"] == 1


def test_dice_of_a_personal_model_belongs_to_the_end_of_its_round(write_run: WriteRun) -> None:
    run = write_run("Ditto", {"elm": 0}, rounds=rounds_of_elm(DITTO))
    replace_closing_scores(run, {"elm": {"own": {"score": 0.45}, "global": {"score": 0.25}}})
    found = summarise(load_runs([run]))["strategies"]["Ditto"]
    points = found["series"]["dice"]["elm"]
    assert rounds_of(points) == [0, 1, 2]
    # 0.4 is of the model that the end measured again.
    assert values_of(points) == [0.1, 0.3, 0.45]
    assert found["personal"]
    assert found["sites"]["elm"]["global_model"]["value"] == 0.25


def test_a_personal_model_in_training_is_compared_after_as_many_rounds_as_the_others(
    write_run: WriteRun,
) -> None:
    fedavg = [{"global_score": 0.1}, {"global_score": 0.2}]
    runs = [
        write_run("FedAvg", {"elm": 0}, rounds=rounds_of_elm(fedavg), finished=False),
        write_run("Ditto", {"elm": 0}, rounds=rounds_of_elm(DITTO), finished=False),
    ]
    strategies = summarise(load_runs(runs))["strategies"]
    for found in strategies.values():
        assert found["comparable"]
        assert found["after_rounds"] == 1
    assert strategies["Ditto"]["sites"]["elm"]["score"]["value"] == 0.3
    assert values_of(strategies["Ditto"]["series"]["dice"]["elm"]) == [0.1, 0.3, 0.4]


def suspicious(**changes: Any) -> dict[str, Any]:
    """A round in which yew's model fits its own data far better than the one it received."""
    measured = {
        "elm": {"global_score": 0.5, "local_score": 0.51},
        "oak": {"global_score": 0.5, "local_score": 0.51},
        "yew": {"global_score": 0.5, "local_score": 0.9},
    }
    record = {
        "measurements": measured,
        "gram": {"clients": SITES, "whole": np.eye(3).tolist()},
        "aggregation": dict.fromkeys(SITES, 1 / 3),
    }
    return {**record, **changes}


def test_free_rider_scores_are_shown_and_a_flagged_site_is_warned_of(write_run: WriteRun) -> None:
    run = write_run("FedAvg", dict.fromkeys(SITES, 0.8), rounds=[suspicious()] * 3)
    report = summarise(load_runs([run]))
    found = report["strategies"]["FedAvg"]
    scores = values_of(found["series"]["free_rider_scores"]["yew"])
    assert scores == pytest.approx([0.4 / np.sqrt(3)] * 3)
    assert found["flagged"] == {"yew": 2}
    (warning,) = report["warnings"]
    assert warning.startswith("In FedAvg, the free-rider score of yew was above 5 times")
    assert "above 5 times the median of the other sites' in 3 consecutive rounds" in warning


@pytest.mark.parametrize(
    "lacking",
    [{"gram": None}, {"measurements": {"yew": {"global_score": 0.5}}}, {"aggregation": {}}],
)
def test_free_rider_scores_are_of_the_rounds_that_have_all(
    lacking: dict[str, Any], write_run: WriteRun
) -> None:
    rounds = [suspicious(), suspicious(), suspicious(**lacking), suspicious()]
    run = write_run("FedAvg", dict.fromkeys(SITES, 0.8), rounds=rounds)
    found = summarise(load_runs([run]))["strategies"]["FedAvg"]
    assert rounds_of(found["series"]["free_rider_scores"]["yew"]) == [0, 1, 3]
    assert found["flagged"] == {"yew": 3}


def test_an_estimate_that_is_not_finite_is_left_out(write_run: WriteRun) -> None:
    unknown = {"value": None, "stderr": None, "n": 3}
    record = {
        "contributions": {"elm": 0.4, "oak": unknown},
        "details": {"drop": {"oak": unknown, "elm": {"0": unknown}}},
    }
    run = write_run("FedCE", {"elm": 0.8, "oak": 0.7}, rounds=[record])
    found = summarise(load_runs([run]))["strategies"]["FedCE"]
    assert found["series"]["contributions"]["oak"] == []
    assert found["sites"]["elm"]["contribution"]["value"] == 0.4
    assert found["details"]["by_round"] == {}
    assert found["details"]["last_round"]["drop"]["sites"] == {"elm": {"0": None}}


def test_weights_per_layer_are_averaged_plainly(write_run: WriteRun) -> None:
    layered = {"aggregation": {"conv": {"elm": 0.1, "oak": 0.9}, "head": {"elm": 0.3, "oak": 0.7}}}
    run = write_run("FedLWR", {"elm": 0.7, "oak": 0.8}, rounds=[layered])
    found = summarise(load_runs([run]))["strategies"]["FedLWR"]
    assert found["layers_averaged"] == 2
    assert values_of(found["series"]["weights"]["elm"]) == pytest.approx([0.2])
