# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Deals out work to worker processes: the clients of a federation, or whole federations.

A federation in one process wastes no core. So as many of them as there are processes run at a time,
each with its clients in its own process. The last ones share the processes that are left.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any

from monai_fairfl.errors import in_words
from monai_fairfl.messages import Reply, Request
from monai_fairfl.server.progress import shown_by
from monai_fairfl.transports.in_process import Client, InProcess
from monai_fairfl.transports.workers.process import Worker, news, say
from monai_fairfl.utils.terminal import stopping_on_signals

# --- the clients of a federation


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
        places: client -> number of its worker.

    >>> from functools import partial
    >>> from monai_fairfl.client import FairMonaiAlgo
    >>> makers = {site: partial(FairMonaiAlgo, "bundle", f"states/{site}") for site in "AB"}
    >>> WorkerClients(makers, {"A": 0, "B": 1}).clients
    ['A', 'B']
    """

    def __init__(self, clients: Mapping[str, Callable[[], Client]], places: Mapping[str, int]):
        self.clients: Sequence[str] = sorted(clients)
        self._makers = dict(clients)
        self._places = dict(places)
        # Number of a worker -> that worker, from when it is first needed.
        self._workers: dict[int, Worker] = {}

    def ask(self, requests: Sequence[Request], timeout: float | None = None) -> Iterator[Reply]:
        """Carry out the requests, those to one worker one after the other.

        As in one process there is no ``timeout``: a client that works is waited for.
        """
        waiting: dict[int, list[Request]] = {}
        # Worker -> what it does now.
        asked: dict[Worker, Request] = {}
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
                        value = request.reply(error=f"{value}; another answers its next request")
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
        """Let the clients go, and end their processes; :meth:`ask` has ended those that work."""
        for worker in self._workers.values():
            if not worker.connection.closed:
                worker.begin(_close_clients)
                while not list(news([worker])):
                    pass
            worker.end()
        self._workers.clear()

    def _begin(self, request: Request) -> Worker:
        """Ask a client's worker; a new one where that has yet to start, or has ended."""
        place = self._places[request.client]
        if place not in self._workers or self._workers[place].connection.closed:
            self._workers[place] = Worker()
        self._workers[place].begin(partial(_answer, self._makers[request.client], request))
        return self._workers[place]


# In a worker process:

_clients = InProcess({})


def _answer(make: Callable[[], Client], request: Request) -> Reply:
    return _clients.answer(request, make)


def _close_clients() -> None:
    _clients.close()


# --- whole federations


@dataclass(frozen=True)
class Turn:
    """What a piece of work may use.

    Args:
        jobs: processes.
        devices: of these, in their order; none where nobody deals them out.

    >>> Turn(jobs=2, devices=("cuda:0", "cuda:1")).jobs
    2
    """

    jobs: int = 1
    devices: Sequence[str] = ()


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


def carry_out(
    pieces: Mapping[str, Work],
    all_of: Turn = Turn(),
    rounds_done: Callable[[str, int], None] | None = None,
    ended: Callable[[str, Any], None] = lambda title, result: None,
) -> bool:
    """Do all pieces of work, in their order as far as several are not done at a time.

    Each has a process of its own, as long as there are pieces for all processes. The last ones
    share the processes, which they start for their clients; a single one is done in this process,
    and so is what a script itself defines: no other process could import it. SIGINT and SIGTERM let
    the present pieces end after their rounds, and begin no other.

    Args:
        pieces: title -> a piece of work.
        all_of: processes that work at a time, and their devices.
        rounds_done: is called with the title of a piece when a federation of it begins or goes on,
            and after each round, with the number of its rounds; ``None``: each shows itself.
        ended: is called with the title of a piece that has ended, and what it returned, or a
            :class:`Failed` where its process ended, by ``kill -9`` or for want of memory.

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
    titles = list(pieces)
    beside = 1
    if all_of.jobs > 1 and len(titles) > 1:
        with suppress(Exception):  # pickle raises several kinds
            beside = 1 if b"__main__" in pickle.dumps(dict(pieces)) else all_of.jobs
    full = len(titles) - len(titles) % beside
    with stopping_on_signals(stop.set):
        for wave in (titles[:full], titles[full:]):
            if beside > 1 and len(wave) > 1:
                apart = {title: pieces[title] for title in wave}
                _do_apart(apart, all_of, stop, rounds_done, ended)
                continue
            for title in wave:
                if stop.is_set():
                    break
                with shown_by(partial(rounds_done, title)) if rounds_done else nullcontext():
                    result = pieces[title](all_of)
                ended(title, result)
    return stop.is_set()


def _do_apart(
    pieces: Mapping[str, Work],
    all_of: Turn,
    stop: Event,
    rounds_done: Callable[[str, int], None] | None,
    ended: Callable[[str, Any], None],
) -> None:
    """Do pieces of work in worker processes, each with an equal share of all processes."""
    share = max(1, all_of.jobs // len(pieces))
    free = []
    for first in range(0, all_of.jobs - share + 1, share):
        free.append(Turn(share, all_of.devices[first : first + share]))
    waiting = list(pieces)
    running: dict[Worker, tuple[str, Turn]] = {}
    try:
        while running or (waiting and not stop.is_set()):
            while waiting and free and not stop.is_set():
                title, turn = waiting.pop(0), free.pop(0)
                worker = Worker()
                running[worker] = title, turn
                worker.begin(partial(_do, pieces[title], turn))
            if stop.is_set():
                for worker in running:
                    worker.stop()
            for worker, kind, value in news(running):
                title, turn = running[worker]
                if kind == "rounds":
                    if rounds_done is not None:
                        rounds_done(title, value)
                    continue
                del running[worker]
                worker.end()
                if kind == "raised":
                    raise value
                free.append(turn)
                if kind == "ended":
                    value = Failed(f"{value}; the same command goes on after its last round")
                # One that ends while others stop is as unfinished as these.
                if kind == "returned" or not stop.is_set():
                    ended(title, value)
    finally:
        for worker in running:
            worker.end()


def _do(work: Work, turn: Turn) -> Any:
    with shown_by(partial(say, "rounds")):
        return work(turn)
