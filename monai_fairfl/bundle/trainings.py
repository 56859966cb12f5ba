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
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from monai_fairfl.bundle.federation import BundleFederation
from monai_fairfl.bundle.jobs import Jobs
from monai_fairfl.bundle.runs import CONCERNS_ALL, logged_failure
from monai_fairfl.bundle.runs_display import RunsDisplay, deal_out
from monai_fairfl.errors import FairFLError, FederationError, in_words
from monai_fairfl.transports.workers import Failed, Turn, Work


@dataclass(frozen=True)
class Training:
    """A federation that is trained beside others.

    Args:
        title: how messages call it; each has one of its own.
        rounds: of it.
        folder: of its run.
        federation: makes it, with what it may use. Nothing is trained by that.
        run: trains it to its end, or goes on with what its folder holds; returns whether it is
            finished, ``False`` when a signal stopped it. Several are only run at a time where this
            can be sent to another process.
        waits: whether it needs what those that do not wait leave.
    """

    title: str
    rounds: int
    folder: Path
    federation: Callable[[Turn], BundleFederation]
    run: Callable[[Turn], bool]
    waits: bool = False


def run_trainings(
    trainings: Sequence[Training],
    done: Sequence[Training] = (),
    jobs: int | str | None = 1,
    devices: Sequence[str] | None = None,
    most: int | None = None,
) -> dict[str, str]:
    """Run all trainings that are not done, several at a time where there are processes for it.

    One that fails does not stop the others. A full disk and Ctrl-C end all.

    Args:
        trainings: in the order in which they begin.
        done: those that are, which are shown only.
        jobs: processes that work at a time, see :class:`~monai_fairfl.bundle.jobs.Jobs`; the
            numbers are the same.
        devices: of the processes, in turn; ``None``: those of the first federation.
        most: processes that a training may use; ``None``: one for each of its sites.

    Returns:
        Title -> reason of those that failed.

    Raises:
        FairFLError: what is wrong with the settings of the first training; or a signal stopped
            them, then it names those that it ended.
    """
    todo = [training for training in trainings if training not in done]
    if not todo:
        return {}
    first = todo[0].federation(Turn())
    first.read_settings()
    given = Jobs(jobs, devices or first.jobs.devices)
    given.require_devices()
    processes = given.workers((most or len(first.names)) * len(todo), first.settings.threads)
    rounds = {training.title: training.rounds for training in trainings}
    turns: tuple[dict[str, Work], dict[str, Work]] = ({}, {})
    for training in todo:
        turns[training.waits][training.title] = partial(_attempt, training.title, training.run)
    with RunsDisplay(rounds, [training.title for training in done], "cells") as display:
        found, stopped = deal_out(turns, given.devices_of(processes), display)

    unfinished = [title for title, result in found.items() if result is False]
    if stopped or unfinished:
        where = f" in {' and in '.join(unfinished)}" if unfinished else ""
        raise FederationError(
            f"stopped{where}: the same command goes on after the last whole round"
        )
    return {title: result.reason for title, result in found.items() if isinstance(result, Failed)}


def _attempt(title: str, run: Callable[[Turn], bool], turn: Turn) -> bool | Failed:
    """Run a training; an error that concerns this one alone is returned."""
    try:
        return run(turn)
    except CONCERNS_ALL:
        raise
    except Exception as error:
        return Failed(logged_failure(title, error))


# --- one training


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
    with _log_in(log):
        try:
            histories = federation(turn).run_with()
        except (FairFLError, *CONCERNS_ALL):
            raise
        except Exception as error:
            # What the file gets is what is printed.
            traceback.print_exception(error, file=sys.stdout)
            raise FairFLError(f"{in_words(error)}. The traceback is in {log}") from error
    # There is none where a signal came before the run began.
    return bool(histories) and histories[0].finished


@contextmanager
def _log_in(file: Path) -> Iterator[None]:
    """Write into a file what is printed, and what this package logs there, too."""
    handler = logging.FileHandler(file, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("monai_fairfl")
    logger.addHandler(handler)
    try:
        # A display of all runs may draw on the terminal.
        with redirect_stdout(handler.stream):
            yield
    finally:
        logger.removeHandler(handler)
        handler.close()
