# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The processes that work on trainings, and how trainings are dealt out to them and shown."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from monai_fairfl.bundle.jobs import Jobs, modules_of_sites
from monai_fairfl.bundle.runs_display import RunsDisplay, is_shown
from monai_fairfl.server.federation import History
from monai_fairfl.strategies import Strategy
from monai_fairfl.transports.workers import Failed, Work, WorkerPool, carry_out
from monai_fairfl.utils.terminal import quiet

logger = logging.getLogger(__name__)


@contextmanager
def worker_pool(
    jobs: Jobs,
    most: int,
    threads: int,
    strategies: Sequence[Strategy],
    at_once: int | None = None,
    lent: WorkerPool | None = None,
) -> Iterator[WorkerPool | None]:
    """Inside, there are worker processes if several can work at a time, else ``None``.

    Args:
        jobs: how many are asked for.
        most: that would have something to do.
        threads: of each.
        strategies: whose modules each imports.
        at_once: how many begin at once; ``None``: all.
        lent: processes that are there already, in place of new ones.
    """
    if lent is not None:
        yield lent
        return
    number = jobs.workers(most, threads)
    if number == 1:
        yield None
        return
    logger.info("%d processes work at a time", number)
    with WorkerPool(number, modules_of_sites(strategies), at_once) as pool:
        yield pool


@dataclass(frozen=True)
class Dealing:
    """Deals out trainings to processes.

    Args:
        pool: of the processes; ``None``: one training after the other, in this process.
        most: processes that a training can use, such as one for each of its sites.
        together: whether several may be trained at a time: each can be sent to another process.
        device_of: number of a process -> its device.
    """

    pool: WorkerPool | None
    most: int
    together: bool
    device_of: Callable[[int], str]

    def at_a_time(self, trainings: int) -> int:
        """How many processes work on so many trainings beside each other; 1: one after the other.

        >>> Dealing(None, most=4, together=True, device_of=lambda number: "cpu").at_a_time(3)
        1
        """
        if self.pool is None or trainings < 2 or not self.together:
            return 1
        return len(self.pool)

    @contextmanager
    def display(self, titles: Sequence[str], rounds: int) -> Iterator[RunsDisplay | None]:
        """One display of the trainings of these titles; ``None`` where each shows itself.

        Args:
            titles: of the trainings.
            rounds: of each.
        """
        at_a_time = self.at_a_time(len(titles))
        if at_a_time == 1 and not is_shown():
            yield None
            return
        kinds = {title: title for title in titles}
        with quiet(), RunsDisplay(kinds, rounds, at_a_time=at_a_time) as display:
            yield display

    def carry_out(
        self, pieces: Sequence[Work], display: RunsDisplay | None
    ) -> tuple[dict[str, Any], bool]:
        """Do all trainings, in their order as far as several are not done at a time.

        Args:
            pieces: the trainings. One that a signal stopped returns ``False``, or a history that is
                not finished.
            display: of all; ``None``: each shows itself.

        Returns:
            Title -> result of those that ended, in the order in which they did; and whether a
            signal asked to stop.

        Raises:
            Exception: what a training raised; the others end at once.
        """
        found: dict[str, Any] = {}

        def ended(title: str, result: Any) -> None:
            found[title] = result
            if display is None:
                return
            if isinstance(result, Failed):
                display.run_ended(title, result.reason)
            elif is_finished(result):
                display.run_ended(title)

        stopped = carry_out(
            pieces,
            pool=self.pool,
            most=self.most,
            together=self.together,
            device_of=self.device_of,
            rounds_done=None if display is None else display.round_done,
            ended=ended,
        )
        return found, stopped


def is_finished(result: Any) -> bool:
    """Whether a training that did not fail came to its end, and no signal stopped it.

    >>> is_finished(True), is_finished(False), is_finished(None)
    (True, False, True)
    """
    if isinstance(result, History):
        return result.finished
    return result is not False
