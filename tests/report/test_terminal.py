# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The comparison on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from monai_fairfl.report import as_text, summary_table
from monai_fairfl.report.collect import load_runs
from monai_fairfl.report.summary import summarise

WriteRun = Callable[..., Path]


def printed(report: Mapping[str, Any]) -> str:
    """The table as a terminal of 80 characters shows it."""
    console = Console(width=80)
    with console.capture() as captured:
        console.print(summary_table(report))
    return captured.get()


def test_the_terminal_shows_sites_and_fairness_for_each_strategy(comparison: Path) -> None:
    report = summarise(load_runs([comparison]))
    text = printed(report)
    assert "Dice on test cases" in text
    assert "…" not in text
    for word in ("Standalone", "FedAvg", "FedCE", "hazel", "Worst", "Jain index", "Pearson"):
        assert word in text
    assert f"{report['strategies']['FedCE']['performance']['mean']:.3f}" in text


def test_many_strategies_are_shown_in_blocks_and_no_number_is_cut(
    write_run: WriteRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = [f"Strategy{letter}" for letter in "ABCDEFGHIJ"]
    runs = [write_run(name, {"elm": 0.8125, "oak": 0.75}) for name in names]
    text = as_text(summarise(load_runs(runs)))
    tables = [line for line in text.splitlines() if set(line) & set("│┃━─")]
    for name in names:
        assert any(name in line for line in tables)
    assert "…" not in text
    assert "".join(tables).count("0.812") == len(names)
    assert max(len(line) for line in tables) <= 80


def test_names_are_no_markup_on_the_terminal_and_an_unfinished_run_is_starred(
    write_run: WriteRun,
) -> None:
    done = write_run("FedAvg", {"[red]elm": 0.5})
    partly = write_run("FedCE", {"[red]elm": 0.5}, finished=False)
    report = summarise(load_runs([done, partly]))
    assert "FedCE: it is unfinished after 1 of 1 rounds." in as_text(report)
    text = printed(report)
    assert "[red]elm" in text
    assert "FedCE *" in text
    assert "not compared" in text


def test_a_contribution_without_a_share_is_shown_as_a_number(write_run: WriteRun) -> None:
    rounds = [
        {"contributions": {"elm": 0.9, "oak": 0.7}},
        {"contributions": {"elm": 0.8, "oak": 0.6}},
    ]
    run = write_run("Mine", {"elm": 0.5, "oak": 0.6}, rounds=rounds)
    text = as_text(summarise(load_runs([run])))
    assert "Dice 0.600; contribution 0.6000; over rounds 0.6000 to 0.7000" in text
