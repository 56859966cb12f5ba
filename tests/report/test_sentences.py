# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The sentences say what the numbers say, and no more."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from monai_fairfl.errors import ConfigError
from monai_fairfl.report.collect import load_runs
from monai_fairfl.report.sentences import sentences
from monai_fairfl.report.summary import summarise
from monai_fairfl.report.verdicts import overview

WriteRun = Callable[..., Path]
SHARES = {"contributions": {"elm": {"value": 0.6, "stderr": 0.05, "n": 4}, "oak": 0.3, "yew": 0.1}}


def sentences_of(*runs: Path) -> dict[str, str]:
    return sentences(summarise(load_runs(runs)))


def test_each_hospital_gets_one_sentence_with_gain_contribution_and_verdict(
    write_run: WriteRun,
) -> None:
    alone = {"elm": (0.7, 0.03, 8), "oak": (0.8, 0.03, 5), "yew": (0.72, 0.03, 1)}
    scores = {"elm": (0.85, 0.04, 8), "oak": (0.81, 0.04, 5), "yew": (0.6, 0.04, 1)}
    runs = write_run("Standalone", alone), write_run("FedCE", scores, rounds=[SHARES])
    assert sentences_of(*runs) == {
        "elm": "elm reaches a test Dice of 0.850 with FedCE, 0.150 more than alone (0.700; "
        "standard error of the difference 0.050, 8 test cases); its contribution is 0.60 (share of "
        "the average, standard error 0.05, an even share is 0.33); it is not left behind.",
        "oak": "oak reaches a test Dice of 0.810 with FedCE, 0.010 more than alone (0.800), which "
        "is within the noise of 5 test cases; its contribution is 0.30 (share of the average, an "
        "even share is 0.33); it is not left behind.",
        "yew": "yew reaches a test Dice of 0.600 with FedCE, 0.120 less than alone (0.720; "
        "standard error of the difference 0.050, 1 test case); its contribution is 0.10 (share of "
        "the average, an even share is 0.33); it may be left behind: its Dice is 0.153 (1.1 "
        "standard deviations) below the sites' mean and more than 0.02 below what it reaches "
        "alone, which 1 test case cannot distinguish from chance.",
    }


def test_the_overview_counts_what_the_sentences_say(write_run: WriteRun, comparison: Path) -> None:
    alone = {
        "elm": (0.8, 0.1, 2),
        "oak": (0.8, 0.01, 20),
        "yew": (0.8, 0.03, 1),
        "ash": (0.8, 0.01, 20),
        "box": (0.8, 0.01, 9),
    }
    joined = {
        "elm": (0.77, 0.1, 2),
        "oak": (0.7, 0.01, 20),
        "yew": (0.9, 0.03, 1),
        "ash": (0.9, 0.01, 20),
    }
    runs = write_run("Standalone", alone), write_run("FedCE", joined)
    assert overview(summarise(load_runs(runs))) == (
        "FedCE, 5 hospitals: 1 better off than alone, 1 left behind, 1 perhaps left behind, "
        "1 with too few cases to tell, 1 that did not take part."
    )
    assert overview(summarise(load_runs(runs[:1]))) == ""

    report = summarise(load_runs([comparison]))
    behind = [text for text in sentences(report).values() if "it is left behind" in text]
    assert (f"{len(behind)} left behind" in overview(report)) == bool(behind)


def test_a_loss_is_left_behind_only_where_its_cases_show_it(write_run: WriteRun) -> None:
    alone = write_run("Standalone", {"elm": (0.8, 0.1, 2), "oak": (0.8, 0.01, 20)})
    run = write_run("FedCE", {"elm": (0.77, 0.1, 2), "oak": (0.7, 0.01, 20)})
    found = sentences_of(alone, run)
    assert found["elm"].endswith(
        "0.030 less than alone (0.800), which is within the noise of 2 test cases; it has no "
        "recorded contribution; it may be left behind: its Dice is more than 0.02 below what it "
        "reaches alone, which 2 test cases cannot distinguish from chance."
    )
    assert found["oak"].endswith(
        "; it is left behind: its Dice is more than 0.02 below what it reaches alone."
    )


def test_equal_scores_are_neither_more_nor_less(write_run: WriteRun) -> None:
    runs = [write_run("Standalone", {"elm": 0.8}), write_run("FedAvg", {"elm": 0.8})]
    equal = "with FedAvg, the same as alone (0.800; from its cases, standard error unknown)"
    assert equal in sentences_of(*runs)["elm"]


def test_without_standalone_the_gain_is_unknown_and_says_why(write_run: WriteRun) -> None:
    run = write_run("FedCE", {"elm": (0.7, None, 1), "oak": 0.8})
    assert sentences_of(run)["elm"] == (
        "elm reaches a test Dice of 0.700 (1 test case) with FedCE; what it gained over training "
        "alone is not known, because Standalone was not run; it has no recorded contribution; it "
        "is not known whether it is left behind."
    )


def test_standalone_by_itself_is_not_compared(write_run: WriteRun) -> None:
    assert sentences_of(write_run("Standalone", {"elm": (0.7, 0.02, 4)}))["elm"] == (
        "elm reaches a test Dice of 0.700 (standard error 0.020, 4 test cases) alone; no "
        "federation is in this report, so there is nothing to compare it with."
    )


def test_missing_scores_and_missing_sites_are_named(write_run: WriteRun) -> None:
    runs = [write_run("Standalone", {"elm": 0.7, "oak": 0.8}), write_run("FedCE", {"elm": 7.0})]
    found = sentences_of(*runs)
    assert found["elm"] == "elm has no Dice with FedCE; it has no recorded contribution."
    assert found["oak"] == "oak did not take part in FedCE."

    empty = write_run("Standalone", {"elm": 0}, rounds=(), finished=False, folder="empty")
    assert sentences_of(empty)["elm"] == "elm has no score yet."


def test_a_weight_of_fedavg_is_not_called_a_contribution(comparison: Path) -> None:
    report = summarise(load_runs([comparison]))
    # elm has 4 of 35 cases.
    weight = "its weight in the average is 0.11 (FedAvg does not estimate contributions)"
    assert weight in sentences(report, "FedAvg")["elm"]
    # FedCE's contributions are its weights, and are called so.
    found = sentences(report, "FedCE")["elm"]
    assert re.search(r"FedCE gives it a weight of 0\.\d\d \(an even share is 0\.25\)", found)
    assert "contribution" not in found


@pytest.mark.parametrize("name", ["FedAvg", "Ditto"])
def test_no_weight_is_claimed_where_none_is_recorded(name: str, write_run: WriteRun) -> None:
    shares = {"contributions": {"elm": 1.0}}
    run = write_run(name, {"elm": 0.8}, rounds=[shares])
    without = sentences_of(run)["elm"]
    assert f"; {name} does not estimate contributions; " in without
    assert "weight" not in without

    weighed = {**shares, "aggregation": {"elm": 1.0}}
    run = write_run(name, {"elm": 0.8}, rounds=[weighed], folder="weighed")
    weight = f"its weight in the average is 1.00 ({name} does not estimate contributions)"
    assert weight in sentences_of(run)["elm"]


def test_sentences_about_standalone_are_about_training_alone(comparison: Path) -> None:
    report = summarise(load_runs([comparison]))
    found = sentences(report, "Standalone")["elm"]
    assert " alone." in found
    assert "weight" not in found
    assert "no federation" not in found


def test_an_unfinished_run_begins_with_how_far_it_went(write_run: WriteRun) -> None:
    measured = {"measurements": {"elm": {"global_score": 0.4}}}
    run = write_run("FedAvg", {"elm": 0}, rounds=[measured], finished=False)
    assert sentences_of(run)["elm"].startswith(
        "So far (unfinished, 1 of 1 rounds), elm reaches a validation Dice of 0.400 with FedAvg"
    )


def test_a_contribution_that_is_not_of_the_last_round_says_so(write_run: WriteRun) -> None:
    scores = {"elm": 0.8, "oak": 0.9, "yew": 0.9}
    run = write_run("FedCE", scores, rounds=[SHARES, {"contributions": {"oak": 1.0}}])
    found = sentences_of(run)
    assert "its contribution in round 0, its last, is 0.60" in found["elm"]
    # A sum over several rounds is no share of a whole.
    assert "its contribution is 1.00 (share of the average);" in found["oak"]


def test_an_even_share_is_that_of_the_round_of_the_contribution(write_run: WriteRun) -> None:
    """Yew is not in round 1, in which the others divide the whole."""
    scores = {"elm": 0.8, "oak": 0.9, "yew": 0.9}
    run = write_run("CGSV", scores, rounds=[SHARES, {"contributions": {"elm": 0.4, "oak": 0.6}}])
    found = sentences_of(run)
    assert re.search(r"its contribution is 0\.60 \(.*, an even share is 0\.50\)", found["oak"])
    of_yew = r"in round 0, its last, is 0\.10 \(.*, an even share is 0\.33\)"
    assert re.search(of_yew, found["yew"])


@pytest.mark.parametrize(
    ("strategy", "unit"),
    [("LeaveOneOut", " (Dice lost without the client, mean over rounds)"), ("Mine", "")],
)
def test_a_contribution_comes_with_its_unit_where_the_strategy_is_known(
    strategy: str, unit: str, write_run: WriteRun
) -> None:
    contributions = {"contributions": {"elm": 0.02, "oak": 0.01}}
    run = write_run(strategy, {"elm": 0.8, "oak": 0.9}, rounds=[contributions])
    assert f"its contribution is 0.020{unit};" in sentences_of(run)["elm"]


def test_small_contributions_that_are_no_shares_keep_a_digit_and_zero_has_no_sign(
    write_run: WriteRun,
) -> None:
    scores = {"elm": 0.8, "oak": 0.8, "yew": 0.8}
    oak = {"value": 0.004, "stderr": 0.001, "n": 4}
    values = {"contributions": {"elm": -0.004, "oak": oak, "yew": -0.0004}}
    found = sentences_of(write_run("LeaveOneOut", scores, rounds=[values]))
    assert "its contribution is -0.004 (" in found["elm"]
    assert "its contribution is 0.004 (" in found["oak"]
    assert "standard error 0.001)" in found["oak"]
    assert "its contribution is 0.000 (" in found["yew"]

    shares = {"contributions": {"elm": -0.004, "oak": 1.004}}
    found = sentences_of(write_run("CGSV", scores, rounds=[shares]))
    assert "its contribution is 0.00 (" in found["elm"]


def test_a_weight_that_is_not_of_the_last_round_says_so(write_run: WriteRun) -> None:
    rounds = [{"aggregation": {"elm": 0.33, "oak": 0.67}}, {"aggregation": {"oak": 1.0}}]
    found = sentences_of(write_run("FedAvg", {"elm": 0.8, "oak": 0.9}, rounds=rounds))
    last = "its weight in the average in round 0, its last, is 0.33 (FedAvg does not"
    assert last in found["elm"]
    assert "its weight in the average is 1.00 (FedAvg does not" in found["oak"]


def test_every_sentence_is_one_sentence_and_none_speaks_of_significance(comparison: Path) -> None:
    report = summarise(load_runs([comparison]))
    found = sentences(report)
    assert found and found.keys() == report["sites"].keys()
    for sentence in found.values():
        assert re.fullmatch(r"(?:[^.]|\.\d)+\.", sentence), sentence
        assert "significan" not in sentence


def test_an_unknown_strategy_is_an_error(comparison: Path) -> None:
    with pytest.raises(ConfigError, match="no strategy 'FedX'"):
        sentences(summarise(load_runs([comparison])), "FedX")
