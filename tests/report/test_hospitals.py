# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""One row for each hospital: verdicts that exclude each other, contributions, and advice."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.ledgers import replace_closing_scores
from helpers.tiny_networks import SITES, federation
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from monai_fairfl.client.state import ClientState
from monai_fairfl.games import Game, gtg_shapley
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.report.advice import cases_to_tell
from monai_fairfl.report.collect import load_runs
from monai_fairfl.report.comparison import MARGIN, ROUNDING
from monai_fairfl.report.contribution import Contribution, range_words
from monai_fairfl.report.hospitals import Decision, decision_of
from monai_fairfl.report.plots import series_of
from monai_fairfl.report.summary import summarise
from monai_fairfl.report.terminal import as_text
from monai_fairfl.report.valuations import trust_of
from monai_fairfl.report.verdicts import VERDICTS, counted, overview, verdict_of
from monai_fairfl.report.write import write_report
from monai_fairfl.run_folder.ledger import Ledger
from monai_fairfl.strategies import FedCE

WriteRun = Callable[..., Path]
SHARES = {"contributions": {"elm": 0.2, "oak": 0.8}, "samples": {"elm": 60, "oak": 40}}


def report_of(*runs: Path) -> dict[str, Any]:
    return summarise(load_runs(runs))


def decision(*runs: Path) -> Decision:
    report = report_of(*runs)
    return decision_of(report, report["focus"])


def with_cases(run: Path, site: str, scores: Sequence[float], name: str = "FedCE") -> Path:
    """The run, with the table of cases behind the closing test score of a site."""
    state = ClientState(run / "sites" / site / "state")
    cases = {f"case{number}.nii": {"dice": score} for number, score in enumerate(scores)}
    state.save_cases(name, "test_score-1-0", cases)
    return run


# ---- the difference


def test_the_interval_is_that_of_a_paired_t_test_where_the_cases_are_there(
    write_run: WriteRun,
) -> None:
    alone = np.array([0.70, 0.80, 0.55, 0.90])
    joined = alone + np.array([0.03, 0.02, 0.05, 0.02])
    runs = []
    for name, scores in (("Standalone", alone), ("FedCE", joined)):
        score = (scores.mean(), stats.sem(scores), len(scores))
        run = write_run(name, {"elm": score, "oak": (0.8, 0.01, 4)})
        runs.append(with_cases(run, "elm", scores.tolist(), name))
    found = decision(*runs).hospitals

    test = stats.ttest_rel(joined, alone)
    interval = test.confidence_interval(0.95)
    gain = found["elm"].difference
    assert gain is not None and gain["paired"] is True
    assert (gain["low"], gain["high"]) == pytest.approx((interval.low, interval.high), abs=1e-5)
    # As independent scores these four cases would tell nothing.
    assert stats.ttest_ind(joined, alone).pvalue > 0.5
    assert found["elm"].verdict == "better"
    assert found["oak"].difference is not None and found["oak"].difference["paired"] is False


def paired_runs(write_run: WriteRun) -> list[Path]:
    """Standalone and FedCE of one site, each with its table of cases."""
    scores = [0.7, 0.8, 0.6]
    runs = []
    for name in ("Standalone", "FedCE"):
        run = write_run(name, {"elm": (0.7, float(stats.sem(scores)), 3)}, run=name)
        runs.append(with_cases(run, "elm", scores, name))
    return runs


def test_a_renamed_run_has_the_report_that_it_had(write_run: WriteRun) -> None:
    alone, joined = paired_runs(write_run)
    before = report_of(alone, joined)
    assert before["strategies"]["FedCE"]["sites"]["elm"]["gain"]["paired"] is True
    assert before["warnings"] == []

    renamed = report_of(alone, joined.rename(joined.with_name("final")))
    assert renamed["strategies"]["FedCE"]["run"] == "final"
    assert renamed["strategies"]["FedCE"]["sites"] == before["strategies"]["FedCE"]["sites"]
    assert renamed["warnings"] == []


@pytest.mark.parametrize("damage", ["deleted", "damaged"])
def test_without_a_table_of_cases_a_difference_is_not_paired(
    damage: str, write_run: WriteRun
) -> None:
    alone, joined = paired_runs(write_run)
    [table] = (joined / "sites" / "elm" / "state").glob("*.csv")
    if damage == "deleted":
        table.unlink()
    else:
        table.write_text("case,dice\ncase0.nii\n")
    report = report_of(alone, joined)
    assert report["strategies"]["FedCE"]["sites"]["elm"]["gain"]["paired"] is False


@pytest.mark.parametrize(
    "damage", ["other cases", "numbers for names", "damaged", "of another score"]
)
def test_what_cannot_be_paired_is_taken_as_independent(damage: str, write_run: WriteRun) -> None:
    scores = [0.7, 0.8, 0.6]
    number = (0.7, float(stats.sem(scores)), 3)
    runs = []
    for name in ("Standalone", "FedCE"):
        run = write_run(name, {"elm": number})
        with_cases(run, "elm", scores, name)
        runs.append(run)
    [table] = (runs[1] / "sites" / "elm" / "state").glob("*.csv")
    changed = {
        "other cases": table.read_text().replace("case2", "case9"),
        "numbers for names": "case,dice\n0,0.7\n1,0.8\n2,0.6\n",
        "damaged": "case,dice\ncase0.nii\n",
        "of another score": table.read_text().replace("0.6", "0.9"),
    }
    if damage == "numbers for names":
        [first] = (runs[0] / "sites" / "elm" / "state").glob("*.csv")
        first.write_text(changed[damage])
    gain = decision(*runs).hospitals["elm"].difference
    assert gain is not None and gain["paired"] is True or damage == "numbers for names"
    table.write_text(changed[damage])
    gain = decision(*runs).hospitals["elm"].difference
    assert gain is not None and gain["paired"] is False
    assert gain["stderr"] == pytest.approx(np.hypot(number[1], number[1]))


# ---- the verdict


def site_result(
    gain: Mapping[str, Any] | None, left_behind: Mapping[str, Any] | None, has_score: bool
) -> dict[str, Any]:
    score = {"value": 0.8, "stderr": 0.01, "n": 5} if has_score else None
    return {"score": score, "gain": gain, "left_behind": left_behind, "last_mile": None}


gains = st.none() | st.builds(
    lambda value, width: {
        "value": value,
        "low": None if width is None else value - width,
        "high": None if width is None else value + width,
        "within_noise": None if width is None else abs(value) <= width,
    },
    st.floats(-0.5, 0.5),
    st.none() | st.floats(0, 0.3),
)
lefts = st.none() | st.sampled_from(
    [
        {"verdict": True, "doubtful": False},
        {"verdict": False, "doubtful": True},
        {"verdict": False, "doubtful": False},
    ]
)


@given(
    sites=st.lists(st.builds(site_result, gains, lefts, st.booleans()), max_size=6),
    other=st.floats(0.7, 0.9),
    absent=st.integers(0, 2),
    judged=st.booleans(),
)
@settings(deadline=None)
def test_whatever_the_numbers_each_hospital_has_one_verdict_and_they_add_up(
    sites: list[dict[str, Any]], other: float, absent: int, judged: bool
) -> None:
    names = [f"site{number}" for number in range(len(sites) + absent)]
    of_other = {name: {"score": {"value": other}, "last_mile": None} for name in names}
    strategies = {
        "FedCE": {"judged": judged, "sites": dict(zip(names, sites))},
        "FedAvg": {"judged": judged, "sites": of_other},
    }
    for strategy in strategies.values():
        strategy.update(comparable=True, standalone=None)
    report = {"sites": names, "strategies": strategies, "focus": "FedCE", "compared": [strategies]}
    for name, result in zip(names, sites):
        verdict = verdict_of(report, "FedCE", name)
        gain = result["gain"]
        if verdict in ("better", "worse"):
            assert gain["within_noise"] is False
            assert (gain["value"] > 0) == (verdict == "better")
        if verdict in ("left_behind", "perhaps_left_behind"):
            assert other > result["score"]["value"] + MARGIN
        if verdict == "hard":
            assert gain is not None and other <= result["score"]["value"] + MARGIN + ROUNDING
        if verdict == "as_good":
            assert max(abs(gain["low"]), abs(gain["high"])) < MARGIN
        if judged is False:
            assert verdict in ("not_judged", "no_score")
    assert sum(counted(report, "FedCE").values()) == len(names)
    numbers = [int(word) for word in overview(report).replace(",", " ").split() if word.isdigit()]
    if judged:
        assert numbers[0] == sum(numbers[1:]) == len(names)


@pytest.mark.parametrize(
    ("alone", "joined", "verdict"),
    [
        ((0.7, 0.01, 9), (0.8, 0.01, 9), "better"),
        ((0.8, 0.001, 9), (0.79, 0.001, 9), "worse"),
        ((0.8, 0.001, 9), (0.7, 0.001, 9), "left_behind"),
        ((0.8, 0.001, 9), (0.801, 0.001, 9), "as_good"),
        ((0.8, 0.05, 9), (0.82, 0.05, 9), "unclear"),
        ((0.8, 0.05, 9), (0.75, 0.05, 9), "perhaps_left_behind"),
        ((0.8, None, 1), (0.82, None, 1), "too_few_cases"),
    ],
)
def test_the_verdict_follows_the_interval_and_the_rules_of_who_is_left_behind(
    alone: Any, joined: Any, verdict: str, write_run: WriteRun
) -> None:
    runs = [write_run("Standalone", {"elm": alone}), write_run("FedCE", {"elm": joined})]
    assert decision(*runs).hospitals["elm"].verdict == verdict


def test_a_hospital_that_gains_is_better_off_though_it_is_far_below_the_others(
    write_run: WriteRun,
) -> None:
    alone = {"elm": (0.9, 0.001, 9), "oak": (0.9, 0.001, 9), "yew": (0.3, 0.001, 9)}
    joined = {**alone, "yew": (0.5, 0.001, 9)}
    report = write_report([write_run("Standalone", alone), write_run("FedCE", joined)])
    assert report["strategies"]["FedCE"]["sites"]["yew"]["left_behind"]["verdict"]
    assert report["decision"]["hospitals"]["yew"]["verdict"] == "better"


ALONE = {"elm": (0.9, 0.001, 9), "oak": (0.9, 0.001, 9), "yew": (0.3, 0.03, 9)}
# Yew's gain is chance; that it is far below the others is not.
JOINED = {"elm": (0.9, 0.001, 9), "oak": (0.8, 0.001, 9), "yew": (0.32, 0.03, 9)}


def test_a_hospital_that_no_model_serves_better_is_hard_and_told_behind_what(
    write_run: WriteRun,
) -> None:
    report = write_report([write_run("Standalone", ALONE), write_run("FedCE", JOINED)])
    rows = report["decision"]["hospitals"]
    assert {site: (row["verdict"], row["reason"]) for site, row in rows.items()} == {
        "elm": ("as_good", ""),
        "oak": ("left_behind", "below training alone"),
        "yew": ("hard", "far below the hospitals' mean"),
    }
    assert rows["yew"]["difference"]["value"] == pytest.approx(0.02)
    assert report["overview"].endswith("1 as good as alone, 1 left behind, 1 hard for every model.")
    assert "yew: Hard for every model, far below the hospitals' mean; Dice" in as_text(report)
    assert rows["yew"]["advice"] == [
        "Let yew train the model further on its own images: monai-fairfl adapt",
        "Add images of yew to the training: no model here is more than 0.02 better for it",
    ]
    assert VERDICTS["hard"].tone == "open"


@pytest.mark.parametrize(
    ("others", "verdict", "advice"),
    [
        ({"FedAvg": 0.33}, "hard", "Let yew train"),
        ({"FedAvg": 0.4}, "left_behind", "Look at FedAvg: it reaches 0.400 here"),
        ({"FedAvg": 0.33, "Ditto": 0.5}, "left_behind", "Look at Ditto: it reaches 0.500 here"),
    ],
)
def test_a_hospital_that_another_method_serves_better_is_left_behind(
    others: dict[str, float], verdict: str, advice: str, write_run: WriteRun
) -> None:
    runs = [write_run("Standalone", ALONE), write_run("FedCE", JOINED)]
    for name, dice in others.items():
        runs.append(write_run(name, {**JOINED, "yew": (dice, 0.03, 9)}))
    yew = decision_of(report_of(*runs), "FedCE").hospitals["yew"]
    assert (yew.verdict, yew.reason) == (verdict, "far below the hospitals' mean")
    assert yew.advice[0].startswith(advice)


def test_no_hospital_is_hard_where_it_never_trained_alone(write_run: WriteRun) -> None:
    yew = decision(write_run("FedCE", JOINED)).hospitals["yew"]
    assert (yew.verdict, yew.reason) == ("not_compared", "far below the hospitals' mean")
    assert yew.advice == ["Run Standalone too, to know the gain over training alone"]


@pytest.mark.parametrize(("reached", "verdict"), [(0.83, "left_behind"), (0.81, "hard")])
def test_a_model_of_the_last_mile_counts_where_a_hospital_took_it(
    reached: float, verdict: str, write_run: WriteRun
) -> None:
    scores = {"elm": (0.8, 0.01, 9), "oak": (0.95, 0.001, 9), "yew": (0.95, 0.001, 9)}
    alone = write_run("Standalone", {**scores, "elm": (0.79, 0.01, 9)})
    run = with_last_mile(write_run("FedCE", scores), 0.03, reached, others=("oak", "yew"))
    elm = decision(alone, run).hospitals["elm"]
    assert elm.verdict == verdict
    assert elm.advice[0].startswith("Use the model trained further")


def test_the_dice_of_fedavg_stands_beside_that_of_another_method(write_run: WriteRun) -> None:
    runs = [write_run("Standalone", ALONE), write_run("FedCE", JOINED)]
    assert decision(*runs).fedavg is None
    runs.append(write_run("FedAvg", {**JOINED, "yew": (0.27, 0.03, 9)}))
    report = write_report(runs)
    about_fedce = decision_of(report, "FedCE")
    assert (about_fedce.fedavg, about_fedce.hospitals["yew"].fedavg) == ("FedAvg", 0.27)
    about_fedavg = decision_of(report, "FedAvg")
    assert (about_fedavg.fedavg, about_fedavg.hospitals["yew"].fedavg) == (None, None)


def test_who_took_no_part_has_no_score_or_no_yardstick_has_its_own_verdict(
    write_run: WriteRun,
) -> None:
    alone = write_run("Standalone", {"elm": 0.8, "oak": 0.8})
    run = write_run("FedCE", {"elm": 7.0})
    found = decision(alone, run).hospitals
    assert (found["elm"].verdict, found["oak"].verdict) == ("no_score", "absent")
    assert decision(alone).hospitals["elm"].verdict == "not_compared"
    other = write_run("FedCE", {"elm": (0.8, 0.1, 5)}, folder="by itself")
    hospital = decision(other).hospitals["elm"]
    assert hospital.verdict == "not_compared"
    assert hospital.advice[0].startswith("Run Standalone too")


def test_a_site_whose_closing_score_is_missing_is_not_said_to_have_no_cases(
    write_run: WriteRun,
) -> None:
    run = write_run("FedCE", {"elm": 0.8, "oak": 0.8}, rounds=[SHARES], finished=False)
    ledger = Ledger(run / "ledger.jsonl")
    ledger.append({"kind": "end", "scores": {}, "missing": {"oak": "no answer in 60 s"}})
    oak = decision(run).hospitals["oak"]
    assert oak.verdict == "no_score"
    assert oak.advice == ["Find out why its closing score is missing: no answer in 60 s"]


def test_a_first_look_judges_nobody_and_advises_a_full_run(write_run: WriteRun) -> None:
    config = {"full_run": {"rounds": 60, "local_epochs": 4, "mean_dice": 0.5}}
    runs = []
    for name in ("Standalone", "FedCE"):
        runs.append(write_run(name, {"elm": (0.8, 0.01, 9)}, config=config))
    hospital = decision(*runs).hospitals["elm"]
    assert hospital.verdict == "not_judged"
    assert hospital.advice == ["This was a first look: train the full run, then decide"]


# ---- who contributed what


def test_a_share_is_compared_with_the_share_of_the_images_and_has_its_range_over_rounds(
    write_run: WriteRun,
) -> None:
    before = {**SHARES, "contributions": {"elm": 0.5, "oak": 0.5}}
    found = decision(write_run("FedCE", {"elm": 0.8, "oak": 0.8}, rounds=[before, SHARES]))
    assert found.contributions.source == "By FedCE"
    oak = found.hospitals["oak"].contribution
    assert oak is not None
    assert (oak.share, oak.images, oak.ratio) == pytest.approx((0.8, 0.4, 2.0))
    assert (oak.least, oak.most, oak.range_of, oak.interval) == (0.5, 0.8, "rounds", False)
    assert oak.words == "carries twice its share of the images"
    assert "not a confidence interval" in found.contributions.meaning
    assert any("oak's images and labels" in line for line in found.hospitals["oak"].advice)


def test_only_repeats_give_an_interval(write_run: WriteRun) -> None:
    values = [0.8, 0.7, 0.72]
    runs = []
    for seed, value in enumerate(values):
        record = {"contributions": {"elm": 1 - value, "oak": value}}
        scores = {"elm": 0.8, "oak": 0.8}
        runs.append(write_run("FedCE", scores, rounds=[record], seed=seed, folder=f"s{seed}"))
    oak = decision(*runs).hospitals["oak"].contribution
    assert oak is not None and oak.interval and oak.range_of == "3 seeds"
    expected = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    assert (oak.value, oak.least, oak.most) == pytest.approx((np.mean(values), *expected))


FOUR = dict.fromkeys(("ash", "beech", "elm", "oak"), 0.8)
"""Four sites and their scores."""


def shares_of_round(*sites: str, **about: Any) -> dict[str, Any]:
    """A round in which some sites have the same weight, which is their contribution."""
    weights = dict.fromkeys(sites, 1 / len(sites))
    samples = {"ash": 40, "beech": 20, "elm": 20, "oak": 20}
    return {"contributions": weights, "aggregation": weights, "samples": samples, **about}


def test_a_site_without_a_contribution_in_the_last_round_has_no_share_of_it(
    write_run: WriteRun,
) -> None:
    """Oak is refused from round 2 on: the others divide each round among themselves."""
    rounds = [shares_of_round(*FOUR)] * 2 + [shares_of_round("ash", "beech", "elm")] * 3
    run = write_run("FedCE", FOUR, rounds=rounds)
    found = decision(run)
    oak = found.hospitals["oak"].contribution
    assert oak is not None
    assert (oak.value, oak.round, oak.share, oak.ratio) == (0.25, 1, None, None)
    assert oak.words == "no weight after round 1"
    assert (found.hospitals["oak"].weight, found.hospitals["oak"].weight_round) == (0.25, 1)

    ash = found.hospitals["ash"].contribution
    assert ash is not None
    # Of 80 images of those three.
    assert (ash.share, ash.images) == pytest.approx((1 / 3, 1 / 2))
    assert ash.words == "weighs two thirds of its share of the images"
    assert ash.round is None and found.hospitals["ash"].weight_round is None
    assert "the average, in the last round." in found.contributions.meaning
    assert "among the hospitals that have a value in the same round" in found.contributions.meaning

    report = report_of(run)
    credit = {rule["name"]: rule["shares"] for rule in report["strategies"]["FedCE"]["credit"]}
    assert credit["FedCE's own"] == pytest.approx({"ash": 1 / 3, "beech": 1 / 3, "elm": 1 / 3})
    # Oak's weights of two rounds, and none in three.
    assert credit["Weight"]["oak"] == pytest.approx(2 / 5 * 1 / 4)
    assert "oak: Not compared with alone; Dice 0.800; no weight after round 1." in as_text(report)
    write_report([run], run)
    page = (run / "report.html").read_text()
    assert "no weight after round 1 <small>0.2500 in round 1; over rounds" in page


def test_weights_of_another_strategy_name_it_in_the_row(write_run: WriteRun) -> None:
    weighed = shares_of_round(*FOUR)
    fedavg = {**weighed, "contributions": {}}
    runs = [write_run("FedAvg", FOUR, rounds=[fedavg]), write_run("FedCE", FOUR, rounds=[weighed])]
    report = report_of(*runs)
    about_fedavg = decision_of(report, "FedAvg").hospitals["ash"].contribution
    about_fedce = decision_of(report, "FedCE").hospitals["ash"].contribution
    assert about_fedavg is not None and about_fedce is not None
    # Of 100 images it has 40.
    assert about_fedavg.words == "with FedCE: weighs two thirds of its share of the images"
    assert about_fedce.words == "weighs two thirds of its share of the images"


def test_contributions_of_a_round_before_the_last_say_which(write_run: WriteRun) -> None:
    rounds = [shares_of_round(*FOUR), shares_of_round("ash", "oak"), {}]
    rounds = [{**record, "aggregation": {}} for record in rounds]
    found = decision(write_run("CGSV", FOUR, rounds=rounds))
    assert "from round 1, the last that has any: share, by" in found.contributions.meaning
    ash, elm = (found.hospitals[site].contribution for site in ("ash", "elm"))
    assert ash is not None and (ash.share, ash.round) == (0.5, 1)
    assert elm is not None and elm.share is None and elm.words.endswith("after round 0")


@pytest.mark.slow
def test_a_site_of_a_drawn_round_is_compared_with_the_sites_of_that_round(tmp_path: Path) -> None:
    """Each round draws three of four hospitals, and the weights of a round sum to 1."""

    def lose_elm(request: Request, reply: Reply) -> Reply | None:
        is_lost = request.task == "train" and request.client == "elm" and request.round > 2
        return None if is_lost else reply

    federation(FedCE(), tmp_path, lose_elm, rounds=8, clients_per_round=3).run()
    (run,) = load_runs([tmp_path / "run"])
    found = decision(run.path)
    assert "in the last round that drew the hospital." in found.contributions.meaning
    counts = {}
    for site, hospital in found.hospitals.items():
        drawn = [record for record in run.rounds if site in record["clients"]]
        contribution = hospital.contribution
        assert contribution is not None
        counts[site] = site in drawn[-1]["contributions"]
        if not counts[site]:
            continue
        of_round = drawn[-1]["contributions"]
        assert contribution.share == pytest.approx(of_round[site]["value"])
        images = sum(SITES[other] for other in of_round)
        assert contribution.images == pytest.approx(SITES[site] / images)
        assert contribution.round == (drawn[-1]["round"] if drawn[-1]["round"] < 7 else None)
        assert contribution.words.startswith("weighs ")
    assert counts == {"ash": True, "beech": True, "elm": False, "oak": True}
    elm = found.hospitals["elm"].contribution
    assert elm is not None and elm.share is None and elm.words.startswith("no weight after round")


def test_a_weight_that_is_not_of_the_last_average_says_its_round(write_run: WriteRun) -> None:
    rounds = [shares_of_round(*FOUR), shares_of_round("ash", "beech", "elm")]
    run = write_run("FedAvg", FOUR, rounds=rounds)
    write_report([run], run)
    page = (run / "report.html").read_text()
    assert "not known <small>weight 0.33</small>" in page
    assert page.count("not known <small>weight 0.25 in round 0</small>") == 1


def test_seeds_in_which_a_site_had_no_contribution_at_the_end_are_not_in_its_mean(
    write_run: WriteRun,
) -> None:
    runs = []
    for seed, last in enumerate([FOUR, FOUR, ("ash", "beech", "elm")]):
        rounds = [shares_of_round(*FOUR), shares_of_round(*last)]
        runs.append(write_run("FedCE", FOUR, rounds=rounds, seed=seed, folder=f"s{seed}"))
    found = decision(*runs)
    ash, oak = (found.hospitals[site].contribution for site in ("ash", "oak"))
    assert ash is not None and ash.range_of == "3 seeds"
    assert ash.value == pytest.approx((1 / 4 + 1 / 4 + 1 / 3) / 3)
    assert oak is not None and (oak.value, oak.range_of) == (pytest.approx(1 / 4), "2 seeds")
    assert oak.words.endswith("its share of the images, in 2 of 3 seeds")
    assert "seeds" not in ash.words


def test_a_site_that_counts_in_one_seed_shows_that_seed_and_says_so(write_run: WriteRun) -> None:
    """At the end oak counts with the second seed only, and elm with none."""
    counted = [("ash", "beech"), ("ash", "beech", "oak"), ("ash", "beech")]
    runs = []
    for seed, last in enumerate(counted):
        rounds = [shares_of_round(*FOUR), shares_of_round(*last)]
        runs.append(write_run("FedCE", FOUR, rounds=rounds, seed=seed, folder=f"s{seed}"))
    found = decision(*runs)
    oak, elm = (found.hospitals[site].contribution for site in ("oak", "elm"))
    assert oak is not None and oak.value == pytest.approx(1 / 3)
    assert (oak.least, oak.round) == (None, None)
    assert oak.words.endswith(", in 1 of 3 seeds")
    assert elm is not None and elm.value is None
    assert elm.words == "no weight that counts in any of 3 seeds"
    assert "in the same round" not in found.contributions.meaning


def test_values_of_several_seeds_become_shares_before_they_are_compared_with_the_images(
    write_run: WriteRun,
) -> None:
    """FedCI's values are Dice: oak has three quarters of their sum."""
    runs = []
    for seed in range(2):
        rounds = [{**SHARES, "contributions": {"elm": 0.01, "oak": 0.03}}]
        scores = {"elm": 0.8, "oak": 0.8}
        runs.append(write_run("FedCI", scores, rounds=rounds, seed=seed, folder=f"s{seed}"))
    oak = decision(*runs).hospitals["oak"].contribution
    assert oak is not None and oak.range_of == "2 seeds"
    assert (oak.value, oak.share, oak.ratio) == pytest.approx((0.03, 0.75, 0.75 / 0.4))


def test_an_agreement_is_no_share_of_a_whole(write_run: WriteRun) -> None:
    record = {"contributions": {"elm": 0.9, "oak": 0.8}, "samples": {"elm": 10, "oak": 90}}
    found = decision(write_run("ShapFed", {"elm": 0.8, "oak": 0.8}, rounds=[record]))
    elm = found.hospitals["elm"].contribution
    assert elm is not None
    assert (elm.value, elm.share, elm.ratio, elm.words) == (0.9, None, None, "")


def test_fedavg_says_why_nobody_knows_who_contributed_and_what_would_tell(
    write_run: WriteRun,
) -> None:
    found = decision(write_run("FedAvg", {"elm": 0.8, "oak": 0.8}, rounds=[SHARES]))
    assert found.contributions.source is None and found.hospitals["elm"].contribution is None
    assert "FedCE" in found.contributions.meaning


@pytest.mark.parametrize(
    "other",
    [
        {"rounds": [SHARES]},
        {"finished": False},
        {"config": {"data": {"elm": "/data/elm 2", "oak": "/data/oak"}}},
        {"config": {"local_epochs": 4}},
        {"config": {"overrides": {"size": [64, 64]}}},
    ],
)
def test_a_training_of_other_data_length_or_settings_is_no_repeat(
    other: dict[str, Any], write_run: WriteRun
) -> None:
    """It has another seed too, and says nothing of what another seed would change."""
    both = {"elm": 0.8, "oak": 0.8}
    runs = [write_run("Standalone", {"elm": 0.7, "oak": 0.7}, rounds=[SHARES] * 2)]
    runs.append(write_run("FedCE", both, rounds=[SHARES] * 2, folder="a"))
    changed = {**SHARES, "contributions": {"elm": 0.9, "oak": 0.1}}
    arguments = {"rounds": [changed, changed], **other}
    for strategy in ("Standalone", "FedCE"):
        runs.append(write_run(strategy, both, seed=1, folder=f"{strategy} b", **arguments))
    found = decision(*runs).hospitals["oak"]
    assert found.contribution is not None and not found.contribution.interval
    assert found.contribution.value == 0.8
    assert found.difference is not None and found.difference["seeds"] is None
    # Nor is it in one line with the other.
    assert not [name for name in series_of(report_of(*runs), "dice") if "trainings" in name]


def test_nobody_has_a_share_of_values_that_are_all_negative(write_run: WriteRun) -> None:
    """Equal shares would give the smallest hospital seven times its share of the images."""
    record = {
        "contributions": {"elm": -0.1, "oak": -0.2, "yew": -0.01},
        "samples": {"elm": 60, "oak": 35, "yew": 5},
    }
    run = write_run("CGSV", dict.fromkeys(record["samples"], 0.8), rounds=[record])
    report = report_of(run)
    credit = {rule["name"]: rule["shares"] for rule in report["strategies"]["CGSV"]["credit"]}
    assert credit["CGSV's own"] == {"elm": 0.0, "oak": 0.0, "yew": 0.0}
    yew = decision_of(report, "CGSV").hospitals["yew"]
    assert yew.contribution is not None
    assert (yew.contribution.share, yew.contribution.ratio) == (0.0, 0.0)
    assert yew.contribution.words == "its value is negative"
    assert not [line for line in yew.advice if "images and labels" in line]


def valued(
    write_run: WriteRun, elm: dict[str, float], method: str = "exact", folder: str = "run"
) -> Decision:
    """A run in which oak was valued with 0.3, and elm as given."""
    run = write_run("FedAvg", {"elm": 0.8, "oak": 0.8}, rounds=[SHARES], folder=folder)
    values = {"elm": elm, "oak": {"value": 0.3}}
    found = valuation(values, {"elm": 0.0, "oak": 1.0}, method)
    (run / "valuations").mkdir()
    (run / "valuations" / "exact.json").write_text(json.dumps(found))
    return decision(run)


def valuation(
    values: Mapping[str, Any], shares: Mapping[str, float], method: str = "exact"
) -> dict[str, Any]:
    """A valuation as its file holds it."""
    return {
        "name": "exact",
        "strategy": "FedAvg",
        "method": method,
        "utility": "mean",
        "data": "test",
        "values": values,
        "shares": shares,
        "evaluations": 4,
        "rank_stability": None,
        "total": 0.2,
    }


@pytest.mark.parametrize(
    ("method", "elm", "words"),
    [
        ("exact", {"value": -0.1}, "on average, groups of the others are worse with it"),
        ("leave_one_out", {"value": -0.1}, "the others do better without it"),
        ("exact", {"value": -0.0008}, "next to nothing"),
        ("permutation", {"value": -0.1, "stderr": 0.08}, "its error includes 0"),
        ("permutation", {"value": -0.1, "stderr": 0.01}, "groups of the others are worse with it"),
    ],
)
def test_a_negative_value_says_what_its_method_measured_and_whether_it_is_apart_from_0(
    method: str, elm: dict[str, float], words: str, write_run: WriteRun
) -> None:
    found = valued(write_run, elm, method).hospitals["elm"].contribution
    assert found is not None and words in found.words


def test_a_valuation_answers_for_fedavg(write_run: WriteRun) -> None:
    found = valued(write_run, {"value": -0.1})
    assert found.contributions.source == "Valued afterwards"
    assert "Shapley value of the mean Dice" in found.contributions.meaning
    elm, oak = (found.hospitals[site].contribution for site in ("elm", "oak"))
    assert elm is not None and "negative" in elm.words
    assert oak is not None and oak.ratio == pytest.approx(2.5)


def test_a_valuation_with_a_decay_says_so_and_comes_after_one_without(
    write_run: WriteRun,
) -> None:
    run = write_run("FedAvg", {"elm": 0.8, "oak": 0.8}, rounds=[SHARES])
    (run / "valuations").mkdir()
    meanings = []
    for words, elm in (("decay_0.5-", 0.9), ("", 0.1)):
        name = f"reconstruction-multi_round-{words}exact-mean"
        value = valuation({"elm": {"value": elm}, "oak": {"value": 0.1}}, {"elm": 0.5, "oak": 0.5})
        (run / "valuations" / f"{name}.json").write_text(json.dumps({**value, "name": name}))
        meanings.append(decision(run).contributions.meaning)
    decayed, plain = meanings
    assert "divided by their sum and weighted by 0.5" in decayed
    assert "Shapley value of the mean Dice" in plain and "divided" not in plain


def test_a_value_is_compared_with_the_images_of_the_hospitals_that_were_valued(
    write_run: WriteRun,
) -> None:
    """Ash left before the run was valued."""
    run = write_run(
        "FedAvg",
        {"elm": 0.8, "oak": 0.8},
        rounds=[{"clients": ["ash", "elm", "oak"], "samples": {"ash": 60, "elm": 20, "oak": 20}}],
    )
    (run / "valuations").mkdir()
    value = valuation({"elm": {"value": 0.1}, "oak": {"value": 0.1}}, {"elm": 0.5, "oak": 0.5})
    (run / "valuations" / "exact.json").write_text(json.dumps(value))
    oak = decision(run).hospitals["oak"].contribution
    assert oak is not None and (oak.share, oak.images) == pytest.approx((0.5, 0.5))
    assert oak.words == "carries its share of the images"


def test_the_sum_of_values_is_theirs_where_a_method_shares_out_less_than_there_is() -> None:
    """GTG leaves out rounds of little gain, and their gain is part of the total."""
    gains = [0.3, *[0.0009] * 60]
    games = [Game("ABC", lambda members, gain=gain: gain * len(members) / 3) for gain in gains]
    found = gtg_shapley(games)
    assert found.total == pytest.approx(0.354)
    words = trust_of(found.to_json())
    assert words.startswith("The values sum to 0.3000, of 0.3540 to share out, and are of")


# ---- which strategy, and what to do


def test_it_says_which_strategy_it_is_about_and_why(write_run: WriteRun) -> None:
    fedce = write_run("FedCE", {"elm": 0.8, "oak": 0.8}, rounds=[SHARES])
    assert decision(fedce).why == "This is about FedCE, the only federation."
    validated = {**SHARES, "measurements": {site: {"global_score": 0.7} for site in ("elm", "oak")}}
    fedavg = write_run("FedAvg", {"elm": 0.9, "oak": 0.9}, rounds=[validated])
    ditto = write_run("Ditto", {"elm": 0.9, "oak": 0.9}, rounds=[validated])
    assert "the best mean Dice on validation cases" in decision(ditto, fedavg).why


def test_where_nobody_validated_no_run_is_called_the_best(write_run: WriteRun) -> None:
    fedavg = write_run("FedAvg", {"elm": 0.9, "oak": 0.9})
    ditto = write_run("Ditto", {"elm": 0.9, "oak": 0.9})
    assert decision(ditto, fedavg).why == (
        "This is about Ditto, the first of them: no run has scores on validation cases."
    )


def test_a_run_that_could_not_be_chosen_is_not_called_worse(write_run: WriteRun) -> None:
    """An unfinished run validates better, and one of fewer hospitals too."""

    def validated(dice: float) -> list[dict[str, Any]]:
        return [{"measurements": {site: {"global_score": dice} for site in ("elm", "oak")}}] * 2

    both = {"elm": 0.8, "oak": 0.8}
    runs = [
        write_run("FedAvg", both, rounds=validated(0.6)),
        write_run("FedCE", both, rounds=validated(0.9), finished=False),
        write_run("CGSV", {"elm": 0.8}, rounds=validated(0.7), clients=["elm", "oak"]),
    ]
    why = decision(*runs).why
    assert "FedAvg 0.600" in why and "FedCE" not in why and "CGSV" not in why


@pytest.mark.parametrize(("value", "stderr", "n"), [(0.03, 0.02, 8), (0.1, 0.06, 5)])
def test_the_cases_asked_for_are_the_fewest_that_would_tell(
    value: float, stderr: float, n: int
) -> None:
    needed = cases_to_tell(value, stderr, n)
    assert needed is not None and needed > n
    spread = stderr * np.sqrt(n)
    for number, tells in ((needed, True), (needed - 1, False)):
        statistic = value / (spread / np.sqrt(number))
        assert (2 * stats.t.sf(statistic, number - 1) < 0.05) == tells


def test_advice_names_the_test_cases_that_would_tell(write_run: WriteRun) -> None:
    runs = [
        write_run("Standalone", {"elm": (0.7, 0.03, 8)}),
        write_run("FedCE", {"elm": (0.78, 0.03, 8)}),
    ]
    [advice] = decision(*runs).hospitals["elm"].advice
    assert advice == "4 more test cases would tell"


def test_who_is_worse_off_is_sent_to_what_serves_it_better(write_run: WriteRun) -> None:
    runs = [write_run("Standalone", {"elm": (0.9, 0.001, 9)})]
    runs.append(
        write_run("FedCE", {"elm": (0.7, 0.001, 9)}, rounds=[{"contributions": {"elm": 1}}])
    )
    [further] = decision(*runs).hospitals["elm"].advice
    assert further.endswith("train the model further on its own images: monai-fairfl adapt")
    # Worse than alone: nobody is sent there.
    runs.append(write_run("FedAvg", {"elm": (0.8, 0.001, 9)}))
    assert decision_of(report_of(*runs), "FedCE").hospitals["elm"].advice == [further]
    runs.append(write_run("Ditto", {"elm": (0.95, 0.001, 9)}))
    elm = decision_of(report_of(*runs), "FedCE").hospitals["elm"]
    assert elm.advice == ["Look at Ditto: it reaches 0.950 here"]


def with_last_mile(
    run: Path, gain: float, test_score: float, model: str = "adapted", others: Sequence[str] = ()
) -> Path:
    """The run, whose site elm has another model: trained further, or of another name.

    The other sites have none, and a Dice of 0.95.
    """
    candidate: dict[str, Any] = {
        f"{model}_gain": {"value": gain, "stderr": 0.005, "n": 2},
        "test_score": test_score,
    }
    if model == "adapted":
        candidate["adapted_epochs"] = 3
    own = {"test_score": {"mean": {"value": 0.8, "stderr": 0.01, "n": 9}}}
    best = {"own": {"test_score": {"mean": {"value": 0.95, "stderr": 0.001, "n": 9}}}}
    of_others = dict.fromkeys(others, best)
    replace_closing_scores(run, {"elm": {"own": own, model: candidate}, **of_others})
    return run


@pytest.mark.parametrize(
    ("model", "gain", "test_score", "advice"),
    [
        ("adapted", 0.03, 0.82, "Use the model trained further: +0.030 ± 0.005"),
        ("adapted", 0.03, 0.75, "Doubt the model trained further: +0.030"),
        ("adapted", 0.001, 0.82, "Use the federation's model"),
        ("fused", -0.01, 0.82, "Use the model fused"),
        ("fused", -0.01, 0.75, "Doubt the model fused"),
        ("fused", -0.03, 0.82, "Use the federation's model"),
    ],
)
def test_a_model_of_the_last_mile_is_advised_unless_test_cases_speak_against_it(
    model: str, gain: float, test_score: float, advice: str, write_run: WriteRun
) -> None:
    alone = write_run("Standalone", {"elm": (0.7, 0.01, 9)})
    run = with_last_mile(write_run("FedCE", {"elm": (0.8, 0.01, 9)}), gain, test_score, model)
    assert decision(alone, run).hospitals["elm"].advice[0].startswith(advice)


def test_advice_asks_about_updates_that_no_training_made_and_rounds_that_were_missed(
    write_run: WriteRun,
) -> None:
    noise = {"guard": "Noise", "action": "quarantined", "reason": "its update is noise"}
    rounds = [{"verdicts": {"elm": [noise]}}, {"missing": {"oak": "no line"}}]
    found = decision(write_run("FedCE", {"elm": 0.8, "oak": 0.8}, rounds=rounds)).hospitals
    assert (
        found["elm"].advice[0]
        == "Ask elm what it sent: in 1 round, its update came from no training"
    )
    assert found["oak"].advice[0] == "Find out why oak was missing in 1 of 2 rounds"


def test_every_verdict_has_words() -> None:
    for verdict in VERDICTS.values():
        assert verdict.title and verdict.counted and verdict.tone in ("good", "bad", "open", "none")


@pytest.mark.parametrize(
    ("value", "share", "words"),
    [
        # Of many hospitals, shares are about as small as values in Dice.
        (0.0044, 0.04, "0.0044; over rounds 0.0010 to 0.0090"),
        (-0.0049, 0.0, "-0.0049; over rounds 0.0010 to 0.0090"),
        (0.31, 0.3, "0.31; over rounds 0.00 to 0.01"),
    ],
)
def test_a_small_value_in_dice_is_not_rounded_as_a_share(
    value: float, share: float, words: str
) -> None:
    found = Contribution.of_value(value, share, None, 8, 0.001, 0.009, "rounds")
    assert range_words(asdict(found)) == words
