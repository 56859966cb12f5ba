# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The comparison on the terminal and the CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from monai_fairfl.report import as_text, summary_table
from monai_fairfl.report.collect import load_runs
from monai_fairfl.report.summary import summarise
from monai_fairfl.report.tables import (
    Column,
    columns,
    contributions_csv,
    judged_groups,
    metrics_csv,
)

WriteRun = Callable[..., Path]


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_metrics_hold_every_measurement_of_every_round_site_and_class(comparison: Path) -> None:
    found = rows(metrics_csv(load_runs([comparison / "FedAvg"])))
    run = ["run", "strategy", "seed", "fold"]
    assert list(found[0]) == [*run, "site", "round", "measurement", "class", "value", "stderr", "n"]
    received = [
        r
        for r in found
        if (r["site"], r["measurement"], r["class"]) == ("rowan", "global_score", "gland")
    ]
    assert [row["round"] for row in received] == ["0", "1", "3"]  # quarantined in round 2
    (last,) = [
        r
        for r in found
        if (r["site"], r["measurement"], r["class"]) == ("elm", "own:test_score", "mean")
    ]
    assert (
        (last["round"], last["n"]) == ("4", "2")
        and 0 < float(last["value"]) < 1
        and float(last["stderr"]) > 0
    )


def test_contributions_hold_both_numbers_of_each_round(comparison: Path) -> None:
    found = rows(contributions_csv(summarise(load_runs([comparison]))))
    run = ["run", "strategy", "seed", "fold"]
    fields = [*run, "round", "site", "contribution", "stderr", "aggregation_weight", "weight_is"]
    assert list(found[0]) == fields
    first = {
        r["site"]: float(r["aggregation_weight"])
        for r in found
        if (r["strategy"], r["round"]) == ("FedAvg", "0")
    }
    assert first == pytest.approx({"elm": 4 / 35, "hazel": 6 / 35, "oak": 9 / 35, "rowan": 16 / 35})
    assert {r["site"] for r in found if (r["strategy"], r["round"]) == ("FedCE", "1")} == {
        "hazel",
        "oak",
        "rowan",
    }
    assert all(r["stderr"] for r in found if (r["strategy"], r["round"]) == ("FedCE", "3"))


def test_the_rows_of_every_table_say_run_strategy_seed_and_fold(write_run: WriteRun) -> None:
    rounds = [{"measurements": {"elm": {"global_score": 0.5}}, "aggregation": {"elm": 1.0}}]
    config = {"overrides": {"split_fold": 2}}
    runs = []
    for seed in (0, 1):
        name = {"name": "FedCE-sum", "seed": seed, "folder": f"seed{seed}"}
        runs.append(write_run("FedCE", {"elm": 0.8}, rounds=rounds, config=config, **name))
    found = load_runs(runs)
    expected = [
        ("FedCE-sum (seed 0)", "FedCE-sum", "0", "2"),
        ("FedCE-sum (seed 1)", "FedCE-sum", "1", "2"),
    ]
    for table in (rows(metrics_csv(found)), rows(contributions_csv(summarise(found)))):
        about = [(row["run"], row["strategy"], row["seed"], row["fold"]) for row in table]
        assert sorted(set(about)) == expected


def test_no_cell_of_a_table_is_run_by_a_spreadsheet(write_run: WriteRun) -> None:
    evil = ['=HYPERLINK("http://x")', "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"]
    rounds = [
        {
            "measurements": {site: {"global_loss": -0.5} for site in evil},
            "aggregation": dict.fromkeys(evil, -0.2),
        }
    ]
    runs = load_runs([write_run("FedAvg", dict.fromkeys(evil, 0.5), rounds=rounds, name="=FedAvg")])
    for text in (metrics_csv(runs), contributions_csv(summarise(runs))):
        table = list(csv.reader(io.StringIO(text, newline="")))
        numbers = [
            cell for row in table for cell in row if cell.startswith("-") and float(cell) < 0
        ]
        assert numbers  # a negative number stays one
        texts = [cell for row in table for cell in row if cell not in numbers]
        assert not [cell for cell in texts if cell[:1] in tuple("=+-@\t\r")]
        assert {site for row in table for site in row if site[1:] in evil} == {
            f"'{site}" for site in evil
        }


def test_weights_averaged_over_layers_say_so(write_run: WriteRun) -> None:
    layered = {"aggregation": {"conv": {"elm": 0.1, "oak": 0.9}, "head": {"elm": 0.3, "oak": 0.7}}}
    run = write_run("FedLWR", {"elm": 0.7, "oak": 0.8}, rounds=[layered])
    found = rows(contributions_csv(summarise(load_runs([run]))))
    assert {r["weight_is"] for r in found} == {"mean over 2 layers"} and found[0][
        "contribution"
    ] == ""


def test_the_best_is_the_highest_mean_and_the_lowest_spread_and_ties_share_it(
    write_run: WriteRun,
) -> None:
    runs = [
        write_run(name, dict(zip("ABC", v)))
        for name, v in (("P", (0.6, 0.7, 0.8)), ("Q", (0.6, 0.9, 0.9)))
    ]
    report = summarise(load_runs(runs))
    best = {column.title: column.winners(judged_groups(report)) for column in columns(report)}
    assert (best["Mean"], best["Std"], best["Gap"], best["C"]) == ({"Q"}, {"P"}, {"P"}, {"Q"})
    assert best["A"] == best["Worst"] == set()  # all alike
    assert (
        Column("Mean", {"P": 0.9, "Q": 0.2}, best=1).winners([["Q"]]) == set()
    )  # nobody to be better than


def test_the_terminal_shows_sites_and_fairness_for_each_strategy(comparison: Path) -> None:
    report = summarise(load_runs([comparison]))
    console = Console(width=80)
    with console.capture() as captured:
        console.print(summary_table(report))
    text = captured.get()
    assert "Dice on test cases" in text and "…" not in text
    for word in ("Standalone", "FedAvg", "FedCE", "hazel", "Worst", "Jain index", "Pearson"):
        assert word in text
    assert f"{report['strategies']['FedCE']['performance']['mean']:.3f}" in text


def test_many_strategies_are_shown_in_blocks_and_no_number_is_cut(
    write_run: WriteRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = [f"Strategy{letter}" for letter in "ABCDEFGHIJ"]
    runs = [write_run(name, {"elm": 0.8125, "oak": 0.75}) for name in names]
    report = summarise(load_runs(runs))
    text = as_text(report | {"sentences": {}})
    assert all(name in text for name in names) and "…" not in text
    assert text.count("0.812") >= len(names) and max(map(len, text.splitlines())) <= 80


def test_names_are_no_markup_on_the_terminal_and_an_unfinished_run_is_starred(
    write_run: WriteRun,
) -> None:
    done = write_run("FedAvg", {"[red]elm": 0.5})
    partly = write_run("FedCE", {"[red]elm": 0.5}, finished=False)
    console = Console(width=80)
    with console.capture() as captured:
        console.print(summary_table(summarise(load_runs([done, partly]))))
    assert (
        "[red]elm" in captured.get()
        and "FedCE *" in captured.get()
        and "not compared" in captured.get()
    )


def test_groups_of_sites_have_means_of_their_own(write_run: WriteRun) -> None:
    groups = {"corrupted": ["elm"], "clean": ["hazel", "oak"]}
    scores = {"elm": 0.5, "hazel": 0.8, "oak": 0.9}
    runs = [write_run(name, scores, groups=groups) for name in ("FedAvg", "FedISM")]
    report = summarise(load_runs(runs))
    found = {column.title: column.values["FedISM"] for column in columns(report)}
    assert found["Mean, corrupted"] == 0.5 and found["Mean, clean"] == pytest.approx(0.85)
    assert report["groups"] == groups and "Mean, corrupted" in as_text({**report, "sentences": {}})
