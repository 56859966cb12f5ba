# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Trainings beside each other, such as the cells of a comparison: dealt out, shown and resumed.

Each is a federation with a folder of its own. They are independent of each other, so they may be
run in any order and in any process.
"""

from __future__ import annotations

import logging
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from monai_fairfl import errors
from monai_fairfl.server import History
from monai_fairfl.transports.workers import Failed, Turn, Work, carry_out
from monai_fairfl.utils.devices import free_memory, usable_cores
from monai_fairfl.utils.terminal import quiet

logger = logging.getLogger(__name__)

CONCERNS_ALL = (OSError, errors.DiskFullError, errors.TransportAborted)
"""Errors of one run that the other ones would meet, too."""

MEMORY_OF_A_WORKER = 1 << 30
"""Bytes that a worker process is expected to need: libraries, a network, some sites' images."""

LINES = 10
"""So many lines of progress, evenly over the rounds, where there is no terminal for a bar."""

CONSOLE: ContextVar[Console | None] = ContextVar("console", default=None)
"""Shows runs, a single one too; ``None``: who asks for them does it."""


class SomeFailed(errors.FederationError):
    """Some of several trainings failed; what the others reached is written."""


# ---- processes and devices


@dataclass(frozen=True)
class Jobs:
    """How many processes work at a time, and on which devices.

    Args:
        number: runs or sites that work at a time, each in a worker process; 1: one after the other
            in this process; ``"auto"``: on CPUs as many as cores and memory allow, on GPUs one for
            each.
        devices: worker 0 takes the first, worker 1 the second, and so on, in turn.
        threads: torch threads of each worker.

    >>> Jobs(4, ["cpu"]).workers(most=3)
    3
    """

    number: int | str
    devices: Sequence[str]
    threads: int = 1

    def workers(self, most: int) -> int:
        """How many worker processes there are; with 1 there is none beside this process.

        Args:
            most: such as the sites of all runs; more workers would have nothing to do.
        """
        if isinstance(self.number, int):
            return min(most, self.number)
        if any(torch.device(device).type != "cpu" for device in self.devices):
            # Nobody knows before the training how much of a GPU's memory a site needs.
            return min(most, len(set(self.devices)))
        by_cores = usable_cores() // self.threads
        by_memory = free_memory() // MEMORY_OF_A_WORKER
        return max(1, min(most, by_cores, by_memory))


# ---- several runs


def show_text(text: str) -> None:
    """Show a text that is printed or logged, too, where a command lets that go into a log."""
    console = CONSOLE.get()
    if console is not None and console.file is not sys.stderr:
        console.print(text, markup=False, soft_wrap=True)


class RunsDisplay(Status):
    """Shows how many rounds are done and how long the others will take, on standard error.

    It is one line on a terminal, and elsewhere one for each run and now and then one between. The
    time left is that of the rounds left, each as long as those so far in the mean.

    Args:
        rounds: title of each run -> number of its rounds.
        done: titles of those that are done before.
    """

    def __init__(self, rounds: Mapping[str, int], done: Collection[str] = ()):
        console = CONSOLE.get() or Console(stderr=True, highlight=False)
        super().__init__("", console=console)
        self.rounds = rounds
        # Rounds of each run that are done, and how many of these were before this began.
        self.done = {title: rounds[title] for title in done}
        self.before = self.printed = sum(self.done.values())
        self.began = time.monotonic()

    def round_done(self, title: str, done: int, outcome: str = "") -> None:
        """A run begins or goes on, has finished another round, or has ended.

        Args:
            title: of the run.
            done: its rounds that are done.
            outcome: of a run that has ended.
        """
        if title not in self.done:
            self.before += done
        self.done[title] = done
        news = title + (outcome or f": round {done}/{self.rounds[title]}")
        done, total = sum(self.done.values()), sum(self.rounds.values())
        if self.before < done < total:
            seconds = (time.monotonic() - self.began) / (done - self.before) * (total - done)
            news += f"; about {timedelta(seconds=round(seconds))} left"
        text = f"{done}/{total} rounds, {news}"
        self.update(escape(text))
        if outcome or (not self.console.is_terminal and done - self.printed >= total / LINES):
            self.printed = done
            self.console.print(text, markup=False, soft_wrap=True)


@dataclass(frozen=True)
class Training:
    """A federation that is trained beside others.

    Args:
        title: how messages call it; each has one of its own.
        rounds: of it.
        run: trains it to its end, or goes on with what its folder holds; returns ``False``, or a
            history that is not finished, when a signal stopped it. Several are only run at a time
            where this can be sent to another process.
        waits: whether it needs what those that do not wait leave.
    """

    title: str
    rounds: int
    run: Work
    waits: bool = False


def deal_out(
    trainings: Sequence[Training],
    jobs: Jobs,
    most: int,
    done: Collection[str] = (),
    apart: bool = False,
) -> tuple[dict[str, Any], dict[str, str], bool]:
    """Do all trainings, in their order as far as several are not done at a time, and show them.

    Of several, one that fails does not stop the others. A single one shows itself, unless a command
    does.

    Args:
        trainings: in the order in which they begin.
        jobs: processes that work at a time, and their devices; the numbers are the same.
        most: processes that a training may use.
        done: titles of those that are done before.
        apart: whether a single one is treated as several are.

    Returns:
        Title -> result of those that ended, in the order in which they did; title -> reason of
        those that failed; and whether a signal asked to stop.

    Raises:
        Exception: what a single training raised, or what others would meet, too.
    """
    todo = [training for training in trainings if training.title not in done]
    apart = apart or len(trainings) > 1
    if apart:
        todo = [replace(one, run=partial(attempted, one.title, one.run)) for one in todo]
    number = jobs.workers(most * len(todo))
    devices = [jobs.devices[each % len(jobs.devices)] for each in range(number)]
    rounds = {training.title: training.rounds for training in trainings}
    display = RunsDisplay(rounds, done) if apart or CONSOLE.get() else None
    found: dict[str, Any] = {}
    failed: dict[str, str] = {}

    def ended(title: str, result: Any) -> None:
        outcome = ": done"
        if isinstance(result, Failed):
            failed[title] = result.reason
            outcome = f" failed: {result.reason}"
        else:
            found[title] = result
        if display is not None and getattr(result, "finished", result) is not False:
            display.round_done(title, rounds[title], outcome)

    stopped = False
    with quiet(), display or nullcontext():
        for waits in (False, True):
            pieces = {one.title: one.run for one in todo if one.waits == waits}
            if pieces and not stopped:
                shown = display.round_done if display else None
                stopped = carry_out(pieces, Turn(number, devices), shown, ended)
    return found, failed, stopped


def attempted(title: str, work: Work, turn: Turn) -> Any:
    """Do a piece of work; an error that concerns it alone is logged, and returned as ``Failed``.

    The log has the traceback where the error is a fault of the code.

    Args:
        title: of the work.
        work: that may fail.
        turn: what it may use.

    Raises:
        Exception: what others would meet, too, such as a full disk.
    """
    try:
        return work(turn)
    except CONCERNS_ALL:
        raise
    except Exception as error:
        is_ours = isinstance(error, errors.FairFLError)
        reason = str(error) if is_ours else errors.in_words(error)
        logger.error("%s failed: %s", title, reason, exc_info=not is_ours)
        return Failed(reason)


def failure_of(failed: Mapping[str, str], number: int) -> SomeFailed:
    """The error that ends a comparison in which some runs failed.

    Args:
        failed: name of each -> reason.
        number: of all runs.
    """
    reasons = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
    return SomeFailed(f"{len(failed)} of {number} failed ({reasons}): --resume True tries again")


def run_trainings(
    trainings: Sequence[Training],
    jobs: Jobs,
    done: Collection[str] = (),
    most: int = 1,
) -> dict[str, str]:
    """Run all trainings that are not done, as :func:`deal_out`.

    Returns:
        Title -> reason of those that failed.

    Raises:
        FederationError: a signal stopped them.
    """
    found, failed, stopped = deal_out(trainings, jobs, most, done, apart=True)
    if stopped or False in found.values():
        raise errors.FederationError("stopped: the same command goes on after the last whole round")
    return failed


def remove_spare(folder: Path) -> None:
    """Remove of a finished run what only one that is resumed would need: most of its size."""
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    # A model that is a site's own stays.
    for state in folder.glob("sites/*/state/*-round-*.pt"):
        state.unlink()


def run_logged(folder: Path, run: Callable[[Turn], Sequence[History]], turn: Turn) -> bool:
    """Run a federation of one strategy; ``log.txt`` gets what it prints and a copy of its log.

    Args:
        folder: of its run.
        run: runs it.
        turn: what it may use.

    Returns:
        Whether it is finished; ``False`` when a signal stopped it.

    Raises:
        Exception: when the federation cannot go on; ``log.txt`` has the traceback.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(folder / "log.txt", encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    of_package = logging.getLogger("monai_fairfl")
    of_package.addHandler(handler)
    try:
        # A display of all runs may draw on the terminal.
        with redirect_stdout(handler.stream):
            histories = run(turn)
    except Exception:
        traceback.print_exc(file=handler.stream)
        raise
    finally:
        of_package.removeHandler(handler)
        handler.close()
    # There is none where a signal came before the run began.
    return bool(histories) and histories[0].finished
