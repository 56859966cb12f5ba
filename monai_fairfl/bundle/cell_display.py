# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""One display of all cells of a comparison, with the time left for all of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from monai_fairfl.bundle.cells import Cell
from monai_fairfl.run_folder.schedule import Schedule


class CellDisplay:
    """Shows how many cells are done and how long the others will take.

    It is a bar on a terminal, and a line for each cell elsewhere, on standard error.

    Args:
        cells: all of the comparison.
        done: those that are done before.
        rounds: of each cell.
        out: folder of the comparison, whose cells record the seconds of their rounds.
    """

    def __init__(self, cells: Sequence[Cell], done: Sequence[Cell], rounds: int, out: Path):
        self.cells = list(cells)
        self.rounds = rounds
        self.out = out
        self.rounds_done: dict[Cell, int] = dict.fromkeys(cells, 0)
        self.seconds: dict[str, list[float]] = {}
        for cell in done:
            self.rounds_done[cell] = rounds
            self._read_seconds(cell)
        self.ended = len(done)
        # The cell that runs, and when it began or its last round was done.
        self.running: Cell | None = None
        self.last = time.monotonic()
        self.is_terminal = sys.stderr.isatty()
        self.bar = Progress(
            TextColumn("{task.fields[cells]}"),
            BarColumn(),
            TextColumn("{task.fields[news]}"),
            TextColumn("{task.fields[left]}"),
            console=Console(stderr=True, highlight=False),
            disable=not self.is_terminal,
        )
        self.task: TaskID | None = None

    def __enter__(self) -> CellDisplay:
        self.bar.__enter__()
        total = self.rounds * len(self.cells)
        self.task = self.bar.add_task("", total=total, cells="", news="", left="")
        self._show("")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bar.__exit__(kind, error, trace)

    def round_done(self, cell: Cell, done: int) -> None:
        """A cell begins or goes on, or has finished another round.

        Args:
            cell: that runs.
            done: its rounds that are done.
        """
        now = time.monotonic()
        if cell == self.running:
            self.seconds.setdefault(cell.strategy, []).append(now - self.last)
        self.running = cell
        self.last = now
        self.rounds_done[cell] = done
        self._show(f"{cell.title}: round {done}/{self.rounds}")

    def cell_ended(self, cell: Cell, failed: str | None = None) -> None:
        """A cell is done, or failed for this reason."""
        self.ended += 1
        self.running = None
        self.rounds_done[cell] = self.rounds
        outcome = f"{cell.title}: done"
        if failed is not None:
            outcome = f"{cell.title} failed: {failed}"
        self._show(outcome)
        if not self.is_terminal or failed is not None:
            line = f"{self.ended}/{len(self.cells)} {outcome}{self._left_words()}"
            self.bar.console.print(line, markup=False, soft_wrap=True)

    def seconds_left(self) -> float | None:
        """Seconds that the rounds left will take; ``None`` where no round was timed.

        A strategy's rounds take as long as its rounds so far, or as those of all where it has none.
        """
        timed: list[float] = []
        for seconds in self.seconds.values():
            timed.extend(seconds)
        if not timed:
            return None
        left = 0.0
        for cell in self.cells:
            of_strategy = self.seconds.get(cell.strategy, timed)
            mean = sum(of_strategy) / len(of_strategy)
            left += mean * (self.rounds - self.rounds_done[cell])
        return left

    def _read_seconds(self, cell: Cell) -> None:
        recorded = Schedule.read(cell.folder(self.out)).seconds
        if recorded:
            self.seconds.setdefault(cell.strategy, []).extend(recorded.values())

    def _left_words(self) -> str:
        left = self.seconds_left()
        if left is None or self.ended == len(self.cells):
            return ""
        return f"; about {timedelta(seconds=round(left))} left for all"

    def _show(self, news: str) -> None:
        if self.task is None:
            return
        self.bar.update(
            self.task,
            completed=sum(self.rounds_done.values()),
            cells=f"{self.ended}/{len(self.cells)} cells",
            news=news,
            left=self._left_words().removeprefix("; "),
        )
