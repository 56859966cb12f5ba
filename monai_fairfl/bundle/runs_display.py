# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""One display of several runs, such as the cells of a comparison, with the time left for all."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

LINES = 10
"""So many lines of progress, evenly over the rounds, where there is no terminal for a bar."""

_console: ContextVar[Console | None] = ContextVar("console", default=None)
_rest_in_log: ContextVar[bool] = ContextVar("rest_in_log", default=False)


@contextmanager
def shown_on(console: Console, rest_in_log: bool = False) -> Iterator[None]:
    """Let the runs within be shown there, a single one too, whatever standard error is.

    Args:
        console: of the command that runs them.
        rest_in_log: whether all other output goes into a log, so that :func:`show_text` shows.
    """
    token = _console.set(console)
    token_of_rest = _rest_in_log.set(rest_in_log)
    try:
        yield
    finally:
        _rest_in_log.reset(token_of_rest)
        _console.reset(token)


def show_text(text: str) -> None:
    """Show a text that is printed or logged, too, where a command lets that go into a log."""
    console = _console.get()
    if console is not None and _rest_in_log.get():
        console.print(text, markup=False, soft_wrap=True)


def is_shown() -> bool:
    """Whether a command shows the runs of this moment, so that none shows itself."""
    return _console.get() is not None


class RunsDisplay:
    """Shows how many runs are done and how long the others will take.

    It is a bar on a terminal, and a line for each run elsewhere, on standard error. For a command,
    see :func:`shown_on`, it prints a line now and then elsewhere.

    Args:
        kinds: title of each run -> what decides how long its rounds take, such as its strategy.
        rounds: of each run, or title -> rounds of that run.
        done: title of each run that is done before -> seconds of its rounds.
        at_a_time: how many run at a time.
        unit: what the runs are called.
    """

    def __init__(
        self,
        kinds: Mapping[str, str],
        rounds: int | Mapping[str, int],
        done: Mapping[str, Sequence[float]] | None = None,
        at_a_time: int = 1,
        unit: str = "runs",
    ):
        self.kinds = dict(kinds)
        if isinstance(rounds, int):
            rounds = dict.fromkeys(kinds, rounds)
        self.rounds = rounds
        self.at_a_time = at_a_time
        self.unit = unit
        self.rounds_done: dict[str, int] = dict.fromkeys(kinds, 0)
        # Kind -> seconds of the rounds that were timed.
        self.seconds: dict[str, list[float]] = {}
        self.ended = 0
        for title, seconds in (done or {}).items():
            self.ended += 1
            self.rounds_done[title] = self.rounds[title]
            self.seconds.setdefault(self.kinds[title], []).extend(seconds)
        # Title of each that runs -> when it began or its last round was done.
        self.running: dict[str, float] = {}
        self.of_a_command = _console.get()
        console = self.of_a_command or Console(stderr=True, highlight=False)
        self.is_terminal = console.is_terminal
        # Rounds of all runs at the last line.
        self.rounds_printed = sum(self.rounds_done.values())
        self.bar = Progress(
            TextColumn("{task.fields[runs]}"),
            BarColumn(),
            TextColumn("{task.fields[news]}"),
            TextColumn("{task.fields[left]}"),
            console=console,
            disable=not self.is_terminal,
        )
        self.task: TaskID | None = None

    def __enter__(self) -> RunsDisplay:
        self.bar.__enter__()
        total = sum(self.rounds.values())
        self.task = self.bar.add_task("", total=total, runs="", news="", left="")
        self._show("")
        return self

    def __exit__(self, *error: Any) -> None:
        self.bar.__exit__(*error)

    def round_done(self, title: str, done: int, took: float | None = None) -> None:
        """A run begins or goes on, or has finished another round.

        Args:
            title: of the run.
            done: its rounds that are done.
            took: seconds of the last one; ``None``: the time since the call before.
        """
        now = time.monotonic()
        if title in self.running and done > self.rounds_done[title]:
            seconds = now - self.running[title] if took is None else took
            self.seconds.setdefault(self.kinds[title], []).append(seconds)
        self.running[title] = now
        self.rounds_done[title] = done
        news = f"{title}: round {done}/{self.rounds[title]}"
        self._show(news)
        if self.of_a_command is not None:
            self._print_now_and_then(news)

    def run_ended(self, title: str, failed: str | None = None) -> None:
        """A run is done, or failed for this reason."""
        self.ended += 1
        self.running.pop(title, None)
        self.rounds_done[title] = self.rounds[title]
        outcome = f"{title}: done"
        if failed is not None:
            outcome = f"{title} failed: {failed}"
        self._show(outcome)
        if not self.is_terminal or failed is not None:
            line = f"{self.ended}/{len(self.kinds)} {outcome}{self._left_words()}"
            self._print(line)

    def _print_now_and_then(self, news: str) -> None:
        """A line of progress where there is no bar."""
        done = sum(self.rounds_done.values())
        step = max(1, sum(self.rounds.values()) // LINES)
        if self.is_terminal or done - self.rounds_printed < step:
            return
        self.rounds_printed = done
        self._print(f"{news}{self._left_words()}")

    def _print(self, line: str) -> None:
        self.bar.console.print(line, markup=False, soft_wrap=True)

    def seconds_left(self) -> float | None:
        """Seconds that the rounds left will take; ``None`` where no round was timed.

        A run's rounds take as long as those of its kind so far, or as those of all where that has
        none: as their median, because the first round of a run loads its images too. So many at a
        time share the sum, and nothing is done before its longest run.
        """
        timed: list[float] = []
        for seconds in self.seconds.values():
            timed.extend(seconds)
        if not timed:
            return None
        left = []
        for title, kind in self.kinds.items():
            of_kind = self.seconds.get(kind, timed)
            left.append(median(of_kind) * (self.rounds[title] - self.rounds_done[title]))
        return max(sum(left) / self.at_a_time, max(left))

    def _left_words(self) -> str:
        left = self.seconds_left()
        if left is None or self.ended == len(self.kinds):
            return ""
        if self.rounds_done == self.rounds:
            return "; the last measurements follow"
        return f"; about {timedelta(seconds=max(1, round(left)))} left for all"

    def _show(self, news: str) -> None:
        if self.task is None:
            return
        self.bar.update(
            self.task,
            completed=sum(self.rounds_done.values()),
            runs=f"{self.ended}/{len(self.kinds)} {self.unit}",
            news=news,
            left=self._left_words().removeprefix("; "),
        )
