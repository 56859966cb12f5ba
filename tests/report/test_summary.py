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
from scipy import stats

from monai_fairfl.report.collect import load_runs
from monai_fairfl.report.comparison import Gain, half_width, left_behind
from monai_fairfl.report.numbers import Number
from monai_fairfl.report.summary import summarise
from monai_fairfl.report.valuations import NEEDED
from monai_fairfl.run_folder.ledger import Ledger

WriteRun = Callable[..., Path]


def test_scores_gains_and_fairness_are_those_of_the_ledgers(comparison: Path) -> None:
    report = summarise(load_runs([comparison]))
    closing = {name: end_scores(comparison / name) for name in ("Standalone", "FedAvg", "FedCE")}
    assert report["measurement"] == "test_score"
    for name in ("FedAvg", "FedCE"):
        dice = np.array([score["value"] for score in closing[name].values()])
        alone = np.array([score["value"] for score in closing["Standalone"].values()])
        found = report["strategies"][name]
        shares = found["performance"]
        assert [shares["mean"], shares["std"]] == pytest.approx([dice.mean(), dice.std(ddof=1)])
        assert [shares["worst"], shares["gap"]] == pytest.approx([dice.min(), np.ptp(dice)])
        assert shares["jain"] == pytest.approx(dice.mean() ** 2 / np.mean(dice**2))
        r, p_value = stats.pearsonr(alone, dice)
        expected = {
            "pearson": 100 * r,
            "p_value": p_value,
            "euclid": 100 * np.sqrt(np.sum((alone - dice) ** 2)),
        }
        assert found["collaboration"] == pytest.approx(expected)
        gains = [found["sites"][site]["gain"] for site in report["sites"]]
        assert [gain["value"] for gain in gains] == pytest.approx(list(dice - alone))
        errors = [
            np.hypot(closing["Standalone"][s]["stderr"], closing[name][s]["stderr"])
            for s in report["sites"]
        ]
        assert [gain["stderr"] for gain in gains] == pytest.approx(errors)


def test_the_header_holds_sites_seed_rounds_and_verified_heads(comparison: Path) -> None:
    report = summarise(load_runs([comparison]))
    assert list(report["strategies"]) == ["Standalone", "FedAvg", "FedCE"]
    assert report["sites"]["hazel"] == {"cases": 6, "images": 48, "scored": 3}
    found = report["strategies"]["FedCE"]
    assert (found["rounds"], found["seed"], found["finished"], found["chain_verified"]) == (
        4,
        0,
        True,
        True,
    )
    assert report["warnings"] == []


def test_dice_after_r_rounds_is_what_was_measured_when_round_r_began(comparison: Path) -> None:
    series = summarise(load_runs([comparison]))["strategies"]["FedAvg"]["series"]["dice"]
    records = ledger(comparison / "FedAvg")
    received = [
        r["measurements"]["hazel"]["global_score"]["mean"]["value"]
        for r in records
        if r["kind"] == "round"
    ]
    last = records[-1]["scores"]["hazel"]["own"]["score"]["mean"]["value"]
    assert [point["value"] for point in series["hazel"]] == [*received, last]
    assert [point["round"] for point in series["elm"]] == [0, 2, 3, 4]  # it was absent in round 1


def test_dice_of_a_personal_model_belongs_to_the_end_of_its_round(write_run: WriteRun) -> None:
    scored = [
        {"global_score": 0.1, "personal_score": 0.3},
        {"global_score": 0.2, "personal_score": 0.4},
    ]
    run = write_run(
        "Ditto", {"elm": 0}, rounds=[{"measurements": {"elm": measured}} for measured in scored]
    )
    edit_end(run, {"elm": {"own": {"score": 0.45}, "global": {"score": 0.25}}})
    found = summarise(load_runs([run]))["strategies"]["Ditto"]
    points = [(point["round"], point["value"]) for point in found["series"]["dice"]["elm"]]
    assert points == [
        (0, 0.1),
        (1, 0.3),
        (2, 0.45),
    ]  # 0.4 is of the model that the end measured again
    assert found["personal"] and found["sites"]["elm"]["global_model"]["value"] == 0.25


def test_a_personal_model_in_training_is_compared_after_as_many_rounds_as_the_others(
    write_run: WriteRun,
) -> None:
    scored = [
        {"global_score": 0.1, "personal_score": 0.3},
        {"global_score": 0.2, "personal_score": 0.4},
    ]
    for name in ("FedAvg", "Ditto"):
        rounds = [
            {"measurements": {"elm": dict(list(m.items())[: 1 + (name == "Ditto")])}}
            for m in scored
        ]
        run = write_run(name, {"elm": 0}, rounds=rounds, finished=False)
    strategies = summarise(load_runs([run.parent]))["strategies"]
    assert all(found["comparable"] and found["after_rounds"] == 1 for found in strategies.values())
    assert strategies["Ditto"]["sites"]["elm"]["score"]["value"] == 0.3
    assert [point["value"] for point in strategies["Ditto"]["series"]["dice"]["elm"]] == [
        0.1,
        0.3,
        0.4,
    ]


def suspicious(**changes: Any) -> dict[str, Any]:
    """A round in which yew's model fits its own data far better than the one it received."""
    sites = ["elm", "oak", "yew"]
    measured = {
        site: {"global_score": 0.5, "local_score": 0.9 if site == "yew" else 0.51} for site in sites
    }
    gram = {"clients": sites, "whole": np.eye(3).tolist()}
    return {
        "measurements": measured,
        "gram": gram,
        "aggregation": dict.fromkeys(sites, 1 / 3),
        **changes,
    }


def test_free_rider_scores_are_shown_and_a_flagged_site_is_warned_of(write_run: WriteRun) -> None:
    run = write_run("FedAvg", dict.fromkeys(["elm", "oak", "yew"], 0.8), rounds=[suspicious()] * 3)
    report = summarise(load_runs([run]))
    found = report["strategies"]["FedAvg"]
    scores = [point["value"] for point in found["series"]["free_rider_scores"]["yew"]]
    assert scores == pytest.approx([0.4 / np.sqrt(3)] * 3)
    assert found["flagged"] == {"yew": 2}
    (warning,) = report["warnings"]
    assert warning.startswith("In FedAvg, the free-rider score of yew was above 5 times")
    assert "above 5 times the median of the other sites' in 3 consecutive rounds" in warning


def test_runs_of_other_settings_are_warned_of_by_the_settings_names(write_run: WriteRun) -> None:
    scores = {"elm": (0.8, 0.1, 5)}
    asked = [
        {"bundle": "b", "files": {"train.json": "1", "other.json": "1"}, "config": ["configs/train.json"],
         "local_epochs": 1, "overrides": {"size": [64, 64]}, "sites": {"elm": {"learning_rate": 0.001}}},
        {"bundle": "b", "files": {"train.json": "1", "other.json": "2"}, "config": ["configs/train.json"],
         "local_epochs": 4, "overrides": {}, "sites": {"elm": {"learning_rate": 0.003}}},
    ]  # fmt: skip
    runs = [
        write_run(name, scores) for name in ("FedAvg", "FedCE", "CGSV")
    ]  # CGSV's engine wrote no config.json
    for run, config in zip(runs, asked):
        (run / "config.json").write_text(json.dumps(config))
    (runs[2] / "config.json").unlink()
    warning, unknown = summarise(load_runs(runs))["warnings"]
    assert "(learning_rate of elm, local_epochs, size)" in warning
    assert unknown.endswith("whether they have the same data and split is not recorded")
    (runs[1] / "config.json").write_text(json.dumps(asked[0]))
    assert summarise(load_runs(runs))["warnings"] == [unknown]


@pytest.mark.parametrize(
    "lacking",
    [{"gram": None}, {"measurements": {"yew": {"global_score": 0.5}}}, {"aggregation": {}}],
)
def test_free_rider_scores_are_of_the_rounds_that_have_all(
    lacking: dict[str, Any], write_run: WriteRun
) -> None:
    rounds = [suspicious(), suspicious(), suspicious(**lacking), suspicious()]
    report = summarise(
        load_runs([write_run("FedAvg", dict.fromkeys(["elm", "oak", "yew"], 0.8), rounds=rounds)])
    )
    found = report["strategies"]["FedAvg"]
    assert [point["round"] for point in found["series"]["free_rider_scores"]["yew"]] == [0, 1, 3]
    assert found["flagged"] == {"yew": 3}


def test_means_over_some_of_the_sites_are_marked_and_not_compared(write_run: WriteRun) -> None:
    scores = {"elm": 0.8, "oak": 0.7, "yew": 0.4}
    runs = [write_run(name, scores) for name in ("Standalone", "FedAvg")]
    lines = (runs[1] / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (runs[1] / "ledger.jsonl").write_bytes(b"".join(lines[:-1]))
    missing = {site: {"own": {"test_score": scores[site]}} for site in ("elm", "oak")} | {
        "yew": {"own": {}}
    }
    Ledger(runs[1] / "ledger.jsonl").append(
        {"kind": "end", "scores": missing, "not_finite": {"yew": ["test_score"]}}
    )
    report = summarise(load_runs(runs))
    found = report["strategies"]["FedAvg"]
    assert (
        found["collaboration"] is None
        and not found["comparable"]
        and found["sites"]["elm"]["gain"]["value"] == 0
    )
    assert any(
        "FedAvg: no Dice of yew" in warning and "2 of 3 sites" in warning
        for warning in report["warnings"]
    )
    assert [e["text"] for e in report["events"]] == ["dropped measurements: test_score"]


def test_the_shown_measurement_is_one_that_every_scored_site_has(write_run: WriteRun) -> None:
    run = write_run("FedAvg", {"elm": 0.8, "oak": 0.7}, finished=False)
    closing = {"elm": {"own": {"score": 0.6, "test_score": 0.9}}, "oak": {"own": {"score": 0.5}}}
    Ledger(run / "ledger.jsonl").append({"kind": "end", "scores": closing})
    report = summarise(load_runs([run]))
    found = report["strategies"]["FedAvg"]["sites"]
    assert report["measurement"] == "score" and [
        found[s]["score"]["value"] for s in ("elm", "oak")
    ] == [0.6, 0.5]


def test_a_score_may_be_above_one_by_rounding(write_run: WriteRun) -> None:
    report = summarise(load_runs([write_run("FedAvg", {"elm": (1.0000001, 0.0, 5), "oak": 1.1})]))
    found = report["strategies"]["FedAvg"]["sites"]
    assert found["elm"]["score"]["value"] == 1 and found["oak"]["score"] is None


def test_an_estimate_that_is_not_finite_is_left_out(write_run: WriteRun) -> None:
    unknown = {"value": None, "stderr": None, "n": 3}
    rounds = [
        {
            "contributions": {"elm": 0.4, "oak": unknown},
            "details": {"drop": {"oak": unknown, "elm": {"0": unknown}}},
        }
    ]
    found = summarise(load_runs([write_run("FedCE", {"elm": 0.8, "oak": 0.7}, rounds=rounds)]))[
        "strategies"
    ]["FedCE"]
    assert (
        found["series"]["contributions"]["oak"] == []
        and found["sites"]["elm"]["contribution"]["value"] == 0.4
    )
    assert found["details"]["by_round"] == {} and found["details"]["last_round"]["drop"][
        "sites"
    ] == {"elm": {"0": None}}


def test_a_valuation_of_a_run_that_went_on_is_not_shown(write_run: WriteRun) -> None:
    run = write_run("FedAvg", {"elm": 0.8, "oak": 0.7}, finished=False)
    Ledger(run / "ledger.jsonl").append({"kind": "end", "scores": {}, "model": "b"})
    (run / "valuations").mkdir()
    about = dict.fromkeys(NEEDED, None) | {"name": "retraining"}
    for name, model in (("old", "a"), ("new", "b")):
        (run / "valuations" / f"{name}.json").write_text(
            json.dumps(about | {"name": name, "model": model})
        )
    report = summarise(load_runs([run]))
    assert [valuation["name"] for valuation in report["strategies"]["FedAvg"]["valuations"]] == [
        "new"
    ]
    assert any(
        "FedAvg: old is of another end of this run" in warning for warning in report["warnings"]
    )


def test_absences_guards_and_their_reasons_are_listed(comparison: Path) -> None:
    events = [
        event
        for event in summarise(load_runs([comparison]))["events"]
        if event["strategy"] == "FedAvg"
    ]
    assert [(e["round"], e["site"], e["kind"]) for e in events] == [
        (1, "elm", "missing"), (2, "rowan", "missing"), (2, "rowan", "guard"),
    ]  # fmt: skip
    assert "line is down" in events[0]["text"] and "not finite" in events[2]["text"]


def test_test_scores_are_shown_only_where_every_finished_run_has_them(write_run: WriteRun) -> None:
    both = {"elm": {"own": {"score": 0.7, "test_score": 0.6}}}
    runs = [write_run("FedAvg", {"elm": 0.6}), write_run("FedCE", {"elm": 0.6})]
    assert summarise(load_runs(runs))["measurement"] == "test_score"
    runs = [
        edit_end(write_run("Ditto", {"elm": 0}), both),
        edit_end(write_run("CGSV", {"elm": 0}), {"elm": {"own": {"score": 0.5}}}),
    ]
    report = summarise(load_runs(runs))
    assert report["measurement"] == "score"
    assert [found["sites"]["elm"]["score"]["value"] for found in report["strategies"].values()] == [
        0.7,
        0.5,
    ]


def test_an_unfinished_run_shows_its_last_validation_dice_and_is_not_compared(
    write_run: WriteRun,
) -> None:
    measured = [
        {"measurements": {"elm": {"global_score": v}, "oak": {"global_score": v}}}
        for v in (0.1, 0.2)
    ]
    alone = write_run("Standalone", {"elm": 0.7, "oak": 0.8})
    partly = write_run("FedAvg", {"elm": 0.0, "oak": 0.0}, rounds=measured, finished=False)
    (partly / "config.json").write_text('{"rounds": 9, "strategies": ["FedAvg"]}')
    report = summarise(load_runs([alone, partly]))
    found = report["strategies"]["FedAvg"]
    assert (found["finished"], found["rounds"], found["planned_rounds"], found["comparable"]) == (
        False,
        2,
        9,
        False,
    )
    assert (
        found["measurement"],
        found["after_rounds"],
        found["sites"]["elm"]["score"]["value"],
    ) == (
        "global_score",
        1,
        0.2,
    )
    assert found["sites"]["elm"]["gain"] is None and found["collaboration"] is None
    assert "different numbers of rounds" in report["warnings"][0]


def test_runs_still_in_training_are_compared_only_after_equally_many_rounds(
    write_run: WriteRun,
) -> None:
    measured = [{"measurements": {"elm": {"global_score": value}}} for value in (0.1, 0.2, 0.3)]
    for name, rounds in (("Standalone", 3), ("FedAvg", 3), ("FedCE", 2)):
        run = write_run(name, {"elm": 0}, rounds=measured[:rounds], finished=False)
    strategies = summarise(load_runs([run.parent]))["strategies"]
    assert [found["comparable"] for found in strategies.values()] == [True, True, False]
    assert strategies["FedAvg"]["sites"]["elm"]["gain"]["value"] == 0
    assert strategies["FedCE"]["sites"]["elm"]["gain"] is None


def test_a_run_that_stopped_before_its_first_round_is_reported_empty(write_run: WriteRun) -> None:
    found = summarise(load_runs([write_run("FedAvg", {"elm": 0}, rounds=(), finished=False)]))[
        "strategies"
    ]["FedAvg"]
    assert (found["rounds"], found["performance"], found["sites"]["elm"]["score"]) == (
        0,
        None,
        None,
    )


def test_without_standalone_nothing_is_said_of_gains(write_run: WriteRun) -> None:
    report = summarise(load_runs([write_run("FedAvg", {"elm": 0.7, "oak": 0.8})]))
    found = report["strategies"]["FedAvg"]
    assert (
        report["standalone"] is None
        and found["collaboration"] is None
        and found["sites"]["elm"]["gain"] is None
    )


def test_two_sites_have_no_correlation_and_equal_sites_none_either(write_run: WriteRun) -> None:
    runs = [
        write_run("Standalone", {"elm": 0.7, "oak": 0.8}),
        write_run("FedAvg", {"elm": 0.75, "oak": 0.8}),
    ]
    found = summarise(load_runs(runs))["strategies"]["FedAvg"]["collaboration"]
    assert found == {"pearson": None, "p_value": None, "euclid": pytest.approx(5.0)}


def test_a_strategy_that_lacks_a_site_is_not_compared(write_run: WriteRun) -> None:
    runs = [write_run("FedAvg", {"elm": 0.7, "oak": 0.8}), write_run("FedCE", {"elm": 0.9})]
    report = summarise(load_runs(runs))
    assert [found["comparable"] for found in report["strategies"].values()] == [True, False]
    assert any("different sites" in warning for warning in report["warnings"])


def test_a_score_that_is_no_fraction_is_left_out_with_a_warning(write_run: WriteRun) -> None:
    report = summarise(load_runs([write_run("FedAvg", {"elm": 81.0, "oak": 0.8})]))
    assert report["strategies"]["FedAvg"]["sites"]["elm"]["score"] is None
    assert "elm" in report["warnings"][0]


def test_weights_per_layer_are_averaged_plainly(write_run: WriteRun) -> None:
    layered = {"aggregation": {"conv": {"elm": 0.1, "oak": 0.9}, "head": {"elm": 0.3, "oak": 0.7}}}
    found = summarise(load_runs([write_run("FedLWR", {"elm": 0.7, "oak": 0.8}, rounds=[layered])]))[
        "strategies"
    ]["FedLWR"]
    assert found["layers_averaged"] == 2
    assert [p["value"] for p in found["series"]["weights"]["elm"]] == pytest.approx([0.2])


def test_the_sentences_speak_of_the_strategy_that_validates_best_not_of_the_one_that_tests_best(
    write_run: WriteRun,
) -> None:
    first = edit_end(
        write_run("FedAvg", {"elm": 0}), {"elm": {"own": {"score": 0.9, "test_score": 0.5}}}
    )
    second = edit_end(
        write_run("FedCE", {"elm": 0}), {"elm": {"own": {"score": 0.6, "test_score": 0.8}}}
    )
    assert summarise(load_runs([first, second]))["focus"] == "FedAvg"


def test_the_sentences_never_speak_of_a_strategy_that_lacks_a_weak_site(
    write_run: WriteRun,
) -> None:
    whole = edit_end(
        write_run("FedAvg", {"elm": 0, "oak": 0}),
        {
            "elm": {"own": {"score": 0.9, "test_score": 0.9}},
            "oak": {"own": {"score": 0.4, "test_score": 0.4}},
        },
    )
    part = edit_end(
        write_run("FedCE", {"elm": 0, "oak": 0}),
        {"elm": {"own": {"score": 0.8, "test_score": 0.8}}},
    )
    assert summarise(load_runs([whole, part]))["focus"] == "FedAvg"


def test_other_groups_are_warned_of_and_not_mixed(write_run: WriteRun) -> None:
    one = write_run("FedAvg", {"elm": 0.8, "oak": 0.8}, groups={"clean": ["elm"]})
    two = write_run("FedCE", {"elm": 0.8, "oak": 0.8}, groups={"clean": ["oak"]})
    report = summarise(load_runs([one, two]))
    assert [w.split(":")[0] for w in report["warnings"]] == ["The runs have different groups"]
    assert report["groups"] == {}


def test_runs_that_are_scored_on_other_numbers_of_cases_are_not_compared(
    write_run: WriteRun,
) -> None:
    one = write_run("FedAvg", {"elm": (0.8, 0.1, 5), "oak": (0.7, 0.1, 5)})
    two = write_run("FedCE", {"elm": (0.9, 0.1, 4), "oak": (0.8, 0.1, 5)})
    report = summarise(load_runs([one, two]))
    assert report["compared"] == [["FedAvg"], ["FedCE"]] and report["sites"]["elm"]["scored"] == 4


@pytest.mark.parametrize(
    ("scores", "gain", "verdict"),
    [
        ({"A": 0.5, "B": 0.8, "C": 0.8, "D": 0.8}, None, True),
        ({"A": 0.77, "B": 0.8, "C": 0.8, "D": 0.8}, None, False),  # far by deviations, near by Dice
        ({"A": 0.8, "B": 0.8, "C": 0.8}, None, False),
        ({"A": 0.1 + 0.2, "B": 0.3, "C": 0.3}, None, False),  # equal but for rounding
        ({"A": 0.75, "B": 0.8, "C": 0.9}, None, False),
        ({"A": 0.9, "B": 0.8, "C": 0.9}, -0.021, True),
        ({"A": 0.9, "B": 0.8, "C": 0.9}, 0.88 - 0.9, False),  # 0.02 lower is not more than 0.02
        ({"A": 0.1, "B": 0.9}, 0.0, False),
        ({"A": 0.9}, -0.1, True),
    ],
)
def test_left_behind_follows_its_two_rules(
    scores: dict[str, float], gain: float | None, verdict: bool
) -> None:
    numbers = {site: Number(value, 0.001, 30) for site, value in scores.items()}
    certain_gain = None
    if gain is not None:
        certain_gain = Gain(gain, alone=scores["A"] - gain, within_noise=False)
    found = left_behind("A", numbers, certain_gain)
    assert found is not None
    assert (found.verdict, found.doubtful) == (verdict, False)


@pytest.mark.parametrize(("stderr", "n"), [(None, 1), (0.05, 2), (0.2, 30)])
def test_where_the_cases_cannot_tell_it_is_doubtful(stderr: float | None, n: int) -> None:
    low = {"A": Number(0.5, stderr, n), **{site: Number(0.8) for site in "BCD"}}
    within_noise = None if stderr is None else True
    found = left_behind("A", low, Gain(-0.1, alone=0.6, within_noise=within_noise))
    assert found is not None
    assert (found.verdict, found.doubtful) == (False, True)


def test_the_interval_is_that_of_a_t_test() -> None:
    scores = [0.4, 0.6]  # their standard error is 0.1
    for mean in (0.75, 1.0, 1.9):
        test = stats.ttest_1samp(scores, mean)
        interval = half_width(0.1, n=2)
        assert interval is not None
        assert (abs(0.5 - mean) > interval) == (test.pvalue < 0.05)


@pytest.mark.parametrize(
    "scores", [{"A": 0.1}, {"A": 0.1, "B": 0.9}, {"B": 0.9, "C": 0.9, "D": 0.9}]
)
def test_where_no_rule_applies_nothing_is_claimed(scores: dict[str, float]) -> None:
    assert (
        left_behind("A", {site: Number(value, 0.001, 30) for site, value in scores.items()}, None)
        is None
    )


def ledger(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]


def end_scores(run: Path) -> dict[str, dict[str, Any]]:
    return {
        site: models["own"]["test_score"]["mean"]
        for site, models in sorted(ledger(run)[-1]["scores"].items())
    }


def edit_end(run: Path, scores: dict[str, Any]) -> Path:
    """Replaces the last record, which nothing follows and so no chain covers."""
    file = run / "ledger.jsonl"
    *lines, last = file.read_text().splitlines()
    file.write_text("\n".join([*lines, json.dumps(json.loads(last) | {"scores": scores})]) + "\n")
    return run


def test_sites_scored_on_other_structures_are_told(write_run: WriteRun) -> None:
    run = write_run("FedAvg", {"drions": 0.8, "drishti": 0.7}, finished=False)
    Ledger(run / "ledger.jsonl").append({"kind": "end", "scores": {
        "drions": {"own": {"test_score": {"mean": 0.8, "disc": 0.8}}},
        "drishti": {"own": {"test_score": {"mean": 0.7, "disc": 0.9, "cup": 0.5}}},
        "idrid": {"own": {"score": {"mean": 0.7, "disc": 0.7}}},
    }})  # fmt: skip
    (warning,) = summarise(load_runs([run]))["warnings"]
    assert "drishti: cup, disc; drions: disc)" in warning  # and not a site without a test score
    alike = write_run("FedCE", {"drions": 0.8, "drishti": 0.7})
    assert not summarise(load_runs([alike]))["warnings"]
