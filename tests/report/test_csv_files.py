# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The files metrics.csv and contributions.csv."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest

from monai_fairfl.report.collect import load_runs
from monai_fairfl.report.csv_files import contributions_csv, metrics_csv
from monai_fairfl.report.summary import summarise

WriteRun = Callable[..., Path]
RUN = ["run", "strategy", "seed", "fold"]


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def where(table: list[dict[str, str]], **cells: str) -> list[dict[str, str]]:
    """The rows that have all these cells; ``class`` is written as ``class_``."""
    wanted = {name.rstrip("_"): value for name, value in cells.items()}
    return [row for row in table if wanted.items() <= row.items()]


def test_metrics_hold_every_measurement_of_every_round_site_and_class(comparison: Path) -> None:
    found = rows(metrics_csv(load_runs([comparison / "FedAvg"])))
    fields = ["site", "round", "measurement", "class", "value", "stderr", "n", "of_round"]
    assert list(found[0]) == [*RUN, *fields]
    received = where(found, site="rowan", measurement="global_score", class_="gland")
    assert [row["round"] for row in received] == ["0", "1", "3"]  # quarantined in round 2
    # The initial model, and the results of rounds 0 and 2.
    assert [row["of_round"] for row in received] == ["-1", "0", "2"]
    (last,) = where(found, site="elm", measurement="own:test_score", class_="mean")
    assert (last["round"], last["of_round"], last["n"]) == ("4", "3", "2")
    assert 0 < float(last["value"]) < 1
    assert float(last["stderr"]) > 0


def test_contributions_hold_both_numbers_of_each_round(comparison: Path) -> None:
    found = rows(contributions_csv(summarise(load_runs([comparison]))))
    fields = [*RUN, "round", "site", "contribution", "stderr", "aggregation_weight", "weight_is"]
    assert list(found[0]) == fields
    weights = {}
    for row in where(found, strategy="FedAvg", round="0"):
        weights[row["site"]] = float(row["aggregation_weight"])
    cases = {"elm": 4, "hazel": 6, "oak": 9, "rowan": 16}
    assert weights == pytest.approx({site: count / 35 for site, count in cases.items()})
    # elm was absent in round 1.
    present = {row["site"] for row in where(found, strategy="FedCE", round="1")}
    assert present == {"hazel", "oak", "rowan"}
    assert all(row["stderr"] for row in where(found, strategy="FedCE", round="3"))


def test_the_rows_of_every_table_name_run_strategy_seed_and_fold(write_run: WriteRun) -> None:
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
        about = {(row["run"], row["strategy"], row["seed"], row["fold"]) for row in table}
        assert sorted(about) == expected


def test_no_cell_of_a_table_is_run_by_a_spreadsheet(write_run: WriteRun) -> None:
    evil = ['=HYPERLINK("http://x")', "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"]
    measured = {site: {"global_loss": -0.5} for site in evil}
    rounds = [{"measurements": measured, "aggregation": dict.fromkeys(evil, -0.2)}]
    runs = load_runs([write_run("FedAvg", dict.fromkeys(evil, 0.5), rounds=rounds, name="=FedAvg")])
    for text in (metrics_csv(runs), contributions_csv(summarise(runs))):
        table = csv.reader(io.StringIO(text, newline=""))
        cells = [cell for row in table for cell in row]
        numbers = [cell for cell in cells if cell.startswith("-") and float(cell) < 0]
        assert numbers  # a negative number stays one
        texts = [cell for cell in cells if cell not in numbers]
        assert not [cell for cell in texts if cell[:1] in tuple("=+-@\t\r")]
        marked = {cell for cell in cells if cell[1:] in evil}
        assert marked == {f"'{site}" for site in evil}


def test_weights_of_a_strategy_that_estimates_nothing_are_no_contributions(
    write_run: WriteRun,
) -> None:
    weights = {"elm": 0.2, "oak": 0.8}
    run = write_run(
        "FedAvg",
        {"elm": 0.7, "oak": 0.8},
        rounds=[{"aggregation": {None: weights}, "contributions": weights}],
    )
    found = rows(contributions_csv(summarise(load_runs([run]))))
    assert [row["contribution"] for row in found] == ["", ""]
    assert [float(row["aggregation_weight"]) for row in found] == [0.2, 0.8]


def test_weights_averaged_over_layers_are_called_so(write_run: WriteRun) -> None:
    layered = {"aggregation": {"conv": {"elm": 0.1, "oak": 0.9}, "head": {"elm": 0.3, "oak": 0.7}}}
    run = write_run("FedLWR", {"elm": 0.7, "oak": 0.8}, rounds=[layered])
    found = rows(contributions_csv(summarise(load_runs([run]))))
    assert {row["weight_is"] for row in found} == {"mean over 2 layers"}
    assert found[0]["contribution"] == ""
