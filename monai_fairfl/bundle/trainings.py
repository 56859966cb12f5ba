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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from monai_fairfl.bundle.settings import Settings
from monai_fairfl.errors import (
    ConfigError,
    DiskFullError,
    FairFLError,
    FederationError,
    TransportAborted,
    in_words,
)
from monai_fairfl.transports.workers import Failed, Turn, Work, at_a_time, carry_out
from monai_fairfl.utils.arguments import is_whole
from monai_fairfl.utils.devices import free_memory, require_device, usable_cores
from monai_fairfl.utils.terminal import quiet

if TYPE_CHECKING:
    from monai_fairfl.bundle.federation import BundleFederation

logger = logging.getLogger(__name__)

CONCERNS_ALL = (OSError, DiskFullError, TransportAborted)
"""Errors of one run that the other ones would meet, too."""

MEMORY_OF_A_WORKER = 1 << 30
"""Bytes that a worker process is expected to need: libraries, a network, some sites' images."""

LINES = 10
"""So many lines of progress, evenly over the rounds, where there is no terminal for a bar."""

_console: ContextVar[Console | None] = ContextVar("console", default=None)


class SomeFailed(FederationError):
    """Some of several trainings failed; what the others reached is written."""


# ---- processes and devices


@dataclass(frozen=True)
class Jobs:
    """How many processes work at a time, and on which devices.

    Args:
        number: runs or sites that work at a time, each in a worker process; 1: one after the other
            in this process; ``None`` or ``"auto"``: on CPUs as many as cores and memory allow, on
            GPUs one for each.
        devices: worker 0 takes the first, worker 1 the second, and so on, in turn.

    Raises:
        ConfigError: when there is no such number or device.

    >>> Jobs(3, ["cuda:0", "cuda:1"]).devices_of(3)
    ['cuda:0', 'cuda:1', 'cuda:0']
    """

    number: int | str | None
    devices: Sequence[str]

    def __post_init__(self) -> None:
        is_count = is_whole(self.number) and self.number >= 1
        if self.number not in (None, "auto") and not is_count:
            raise ConfigError(
                "jobs must be a whole number of at least 1, or 'auto' for as many as cores and "
                f"memory allow, got {self.number!r}"
            )
        if isinstance(self.devices, str):
            raise ConfigError(
                f"devices must be a list such as ['cuda:0', 'cuda:1'], got {self.devices!r}"
            )
        for device in self.devices:
            try:
                torch.device(device)
            except (RuntimeError, TypeError) as error:
                raise ConfigError(
                    f"devices: {device!r} is not a device: write 'cpu', 'cuda:0' or another that "
                    "torch knows"
                ) from error

    @classmethod
    def of(cls, settings: Settings) -> Jobs:
        """Those of a federation's settings."""
        return cls(settings.jobs, settings.devices or [settings.device])

    def workers(self, most: int, threads: int) -> int:
        """How many worker processes there are; with 1 there is none beside this process.

        Args:
            most: such as the sites of all runs; more workers would have nothing to do.
            threads: torch threads of each worker.

        >>> Jobs(4, ["cpu"]).workers(most=3, threads=1)
        3
        """
        if isinstance(self.number, int):
            return min(most, self.number)
        if any(torch.device(device).type != "cpu" for device in self.devices):
            # Nobody knows before the training how much of a GPU's memory a site needs.
            return min(most, len(set(self.devices)))
        by_cores = usable_cores() // threads
        by_memory = free_memory() // MEMORY_OF_A_WORKER
        return max(1, min(most, by_cores, by_memory))

    def require_devices(self) -> None:
        """Refuse devices that this machine does not have.

        Raises:
            ConfigError: naming the device and the fix.
        """
        for device in dict.fromkeys(self.devices):
            require_device(device)

    def devices_of(self, workers: int) -> list[str]:
        """The devices of so many workers, in their order."""
        return [self.devices[number % len(self.devices)] for number in range(workers)]


# ---- several runs


@contextmanager
def shown_on(console: Console) -> Iterator[None]:
    """Let the runs within be shown there, a single one too, whatever standard error is."""
    token = _console.set(console)
    try:
        yield
    finally:
        _console.reset(token)


def show_text(text: str) -> None:
    """Show a text that is printed or logged, too, where a command lets that go into a log."""
    console = _console.get()
    if console is not None and console.file is not sys.stderr:
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
        self.rounds = rounds
        self.total = sum(rounds.values())
        self.unit = unit
        # Rounds of each run that are done, and how many of these were before this began.
        self.done = {title: rounds[title] for title in done}
        self.before = self.printed = sum(self.done.values())
        self.ended = len(done)
        self.began = time.monotonic()
        console = _console.get() or Console(stderr=True, highlight=False)
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[news]}"))
        self.bar = Progress(*columns, console=console, disable=not console.is_terminal)
        self.task = self.bar.add_task("", total=self.total, news="")

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
        if title not in self.done:
            self.before += done
        self.done[title] = done
        step = max(1, self.total // LINES)
        is_due = sum(self.done.values()) - self.printed >= step
        self._show(f"{title}: round {done}/{self.rounds[title]}", is_due)

    def run_ended(self, title: str, result: Any = None) -> None:
        """A run is done, or :class:`~monai_fairfl.transports.workers.Failed`."""
        self.ended += 1
        self.done[title] = self.rounds[title]
        failed = isinstance(result, Failed)
        outcome = f"{title} failed: {result.reason}" if failed else f"{title}: done"
        self._show(outcome, True, failed)

    def _show(self, news: str, line: bool = False, always: bool = False) -> None:
        """Show news in the bar, or as a line where there is none, or always."""
        done = sum(self.done.values())
        fresh = done - self.before
        if fresh > 0 and done < self.total:
            seconds = (time.monotonic() - self.began) / fresh * (self.total - done)
            news += f"; about {timedelta(seconds=max(1, round(seconds)))} left"
        runs = f"{self.ended}/{len(self.rounds)} {self.unit}"
        self.bar.update(self.task, completed=done, description=runs, news=news)
        if always or (line and self.bar.disable):
            self.printed = done
            self.bar.console.print(f"{runs}, {news}", markup=False, soft_wrap=True)


def deal_out(
    turns: Sequence[Mapping[str, Work]],
    devices: Sequence[str],
    rounds: Mapping[str, int],
    done: Collection[str] = (),
    unit: str | None = None,
) -> tuple[dict[str, Any], bool]:
    """Do all trainings, in their order as far as several are not done at a time, and show them.

    Args:
        turns: title -> a training, of which those of a turn wait for all of the turn before. One
            that a signal stopped returns ``False``, or a history that is not finished.
        devices: of the processes that work at a time.
        rounds: title -> number of rounds, also of those that are done before.
        done: titles of these.
        unit: what the trainings are called; ``None``: runs, of which each shows itself where one
            follows the other and no command shows them.

    Returns:
        Title -> result of those that ended, in the order in which they did; and whether a signal
        asked to stop.

    Raises:
        Exception: what a training raised; the others end at once.
    """
    jobs = len(devices)
    everything = {title: work for pieces in turns for title, work in pieces.items()}
    shows = unit or _console.get() is not None or at_a_time(everything, jobs) > 1
    display = RunsDisplay(rounds, done, unit or "runs") if shows else None
    found: dict[str, Any] = {}

    def ended(title: str, result: Any) -> None:
        found[title] = result
        if display is not None and getattr(result, "finished", result) is not False:
            display.run_ended(title, result)

    if jobs > 1:
        logger.info("%d processes work at a time", jobs)
    stopped = False
    with quiet(), display or nullcontext():
        for pieces in turns:
            if pieces and not stopped:
                shown = display.round_done if display else None
                stopped = carry_out(pieces, jobs, devices, shown, ended)
    return found, stopped


def logged_failure(name: str, error: Exception) -> str:
    """Log that a training failed, and return why, in words.

    The log has the traceback where the error is a fault of the code.
    """
    if isinstance(error, FairFLError):
        logger.error("%s failed: %s", name, error)
        return str(error)
    logger.error("%s failed", name, exc_info=error)
    return in_words(error)


def failure_of(failed: Mapping[str, str], number: int, what: str = "strategies") -> SomeFailed:
    """The error that ends a comparison in which some runs failed.

    Args:
        failed: name of each -> reason.
        number: of all runs.
        what: the runs are called.
    """
    reasons = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
    return SomeFailed(
        f"{len(failed)} of {number} {what} failed ({reasons}). What the others reached is "
        f"not lost. The same command with --resume True tries again: {', '.join(failed)}"
    )


# ---- trainings with a folder and a log each


@dataclass(frozen=True)
class Training:
    """A federation that is trained beside others.

    Args:
        title: how messages call it; each has one of its own.
        rounds: of it.
        run: trains it to its end, or goes on with what its folder holds; returns whether it is
            finished, ``False`` when a signal stopped it. Several are only run at a time where this
            can be sent to another process.
        waits: whether it needs what those that do not wait leave.
    """

    title: str
    rounds: int
    run: Callable[[Turn], bool]
    waits: bool = False


def run_trainings(
    trainings: Sequence[Training],
    jobs: Jobs,
    done: Collection[str] = (),
    most: int = 1,
    threads: int = 1,
) -> dict[str, str]:
    """Run all trainings that are not done, several at a time where there are processes for it.

    One that fails does not stop the others. A full disk and Ctrl-C end all.

    Args:
        trainings: in the order in which they begin.
        jobs: processes that work at a time, and their devices; the numbers are the same.
        done: titles of those that are, which are shown only.
        most: processes that a training may use.
        threads: torch threads of each process.

    Returns:
        Title -> reason of those that failed.

    Raises:
        FairFLError: this machine lacks a device; or a signal stopped them, then it names those
            that it ended.
    """
    turns: tuple[dict[str, Work], dict[str, Work]] = ({}, {})
    for training in trainings:
        if training.title not in done:
            turns[training.waits][training.title] = partial(_attempt, training)
    todo = sum(len(turn) for turn in turns)
    if not todo:
        return {}
    jobs.require_devices()
    devices = jobs.devices_of(jobs.workers(most * todo, threads))
    rounds = {training.title: training.rounds for training in trainings}
    found, stopped = deal_out(turns, devices, rounds, done, "cells")
    unfinished = [title for title, result in found.items() if result is False]
    if stopped or unfinished:
        where = f" in {' and in '.join(unfinished)}" if unfinished else ""
        raise FederationError(
            f"stopped{where}: the same command goes on after the last whole round"
        )
    return {title: result.reason for title, result in found.items() if isinstance(result, Failed)}


def _attempt(training: Training, turn: Turn) -> bool | Failed:
    """Run a training; an error that concerns this one alone is returned."""
    try:
        return training.run(turn)
    except CONCERNS_ALL:
        raise
    except Exception as error:
        return Failed(logged_failure(training.title, error))


def remove_spare(folder: Path) -> None:
    """Remove of a finished run what only one that is resumed would need: most of its size."""
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    # A model that is a site's own stays.
    for state in folder.glob("sites/*/state/*-round-*.pt"):
        state.unlink()


def run_logged(folder: Path, federation: Callable[[Turn], BundleFederation], turn: Turn) -> bool:
    """Run a federation of one strategy; ``log.txt`` gets what it prints and a copy of its log.

    Args:
        folder: of its run.
        federation: makes it.
        turn: what it may use.

    Returns:
        Whether it is finished; ``False`` when a signal stopped it.

    Raises:
        FairFLError: when the federation cannot go on; of any other error, its words, and the file
            that has its traceback.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log.txt"
    handler = logging.FileHandler(log, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    of_package = logging.getLogger("monai_fairfl")
    of_package.addHandler(handler)
    try:
        # A display of all runs may draw on the terminal.
        with redirect_stdout(handler.stream):
            histories = federation(turn).run_with()
    except (FairFLError, *CONCERNS_ALL):
        raise
    except Exception as error:
        # What the file gets is what is printed.
        traceback.print_exception(error, file=handler.stream)
        raise FairFLError(f"{in_words(error)}. The traceback is in {log}") from error
    finally:
        of_package.removeHandler(handler)
        handler.close()
    # There is none where a signal came before the run began.
    return bool(histories) and histories[0].finished
