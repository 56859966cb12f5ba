# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Several runs, such as the cells of a comparison: dealt out to processes, and shown together."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from monai_fairfl.server.federation import History
from monai_fairfl.transports.workers import Failed, Work, carry_out
from monai_fairfl.utils.terminal import quiet

logger = logging.getLogger(__name__)

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


class RunsDisplay:
    """Shows how many runs are done and how long the others will take, on standard error.

    It is a bar on a terminal, and elsewhere a line for each run and now and then one between. The
    time left is that of the rounds left, each as long as those so far in the mean.

    Args:
        rounds: title of each run -> number of its rounds.
        done: titles of those that are done before.
        unit: what the runs are called.
    """

    def __init__(self, rounds: Mapping[str, int], done: Collection[str] = (), unit: str = "runs"):
        self.rounds = dict(rounds)
        self.unit = unit
        # Rounds of each run that are done, and how many of these were before this began.
        self.done = {title: rounds[title] if title in done else 0 for title in rounds}
        self.before = sum(self.done.values())
        self.begun = set(done)
        self.ended = len(done)
        self.began = time.monotonic()
        console = _console.get() or Console(stderr=True, highlight=False)
        self.printed = self.before
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[news]}"))
        self.bar = Progress(*columns, console=console, disable=not console.is_terminal)
        self.task = self.bar.add_task("", total=sum(self.rounds.values()), news="")

    def __enter__(self) -> RunsDisplay:
        self.bar.__enter__()
        self._show("")
        return self

    def __exit__(self, *error: Any) -> None:
        self.bar.__exit__(*error)

    def round_done(self, title: str, done: int) -> None:
        """A run begins or goes on, or has finished another round.

        Args:
            title: of the run.
            done: its rounds that are done.
        """
        if title not in self.begun:
            self.begun.add(title)
            self.before += done
        self.done[title] = done
        step = max(1, sum(self.rounds.values()) // LINES)
        is_due = sum(self.done.values()) - self.printed >= step
        self._show(f"{title}: round {done}/{self.rounds[title]}", is_due)

    def run_ended(self, title: str, failed: str | None = None) -> None:
        """A run is done, or failed for this reason."""
        self.ended += 1
        self.done[title] = self.rounds[title]
        outcome = f"{title}: done" if failed is None else f"{title} failed: {failed}"
        self._show(outcome, True, failed is not None)

    def _show(self, news: str, line: bool = False, always: bool = False) -> None:
        """Show news in the bar, or as a line where there is none, or always."""
        done = sum(self.done.values())
        runs = f"{self.ended}/{len(self.rounds)} {self.unit}"
        news += self._left(done)
        self.bar.update(self.task, completed=done, description=runs, news=news)
        if always or (line and self.bar.disable):
            self.printed = done
            self.bar.console.print(f"{runs}, {news}", markup=False, soft_wrap=True)

    def _left(self, done: int) -> str:
        left = sum(self.rounds.values()) - done
        fresh = done - self.before
        if self.ended == len(self.rounds) or (left and fresh < 1):
            return ""
        if not left:
            return "; the last measurements follow"
        seconds = (time.monotonic() - self.began) / fresh * left
        return f"; about {timedelta(seconds=max(1, round(seconds)))} left"


@contextmanager
def display_of(titles: Sequence[str], rounds: int, beside: int) -> Iterator[RunsDisplay | None]:
    """One display of the trainings of these titles; ``None`` where each shows itself.

    Args:
        titles: of the trainings.
        rounds: of each.
        beside: how many processes work on them beside each other.
    """
    if beside == 1 and _console.get() is None:
        yield None
        return
    with quiet(), RunsDisplay(dict.fromkeys(titles, rounds)) as display:
        yield display


def deal_out(
    turns: Sequence[Mapping[str, Work]], devices: Sequence[str], display: RunsDisplay | None
) -> tuple[dict[str, Any], bool]:
    """Do all trainings, in their order as far as several are not done at a time.

    Args:
        turns: title -> a training, of which those of a turn wait for all of the turn before. One
            that a signal stopped returns ``False``, or a history that is not finished.
        devices: of the processes that work at a time.
        display: of all; ``None``: each shows itself.

    Returns:
        Title -> result of those that ended, in the order in which they did; and whether a signal
        asked to stop.

    Raises:
        Exception: what a training raised; the others end at once.
    """
    found: dict[str, Any] = {}

    def ended(title: str, result: Any) -> None:
        found[title] = result
        if display is not None and isinstance(result, Failed):
            display.run_ended(title, result.reason)
        elif display is not None and is_finished(result):
            display.run_ended(title)

    if len(devices) > 1:
        logger.info("%d processes work at a time", len(devices))
    rounds_done = None if display is None else display.round_done
    stopped = False
    for pieces in turns:
        if pieces and not stopped:
            stopped = carry_out(pieces, len(devices), devices, rounds_done, ended)
    return found, stopped


def is_finished(result: Any) -> bool:
    """Whether a training that did not fail came to its end, and no signal stopped it.

    >>> is_finished(True), is_finished(False), is_finished(None)
    (True, False, True)
    """
    if isinstance(result, History):
        return result.finished
    return result is not False
