# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The one display of several runs, and the time left for all of them."""

from __future__ import annotations

import sys
from io import StringIO

import pytest
from rich.console import Console

from monai_fairfl.bundle import runs_display
from monai_fairfl.bundle.runs_display import RunsDisplay, shown_on
from monai_fairfl.server.progress import Progress, shown_by
from monai_fairfl.strategies import RoundResult

ROUNDS = 4
KINDS = {
    "FedAvg, seed 0": "FedAvg",
    "CGSV, seed 0": "CGSV",
    "FedAvg, seed 1": "FedAvg",
    "CGSV, seed 1": "CGSV",
}
TITLES = list(KINDS)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(runs_display, "time", made)
    return made


def run_rounds(display: RunsDisplay, clock: Clock, title: str, seconds: float, n: int) -> None:
    """A run begins and finishes n rounds of so many seconds."""
    display.round_done(title, 0)
    for number in range(n):
        clock.now += seconds
        display.round_done(title, number + 1)


def test_a_command_is_shown_an_estimate_and_a_line_now_and_then(clock: Clock) -> None:
    written = StringIO()
    with shown_on(Console(file=written, width=200)):
        display = RunsDisplay({"FedCE": "FedCE"}, 40)
    with display:
        display.round_done("FedCE", 0)
        # The engine's start is no round.
        clock.now += 1000
        display.round_done("FedCE", 1, took=60)
        run_rounds_after(display, clock, "FedCE", 60, range(2, 41))
        display.run_ended("FedCE")
    lines = written.getvalue().splitlines()
    assert lines[0] == "FedCE: round 4/40; about 0:36:00 left for all"
    assert len(lines) == runs_display.LINES + 1
    assert lines[-1] == "1/1 FedCE: done"


def run_rounds_after(
    display: RunsDisplay, clock: Clock, title: str, seconds: float, numbers: range
) -> None:
    for number in numbers:
        clock.now += seconds
        display.round_done(title, number)


def test_the_time_left_is_that_of_all_runs_each_as_slow_as_its_strategy(clock: Clock) -> None:
    display = RunsDisplay(KINDS, ROUNDS)
    assert display.seconds_left() is None
    run_rounds(display, clock, TITLES[0], 10, ROUNDS)
    display.run_ended(TITLES[0])
    # CGSV is not timed yet: as FedAvg. Three runs of four rounds are left.
    assert display.seconds_left() == 3 * ROUNDS * 10

    # What lies between two runs is no round.
    clock.now += 1000
    run_rounds(display, clock, TITLES[1], 50, 2)
    left_of_cgsv = (2 + ROUNDS) * 50
    assert display.seconds_left() == left_of_cgsv + ROUNDS * 10


def test_runs_at_a_time_share_the_time_and_each_is_timed_by_itself(clock: Clock) -> None:
    display = RunsDisplay(KINDS, ROUNDS, at_a_time=2)
    display.round_done(TITLES[0], 0)
    clock.now += 5
    display.round_done(TITLES[1], 0)
    clock.now += 5
    display.round_done(TITLES[0], 1)
    clock.now += 25
    display.round_done(TITLES[1], 1)
    assert display.seconds == {"FedAvg": [10], "CGSV": [30]}
    assert display.seconds_left() == ((3 + 4) * 10 + (3 + 4) * 30) / 2

    for title in TITLES[:3]:
        display.run_ended(title)
    # Nothing shares the last one.
    assert display.seconds_left() == 4 * 30


def test_runs_may_have_rounds_of_their_own(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    display = RunsDisplay(KINDS, dict(zip(TITLES, [2, 3, 4, 10])))
    run_rounds(display, clock, TITLES[0], 10, 2)
    display.run_ended(TITLES[0])
    assert display.seconds_left() == (3 + 4 + 10) * 10
    assert "about 0:02:50 left" in capsys.readouterr().err


def test_a_run_that_goes_on_after_its_process_ended_has_no_round_in_between(clock: Clock) -> None:
    display = RunsDisplay(KINDS, ROUNDS)
    run_rounds(display, clock, TITLES[0], 10, 2)
    clock.now += 1000
    display.round_done(TITLES[0], 1)
    clock.now += 10
    display.round_done(TITLES[0], 2)
    assert display.seconds == {"FedAvg": [10, 10, 10]}


def test_runs_done_before_count_with_the_seconds_that_they_recorded() -> None:
    display = RunsDisplay(KINDS, ROUNDS, {TITLES[0]: [7.0] * ROUNDS})
    assert display.ended == 1
    assert display.seconds_left() == 3 * ROUNDS * 7


def test_a_failed_run_is_named_with_its_reason_and_costs_no_more_time(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    display = RunsDisplay(KINDS, ROUNDS)
    run_rounds(display, clock, TITLES[0], 10, 1)
    display.run_ended(TITLES[0], "no client [red]answered[/red]")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "1/4 FedAvg, seed 0 failed: no client [red]answered[/red]; about 0:02:00" in shown.err


def test_a_federation_within_reports_its_rounds_and_draws_no_bar_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    rounds: list[int] = []
    result = RoundResult({"w": None}, {"A": 1.0}, {})  # type: ignore[dict-item]
    with shown_by(rounds.append):
        within = Progress(3, 1, "FedAvg")
        with within as progress:
            progress.round_done(1, 0.1, {}, result)
    assert rounds == [1, 2]
    assert within.bar.disable
    assert not Progress(3, 1, "FedAvg").bar.disable


def test_no_time_is_left_only_when_all_has_ended(clock: Clock) -> None:
    written = StringIO()
    display = RunsDisplay({"Standalone": "Standalone", "FedAvg": "FedAvg"}, 2)
    display.bar.console.file = written
    for title in ("Standalone", "FedAvg"):
        run_rounds(display, clock, title, 0.2, 1)
    display.round_done("FedAvg", 2)
    assert display._left_words() == "; about 0:00:01 left for all"
    display.run_ended("FedAvg")
    display.round_done("Standalone", 2)
    assert display._left_words() == "; the last measurements follow"
    display.run_ended("Standalone")
    assert display._left_words() == ""
