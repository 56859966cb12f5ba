# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The clients of a federation, dealt out to worker processes."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from monai_fairfl.errors import ConfigError, in_words
from monai_fairfl.messages import Reply, Request, failed
from monai_fairfl.transports.in_process import Client
from monai_fairfl.transports.workers.pool import WorkerEnded, WorkerPool, wait_for


def dealt_out(sizes: Mapping[str, float], workers: int) -> dict[str, int]:
    """client -> number of its worker, so that all workers have about as much to do.

    The largest client comes first, each to the worker with the least so far (Graham's rule of the
    longest processing time: at most a third above the best possible, SIAM J. Appl. Math. 17, 1969).

    Args:
        sizes: client -> how much it has to do, in any unit.
        workers: number of workers, from 1.

    >>> dealt_out({"ash": 4, "elm": 9, "fir": 6, "oak": 7}, workers=2)
    {'elm': 0, 'oak': 1, 'fir': 1, 'ash': 0}
    """
    work = [0.0] * workers
    places = {}
    for client in sorted(sizes, key=lambda name: (-sizes[name], name)):
        least = work.index(min(work))
        work[least] += sizes[client]
        places[client] = least
    return places


class WorkerClients:
    """Clients in worker processes: each lives in one of them, and several work at a time.

    Every client does what it would do in this process (``InProcess``), with the same random
    numbers and as many torch threads, so its replies are the same to the bit. They arrive as they
    are done. A client whose worker ended while it worked is missing in that exchange; the clients
    that had yet to be asked, and from the next request on that client too, live in a new worker,
    and go on from their files.

    Args:
        pool: of the workers.
        clients: name -> a function that makes the client. It must be one that can be pickled, such
            as a ``functools.partial`` of a function of a module and plain values.
        places: client -> number of its worker, see :func:`dealt_out`.

    >>> from functools import partial
    >>> from monai_fairfl.client import FairMonaiAlgo
    >>> from monai_fairfl.transports.workers import WorkerPool
    >>> makers = {site: partial(FairMonaiAlgo, "bundle", f"states/{site}") for site in "AB"}
    >>> with WorkerPool(2, at_once=0) as pool:
    ...     WorkerClients(pool, makers, {"A": 0, "B": 1}).clients
    ['A', 'B']
    """

    def __init__(
        self,
        pool: WorkerPool,
        clients: Mapping[str, Callable[[], Client]],
        places: Mapping[str, int],
    ):
        self.clients: Sequence[str] = sorted(clients)
        self._pool = pool
        self._places = dict(places)
        self._owner = pool.new_owner()
        self._makers: dict[str, bytes] = {}
        for name, make in clients.items():
            self._makers[name] = _pickled(name, make)
        # Numbers of the workers that may have clients of this transport.
        self._used: set[int] = set()

    def ask(self, requests: Sequence[Request], timeout: float | None = None) -> Iterator[Reply]:
        """Carry out the requests, those to one worker one after the other.

        As in one process there is no ``timeout``: a client that works is waited for.
        """
        # Worker -> what it has yet to do; the first of these is what it does now.
        queues: dict[int, deque[Request]] = {}
        for request in requests:
            queues.setdefault(self._places[request.client], deque()).append(request)
        try:
            for number, queue in queues.items():
                self._ask_next(number, queue)
            while any(queues.values()):
                busy = [number for number, queue in queues.items() if queue]
                wait_for([self._pool.worker(number) for number in busy])
                for number in busy:
                    yield from self._answers(number, queues[number])
        finally:
            self._end_busy()
            for worker in self._pool.running().values():
                worker.forget_model()

    def close(self) -> None:
        """Let the clients go; the workers stay for others."""
        running = self._pool.running()
        asked = {}
        try:
            for number in sorted(self._used & set(running)):
                with suppress(WorkerEnded):
                    running[number].release(self._owner)
                    asked[number] = running[number]
            for worker in asked.values():
                with suppress(WorkerEnded):
                    while worker.answer() is None:
                        wait_for([worker])
        finally:
            self._used.clear()
            self._end_busy()

    def _ask_next(self, number: int, queue: deque[Request]) -> None:
        """Send a worker the first request of its queue, if there is one."""
        if not queue:
            return
        request = queue[0]
        make = self._makers[request.client]
        self._used.add(number)
        try:
            self._pool.worker(number).ask(self._owner, request, make)
        except WorkerEnded:
            # It ended while it had nothing to do: no client lost anything.
            self._pool.end(number)
            # If the new one ends, too, that is noticed when its answer is waited for.
            with suppress(WorkerEnded):
                self._pool.worker(number).ask(self._owner, request, make)

    def _answers(self, number: int, queue: deque[Request]) -> Iterator[Reply]:
        """What a worker answered, if it has; it is asked the next when that is taken."""
        try:
            reply = self._pool.worker(number).answer()
        except WorkerEnded as reason:
            yield from self._given_up(number, queue, reason)
        else:
            if not isinstance(reply, Reply):
                return
            queue.popleft()
            yield reply
        self._ask_next(number, queue)

    def _given_up(self, number: int, queue: deque[Request], reason: WorkerEnded) -> Iterator[Reply]:
        """Answer for the client whose worker ended.

        A worker that ended before it had begun would do so again: then for all of its clients.
        """
        has_begun = self._pool.worker(number).has_begun
        self._pool.end(number)
        lost = [queue.popleft()]
        if has_begun:
            # It imports its modules while the others work.
            self._pool.worker(number)
        else:
            lost += queue
            queue.clear()
        for request in lost:
            yield failed(request, f"{reason}; another one answers its next request")

    def _end_busy(self) -> None:
        """End the workers that did not answer: a late answer would be taken for another one."""
        for number, worker in self._pool.running().items():
            if worker.unanswered:
                self._pool.end(number)


def _pickled(client: str, make: Callable[[], Client]) -> bytes:
    """What makes a client, for another process.

    Raises:
        ConfigError: when it cannot be sent there.
    """
    try:
        return pickle.dumps(make)
    except Exception as error:  # pickle raises several kinds
        raise ConfigError(
            f"client {client!r} cannot be made in a worker process ({in_words(error)}): make it "
            "by a function of a module and plain values, or use jobs=1"
        ) from error
