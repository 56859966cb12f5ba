# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The clients of a federation, dealt out to worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from monai_fairfl.errors import ConfigError, in_words
from monai_fairfl.messages import Reply, Request
from monai_fairfl.transports.in_process import Client, Clients
from monai_fairfl.transports.workers.process import Worker, news, packed


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
        clients: name -> a function that makes the client. It must be one that can be pickled, such
            as a ``functools.partial`` of a function of a module and plain values.
        places: client -> number of its worker, see :func:`dealt_out`.

    >>> from functools import partial
    >>> from monai_fairfl.client import FairMonaiAlgo
    >>> makers = {site: partial(FairMonaiAlgo, "bundle", f"states/{site}") for site in "AB"}
    >>> WorkerClients(makers, {"A": 0, "B": 1}).clients
    ['A', 'B']

    Raises:
        ConfigError: when a client cannot be made in another process.
    """

    def __init__(self, clients: Mapping[str, Callable[[], Client]], places: Mapping[str, int]):
        self.clients: Sequence[str] = sorted(clients)
        self._makers = dict(clients)
        for name, make in clients.items():
            try:
                packed(make)
            except Exception as error:  # pickle raises several kinds
                raise ConfigError(
                    f"client {name!r} cannot be made in a worker process ({in_words(error)}): make "
                    "it by a function of a module and plain values, or use jobs=1"
                ) from error
        self._places = dict(places)
        # Number of a worker -> that worker, from when it is first needed.
        self._workers: dict[int, Worker] = {}
        # Worker -> what it does now.
        self._asked: dict[Worker, Request] = {}

    def ask(self, requests: Sequence[Request], timeout: float | None = None) -> Iterator[Reply]:
        """Carry out the requests, those to one worker one after the other.

        As in one process there is no ``timeout``: a client that works is waited for.
        """
        waiting: dict[int, list[Request]] = {}
        asked = self._asked = {}
        for request in requests:
            waiting.setdefault(self._places[request.client], []).append(request)

        def ask_next(place: int) -> None:
            if waiting[place]:
                request = waiting[place].pop(0)
                asked[self._begin(request)] = request

        try:
            for place in waiting:
                ask_next(place)
            while asked:
                for worker, kind, value in news(asked):
                    request = asked.pop(worker)
                    if kind == "ended":
                        value = request.reply(
                            error=f"{value}; another one answers its next request"
                        )
                    elif kind == "raised":
                        # A reply that cannot be sent is a fault of its client alone.
                        value = request.reply(error=in_words(value))
                    ask_next(self._places[request.client])
                    yield value
        finally:
            for worker in asked:
                # A late answer would be taken for another one.
                worker.end()

    def close(self) -> None:
        """Let the clients go, and end their processes; one that still works, at once."""
        for worker in self._workers.values():
            if worker not in self._asked and worker.begin(_close_clients):
                while not list(news([worker])):
                    pass
            worker.end()
        self._workers.clear()

    def _begin(self, request: Request) -> Worker:
        """Ask a client's worker; a new one where that has yet to start, or ended while idle."""
        do = partial(_answer, self._makers[request.client], request)
        place = self._places[request.client]
        worker = self._workers.get(place)
        if worker is None or not worker.begin(do):
            if worker is not None:
                worker.end()
            worker = self._workers[place] = Worker()
            worker.begin(do)
        return worker


# --- in a worker process

_clients = Clients()


def _answer(make: Callable[[], Client], request: Request) -> Reply:
    return _clients.answer(request, make)


def _close_clients() -> None:
    _clients.close()
