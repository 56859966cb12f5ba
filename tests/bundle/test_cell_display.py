# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The one display of all cells of a comparison, and the time left for all of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from monai_fairfl.bundle import cell_display
from monai_fairfl.bundle.cell_display import CellDisplay
from monai_fairfl.bundle.cells import Cell
from monai_fairfl.run_folder.schedule import Schedule
from monai_fairfl.server.progress import Progress, shown_by
from monai_fairfl.strategies import RoundResult

ROUNDS = 4
CELLS = [Cell(name, name, seed, None) for seed in (0, 1) for name in ("FedAvg", "CGSV")]


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(cell_display, "time", made)
    return made


def run_rounds(display: CellDisplay, clock: Clock, cell: Cell, seconds: float, n: int) -> None:
    """A cell begins and finishes n rounds of so many seconds."""
    display.round_done(cell, 0)
    for number in range(n):
        clock.now += seconds
        display.round_done(cell, number + 1)


def test_the_time_left_is_that_of_all_cells_each_as_slow_as_its_strategy(
    clock: Clock, tmp_path: Path
) -> None:
    display = CellDisplay(CELLS, [], ROUNDS, tmp_path)
    assert display.seconds_left() is None
    run_rounds(display, clock, CELLS[0], 10, ROUNDS)
    display.cell_ended(CELLS[0])
    # CGSV is not timed yet: as FedAvg. Three cells of four rounds are left.
    assert display.seconds_left() == 3 * ROUNDS * 10

    # What lies between two cells is no round.
    clock.now += 1000
    run_rounds(display, clock, CELLS[1], 50, 2)
    left_of_cgsv = (2 + ROUNDS) * 50
    assert display.seconds_left() == left_of_cgsv + ROUNDS * 10


def test_cells_done_before_count_with_the_seconds_that_they_recorded(tmp_path: Path) -> None:
    folder = CELLS[0].folder(tmp_path)
    folder.mkdir(parents=True)
    schedule = Schedule.begun(folder, ROUNDS, resumed=False)
    for number in range(ROUNDS):
        schedule.took(folder, number, 7.0)
    display = CellDisplay(CELLS, CELLS[:1], ROUNDS, tmp_path)
    assert display.ended == 1
    assert display.seconds_left() == 3 * ROUNDS * 7


def test_a_failed_cell_is_named_with_its_reason_and_costs_no_more_time(
    clock: Clock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    display = CellDisplay(CELLS, [], ROUNDS, tmp_path)
    run_rounds(display, clock, CELLS[0], 10, 1)
    display.cell_ended(CELLS[0], "no client [red]answered[/red]")
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
