# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Deals out pieces of work, such as whole federations, to the processes of a pool.

A federation in one process wastes no core. So as many of them as there are processes run at a time,
each with its clients in its own process. What is left of the processes at the end is given to the
clients of the last ones.
"""

from __future__ import annotations

import logging
import pickle
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from monai_fairfl.server.progress import shown_by
from monai_fairfl.transports.workers.messages import Did, RoundsDone
from monai_fairfl.transports.workers.pool import WorkerEnded, WorkerPool, wait_for
from monai_fairfl.utils.terminal import stopping_on_signals

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Turn:
    """What a piece of work may use.

    Args:
        jobs: processes.
        devices: of these, in their order; none where nobody deals them out.
        again: whether a process that did this work has ended: it goes on with what that left.
        pool: of worker processes that are there already; ``None``: the work starts its own.
    """

    jobs: int = 1
    devices: Sequence[str] = ()
    again: bool = False
    pool: WorkerPool | None = None


@dataclass(frozen=True)
class Work:
    """A piece of work.

    Args:
        title: by which messages call it; each piece has one of its own.
        do: is called with its turn, here or in another process. What it returns and raises is sent
            from there. An exception ends all work: what concerns one piece alone is returned.

    >>> work = Work("FedCE", lambda turn: f"with {turn.jobs} processes")
    >>> work.do(Turn(jobs=2))
    'with 2 processes'
    """

    title: str
    do: Callable[[Turn], Any]


@dataclass(frozen=True)
class Failed:
    """Why a piece of work failed, in words; the others go on.

    >>> result = Failed("a worker process ended")
    >>> isinstance(result, Failed), result.reason
    (True, 'a worker process ended')
    """

    reason: str


def can_be_sent(do: Callable[..., Any]) -> bool:
    """Whether another process can do this.

    What a script defines itself is not known in a process that did not start with it.

    >>> can_be_sent(print), can_be_sent(lambda: 0)
    (True, False)
    """
    try:
        return b"__main__" not in pickle.dumps(do)
    except Exception:  # pickle raises several kinds
        return False


def shares(pieces: int, processes: int, most: int) -> list[int]:
    """How many processes each of some equal pieces of work gets, in their order.

    All get one, as long as there are enough pieces for every process. The last ones, for which that
    does not hold, get more.

    Args:
        pieces: number of pieces.
        processes: of the pool, from 1.
        most: processes that a piece can use.

    >>> shares(5, processes=2, most=4)
    [1, 1, 1, 1, 2]
    >>> shares(2, processes=5, most=4)
    [2, 3]
    >>> shares(1, processes=16, most=4)
    [4]
    """
    last = pieces % processes
    dealt = [1] * (pieces - last)
    if last == 0:
        return dealt
    each, more = divmod(processes, last)
    for position in range(last):
        share = each
        # The larger ones come last: they wait for others to end.
        if position >= last - more:
            share += 1
        dealt.append(min(share, most))
    return dealt


def carry_out(
    pieces: Sequence[Work],
    pool: WorkerPool | None = None,
    most: int = 1,
    together: bool = True,
    device_of: Callable[[int], str] | None = None,
    rounds_done: Callable[[str, int], None] | None = None,
    ended: Callable[[str, Any], None] = lambda title, result: None,
) -> bool:
    """Do all pieces of work, in their order as far as several are not done at a time.

    A piece that gets all processes is done in this one, with the pool for what it deals out itself.
    Where the process of a piece ends, by ``kill -9`` or for want of memory, another one goes on
    with it, unless that happens twice without a round in between. SIGINT and SIGTERM let the
    present pieces end after their rounds, and begin no other.

    Args:
        pieces: of work.
        pool: of the processes; ``None``: one piece after the other, here.
        most: processes that a piece can use, such as one for each of its clients.
        together: whether several pieces may be done at a time; all must then be sendable, see
            :func:`can_be_sent`.
        device_of: number of a process -> its device; ``None``: nobody deals devices out.
        rounds_done: is called with the title of a piece when a federation of it begins or goes on,
            and after each round, with the number of its rounds; ``None``: each shows itself.
        ended: is called with the title of a piece that has ended, and what it returned, or a
            :class:`Failed` where its processes ended.

    Returns:
        Whether a signal asked to stop.

    Raises:
        Exception: what a piece of work raised; the others end at once.

    >>> pieces = [Work(name, lambda turn: turn.jobs) for name in ("FedAvg", "FedCE")]
    >>> carry_out(pieces, ended=lambda title, result: print(title, result))
    FedAvg 1
    FedCE 1
    False
    """
    dealer = _Dealer(pieces, pool, most, together, device_of, rounds_done, ended)
    with stopping_on_signals(dealer.stop):
        dealer.run()
    return dealer.stopped


@dataclass
class _Running:
    """A piece of work in a worker process.

    Args:
        work: the piece.
        turn: what it may use.
        processes: numbers of its processes; it runs in the first.
        asked_to_stop: whether that process was.
        rounds_before: with which it began or went on; ``None``: it has yet to.
        has_done_a_round: since then.
    """

    work: Work
    turn: Turn
    processes: Sequence[int]
    asked_to_stop: bool = False
    rounds_before: int | None = None
    has_done_a_round: bool = False


class _Dealer:
    """Begins pieces of work as processes become free; see :func:`carry_out`."""

    def __init__(
        self,
        pieces: Sequence[Work],
        pool: WorkerPool | None,
        most: int,
        together: bool,
        device_of: Callable[[int], str] | None,
        rounds_done: Callable[[str, int], None] | None,
        ended: Callable[[str, Any], None],
    ):
        self.stopped = False
        self._pool = pool
        self._processes = 1 if pool is None else len(pool)
        dealt = [self._processes] * len(pieces)
        if together and len(pieces) > 1:
            dealt = shares(len(pieces), self._processes, most)
        self._waiting = deque(zip(pieces, dealt))
        self._free = list(range(self._processes))
        # The process in which a piece runs -> that piece.
        self._running: dict[int, _Running] = {}
        self._device_of = device_of
        self._rounds_done = rounds_done
        self._ended = ended
        # What a piece raised after it was asked to stop; the others have yet to end their round.
        self._error: Exception | None = None

    def stop(self) -> None:
        """Begin nothing more, and let what runs end after its round.

        A signal calls this in the middle of anything, such as of sending: the next step of
        :meth:`run` does it.
        """
        self.stopped = True

    def run(self) -> None:
        """Do all pieces."""
        try:
            while self._running or (self._waiting and not self.stopped):
                self._begin_what_has_room()
                if self.stopped:
                    self._stop_what_runs()
                if self._running:
                    self._take_news()
        finally:
            if self._pool is not None:
                for number in list(self._running):
                    self._pool.end(number)
        if self._error is not None:
            raise self._error

    def _begin_what_has_room(self) -> None:
        while self._waiting and not self.stopped:
            work, share = self._waiting[0]
            if share > len(self._free):
                return
            self._waiting.popleft()
            if share == self._processes:
                self._do_here(work)
                continue
            taken, self._free = self._free[:share], self._free[share:]
            turn = Turn(share, self._devices(taken))
            self._begin(_Running(work, turn, taken))

    def _stop_what_runs(self) -> None:
        for number, running in self._running.items():
            if not running.asked_to_stop:
                assert self._pool is not None
                self._pool.worker(number).stop()
                running.asked_to_stop = True

    def _do_here(self, work: Work) -> None:
        turn = Turn(self._processes, self._devices(self._free), pool=self._pool)
        with ExitStack() as showing:
            if self._rounds_done is not None:
                showing.enter_context(shown_by(partial(self._rounds_done, work.title)))
            result = work.do(turn)
        self._ended(work.title, result)

    def _devices(self, processes: Sequence[int]) -> list[str]:
        if self._device_of is None:
            return []
        return [self._device_of(number) for number in processes]

    def _begin(self, running: _Running) -> None:
        """Begin a piece of work in the first of its processes."""
        assert self._pool is not None
        first, *others = running.processes
        for number in others:
            # The first one starts processes of its own for its clients, in place of these.
            self._pool.end(number)
        self._running[first] = running
        work = pickle.dumps(partial(running.work.do, running.turn))
        try:
            self._pool.worker(first).begin(work)
        except WorkerEnded:
            # It ended while it had nothing to do.
            self._pool.end(first)
            # If the new one ends, too, that is noticed when its answer is waited for.
            with suppress(WorkerEnded):
                self._pool.worker(first).begin(work)

    def _take_news(self) -> None:
        """Take in what the processes sent, once there is something."""
        assert self._pool is not None
        wait_for([self._pool.worker(number) for number in self._running])
        for number, running in list(self._running.items()):
            try:
                news = self._pool.worker(number).answer()
            except WorkerEnded as reason:
                self._go_on(number, running, reason)
                continue
            if isinstance(news, RoundsDone):
                self._take_rounds(running, news.number)
            elif isinstance(news, Did):
                self._take_end(number, running, news)

    def _take_rounds(self, running: _Running, number: int) -> None:
        if running.rounds_before is None:
            running.rounds_before = number
        running.has_done_a_round = number > running.rounds_before
        if self._rounds_done is not None:
            self._rounds_done(running.work.title, number)

    def _take_end(self, number: int, running: _Running, did: Did) -> None:
        self._free_processes(number)
        if did.error is None:
            self._ended(running.work.title, did.result)
        elif self.stopped:
            self._error = self._error or did.error
        else:
            raise did.error

    def _go_on(self, number: int, running: _Running, reason: WorkerEnded) -> None:
        """Let another process go on with the work of one that ended."""
        assert self._pool is not None
        self._pool.end(number)
        title = running.work.title
        if self.stopped:
            logger.warning("%s: %s", title, reason)
            self._free_processes(number)
        elif running.turn.again and not running.has_done_a_round:
            self._free_processes(number)
            self._ended(title, Failed(f"{reason}; what it reached is not lost"))
        else:
            logger.warning("%s: %s; another one goes on with what it left", title, reason)
            turn = replace(running.turn, again=True)
            self._begin(_Running(running.work, turn, running.processes))

    def _free_processes(self, number: int) -> None:
        running = self._running.pop(number)
        self._free = sorted([*self._free, *running.processes])
