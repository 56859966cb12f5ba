# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Deals out pieces of work, such as whole federations, to worker processes.

A federation in one process wastes no core. So as many of them as there are processes run at a time,
each with its clients in its own process. The last ones share the processes that are left.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from threading import Event
from typing import Any

from monai_fairfl.server.progress import shown_by
from monai_fairfl.transports.workers.process import Worker, news, say
from monai_fairfl.utils.terminal import stopping_on_signals

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Turn:
    """What a piece of work may use.

    Args:
        jobs: processes.
        devices: of these, in their order; none where nobody deals them out.
        again: whether a process that did this work has ended: it goes on with what that left.
    """

    jobs: int = 1
    devices: Sequence[str] = ()
    again: bool = False


@dataclass(frozen=True)
class Failed:
    """Why a piece of work failed, in words; the others go on.

    >>> result = Failed("a worker process ended")
    >>> isinstance(result, Failed), result.reason
    (True, 'a worker process ended')
    """

    reason: str


Work = Callable[[Turn], Any]
"""A piece of work. It is called here or in another process; what it returns and raises is sent from
there. An exception ends all work: what concerns one piece alone is returned.
"""


def at_a_time(pieces: Collection[Work], jobs: int) -> int:
    """How many processes work on pieces beside each other; 1: one piece after the other, here.

    What a script defines itself cannot be sent: a process that did not start with it knows nothing
    of it.

    >>> at_a_time([print, print], jobs=2)
    2
    >>> at_a_time([print, lambda turn: 0], jobs=2)
    1
    """
    try:
        can_be_sent = b"__main__" not in pickle.dumps(pieces)
    except Exception:  # pickle raises several kinds
        can_be_sent = False
    return jobs if can_be_sent and len(pieces) > 1 else 1


def carry_out(
    pieces: Mapping[str, Work],
    jobs: int = 1,
    device_of: Callable[[int], str] | None = None,
    rounds_done: Callable[[str, int], None] | None = None,
    ended: Callable[[str, Any], None] = lambda title, result: None,
) -> bool:
    """Do all pieces of work, in their order as far as several are not done at a time.

    Each has a process of its own, as long as there are pieces for all processes. The last ones
    share the processes, which they start for their clients; a single one is done in this process.
    Where the process of a piece ends, by ``kill -9`` or for want of memory, another one goes on
    with it, unless that happens twice without a round in between. SIGINT and SIGTERM let the
    present pieces end after their rounds, and begin no other.

    Args:
        pieces: title -> a piece of work.
        jobs: processes that work at a time.
        device_of: number of a process -> its device; ``None``: nobody deals devices out.
        rounds_done: is called with the title of a piece when a federation of it begins or goes on,
            and after each round, with the number of its rounds; ``None``: each shows itself.
        ended: is called with the title of a piece that has ended, and what it returned, or a
            :class:`Failed` where its processes ended.

    Returns:
        Whether a signal asked to stop.

    Raises:
        Exception: what a piece of work raised; the others end at once.

    >>> pieces = dict.fromkeys(("FedAvg", "FedCE"), lambda turn: turn.jobs)
    >>> carry_out(pieces, ended=lambda title, result: print(title, result))
    FedAvg 1
    FedCE 1
    False
    """
    # A signal comes in the middle of anything: the next step looks.
    stop = Event()
    waves = [[title] for title in pieces]
    if at_a_time(list(pieces.values()), jobs) > 1:
        titles = list(pieces)
        full = len(titles) - len(titles) % jobs
        waves = [titles[:full], titles[full:]]
    with stopping_on_signals(stop.set):
        for wave in waves:
            share = max(1, jobs // max(1, len(wave)))
            turns = []
            for first in range(0, jobs - share + 1, share):
                processes = range(first, first + share)
                devices = [device_of(number) for number in processes] if device_of else []
                turns.append(Turn(share, devices))
            if len(wave) > 1:
                apart = {title: pieces[title] for title in wave}
                _do_apart(apart, turns, stop, rounds_done or (lambda title, number: None), ended)
            elif wave and not stop.is_set():
                [title] = wave
                shown = shown_by(partial(rounds_done, title)) if rounds_done else nullcontext()
                with shown:
                    result = pieces[title](turns[0])
                ended(title, result)
    return stop.is_set()


def _do_apart(
    pieces: Mapping[str, Work],
    turns: list[Turn],
    stop: Event,
    rounds_done: Callable[[str, int], None],
    ended: Callable[[str, Any], None],
) -> None:
    """Do pieces of work in worker processes, as many at a time as there are turns."""
    waiting = list(pieces)
    running: dict[Worker, tuple[str, Turn]] = {}
    # Title -> what it had done when its process began, and after each round.
    rounds: dict[str, list[int]] = {}

    def begin(title: str, turn: Turn) -> None:
        rounds[title] = []
        worker = Worker()
        running[worker] = title, turn
        worker.begin(partial(_do, pieces[title], turn))

    try:
        while running or (waiting and not stop.is_set()):
            while waiting and turns and not stop.is_set():
                begin(waiting.pop(0), turns.pop(0))
            if stop.is_set():
                for worker in running:
                    worker.stop()
            for worker, kind, value in news(running):
                title, turn = running[worker]
                if kind == "rounds":
                    rounds[title].append(value)
                    rounds_done(title, value)
                    continue
                del running[worker]
                worker.end()
                if kind == "raised":
                    raise value
                if kind == "ended" and not stop.is_set():
                    if not turn.again or len(rounds[title]) > 1:
                        logger.warning("%s: %s; another one goes on with it", title, value)
                        begin(title, replace(turn, again=True))
                        continue
                    value = Failed(f"{value}; what it reached is not lost")
                turns.append(replace(turn, again=False))
                # One that ended while it was to stop is as unfinished as the others.
                if kind == "returned" or not stop.is_set():
                    ended(title, value)
    finally:
        for worker in running:
            worker.end()


def _do(work: Work, turn: Turn) -> Any:
    with shown_by(partial(say, "rounds")):
        return work(turn)
