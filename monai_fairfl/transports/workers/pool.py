# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Worker processes of this machine, which several transports use one after the other."""

from __future__ import annotations

import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import Any

import torch

from monai_fairfl.messages import Reply, Request, Weights
from monai_fairfl.transports.workers.messages import (
    Answered,
    Ask,
    Begin,
    Begun,
    Did,
    Do,
    Logged,
    Release,
    Released,
    RoundsDone,
    Stop,
    TorchSettings,
    Warned,
    receive,
    send,
)
from monai_fairfl.transports.workers.shared_memory import Layout, SharedMemory, new_descriptor
from monai_fairfl.utils.terminal import interrupts_ignored

BOOT = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from monai_fairfl.transports.workers.process import serve
serve(*map(int, sys.argv[2:]))
"""
"""What a worker runs. It imports no script that the pool's process was started with, which would
begin its work again.
"""

SECONDS_BETWEEN_LOOKS = 0.5
"""How often the pool looks whether a worker still runs, while it waits for its answer."""

SECONDS_TO_END = 10.0
"""How long a process that was killed may take to be gone."""


class WorkerEnded(Exception):
    """A worker process ended; the text says how."""


class Worker:
    """One worker process, as the pool sees it.

    It is started at once; importing its modules takes it seconds, in which this process goes on.

    Args:
        modules: that it imports before its first request.
    """

    def __init__(self, modules: Sequence[str]):
        self.connection, other_end = Pipe()
        self._sent = SharedMemory(new_descriptor())
        self._received = SharedMemory(new_descriptor())
        self.process = _started(
            [other_end.fileno(), self._sent.descriptor, self._received.descriptor]
        )
        other_end.close()
        # Messages that the worker has yet to answer.
        self.unanswered = 0
        # What the worker has as the weights of a request, names and tensors.
        self._model: list[tuple[str, torch.Tensor]] | None = None
        # Whether its modules are imported; one that ends before that cannot run here at all.
        self.has_begun = False
        with suppress(OSError):
            # A process that is gone already is noticed with the first request.
            send(self.connection, Begin(modules))

    def ask(self, owner: int, request: Request, make: bytes) -> None:
        """Send a request. Its weights are only written if those of the previous one were others.

        Args:
            owner: number of the transport.
            request: to one of its clients.
            make: the function that makes the client, pickled.

        Raises:
            WorkerEnded: when the process is gone.
        """
        layout = self._written(request.weights)
        bare = replace(request, weights={})
        self._send(Ask(owner, make, bare, layout, TorchSettings.of_this_process()))

    def release(self, owner: int) -> None:
        """Ask the worker to let the clients of a transport go.

        Raises:
            WorkerEnded: when the process is gone.
        """
        self._send(Release(owner))

    def begin(self, work: bytes) -> None:
        """Send a piece of work: a function without arguments, pickled.

        Raises:
            WorkerEnded: when the process is gone.
        """
        self._send(Do(work, TorchSettings.of_this_process()))

    def stop(self) -> None:
        """Ask for an end of the present work after its round; a process that is gone needs none."""
        with suppress(OSError):
            send(self.connection, Stop())

    def forget_model(self) -> None:
        """Write the next request's weights in any case.

        Between two exchanges the server may put other numbers into the same tensors.
        """
        self._model = None

    def answer(self) -> Reply | Released | RoundsDone | Did | None:
        """What the worker answered; ``None`` where there is no answer yet.

        A piece of work reports its rounds before it answers.

        Raises:
            WorkerEnded: when the process is gone, and all that it sent was read.
        """
        if not self.connection.poll():
            # A process that it started may have the connection open, too, and live a little longer.
            if self.process.poll() is not None and not self.connection.poll():
                raise WorkerEnded(self._how_it_ended())
            return None
        try:
            message = receive(self.connection)
        except (EOFError, OSError) as error:
            raise WorkerEnded(self._how_it_ended()) from error
        if isinstance(message, Begun):
            self.has_begun = True
        elif isinstance(message, Logged):
            _show_log(message)
        elif isinstance(message, Warned):
            warnings.warn_explicit(
                message.text, message.category, message.file, message.line, registry=_SHOWN
            )
        elif isinstance(message, Answered):
            self.unanswered -= 1
            return self._whole(message)
        elif isinstance(message, (Released, Did)):
            self.unanswered -= 1
            return message
        elif isinstance(message, RoundsDone):
            return message
        return None

    def end(self) -> None:
        """End the process at once, with the processes that it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.connection.close()
        self._sent.close()
        self._received.close()

    def _send(self, message: Any) -> None:
        self.unanswered += 1
        try:
            if self.process.poll() is None:
                send(self.connection, message)
                return
        except OSError as error:
            raise WorkerEnded(self._how_it_ended()) from error
        raise WorkerEnded(self._how_it_ended())

    def _written(self, weights: Weights) -> Layout | None:
        """Where the worker finds these weights; ``None`` where it has them already."""
        # A mapping may make its tensors when it is asked for them: once, here.
        model = list(weights.items())
        if self._model is not None and _same_tensors(model, self._model):
            return None
        [layout] = self._sent.write([dict(model)])
        self._model = model
        return layout

    def _whole(self, answered: Answered) -> Reply:
        """The reply with its tensors."""
        update = None
        if answered.update is not None:
            update = self._received.read(answered.update)
        buffers = None
        if answered.buffers is not None:
            buffers = self._received.read(answered.buffers)
        return replace(answered.reply, update=update, buffers=buffers)

    def _how_it_ended(self) -> str:
        try:
            status = self.process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            return "its worker process closed its connection"
        if status < 0:
            names = {number.value: number.name for number in signal.Signals}
            name = names.get(-status, str(-status))
            return f"its worker process was ended by the signal {name}{_HINTS.get(name, '')}"
        return f"its worker process ended with status {status}; what it printed says why"


_HINTS = {"SIGKILL": " (for want of memory? fewer jobs need less)"}
"""Signal -> where it may have come from."""

_SHOWN: dict[Any, Any] = {}
"""What workers warned of, so that every warning is shown once, and not by each of them."""


def _same_tensors(
    one: Sequence[tuple[str, torch.Tensor]], two: Sequence[tuple[str, torch.Tensor]]
) -> bool:
    if len(one) != len(two):
        return False
    for (name, tensor), (other_name, other) in zip(one, two):
        if name != other_name or tensor is not other:
            return False
    return True


def _show_log(message: Logged) -> None:
    """Let the handlers of this process show a worker's record."""
    logger = logging.getLogger(message.record.name)
    if logger.isEnabledFor(message.record.levelno):
        logger.handle(message.record)


def _started(descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
    """A new worker process, which gets these file descriptors.

    It leads a group of its own: Ctrl-C is for the pool's process, which then ends after the round.
    """
    words = [sys.executable]
    for option in sys.warnoptions:
        words += ["-W", option]
    words += ["-c", BOOT, json.dumps(sys.path), *map(str, descriptors)]
    return subprocess.Popen(
        words, stdin=subprocess.DEVNULL, pass_fds=descriptors, start_new_session=True
    )


class WorkerPool:
    """Worker processes, numbered from 0.

    They begin when the pool is entered, and end when it is left. They also end when this process
    does, however that ends. One that ended by itself is started again when it is next needed.

    Args:
        number: of processes.
        modules: that each imports before its first request; those that cannot be imported are left
            out.
        at_once: how many begin when the pool is entered, all by default; any other begins when it
            is needed.

    >>> with WorkerPool(2) as pool:
    ...     len(pool)
    2
    """

    def __init__(self, number: int, modules: Sequence[str] = (), at_once: int | None = None):
        self._modules = list(modules)
        self._at_once = number if at_once is None else min(number, at_once)
        self._workers: list[Worker | None] = [None] * number
        self._owners = itertools.count()
        self._closed = False

    def __len__(self) -> int:
        return len(self._workers)

    def __enter__(self) -> WorkerPool:
        try:
            for number in range(self._at_once):
                self.worker(number)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def new_owner(self) -> int:
        """A number for one more transport, whose clients are its own."""
        return next(self._owners)

    def worker(self, number: int) -> Worker:
        """The worker of that number, started where there is none.

        Raises:
            RuntimeError: when the pool is closed: nobody would end the worker.
        """
        if self._closed:
            raise RuntimeError("the pool of worker processes is closed: use it inside its with")
        worker = self._workers[number]
        if worker is None:
            worker = Worker(self._modules)
            self._workers[number] = worker
        return worker

    def running(self) -> dict[int, Worker]:
        """Number -> worker, of those that were started and are not known to have ended."""
        found = {}
        for number, worker in enumerate(self._workers):
            if worker is not None:
                found[number] = worker
        return found

    def end(self, number: int) -> None:
        """End a worker; the next request to it starts another one."""
        worker = self._workers[number]
        self._workers[number] = None
        if worker is not None:
            worker.end()

    def close(self) -> None:
        """End all workers; Ctrl-C does not stop that, as it takes a moment only."""
        self._closed = True
        with interrupts_ignored():
            for number in range(len(self)):
                self.end(number)


def wait_for(workers: Sequence[Worker]) -> None:
    """Return when one of the workers has sent something, or after a short time."""
    wait([worker.connection for worker in workers], SECONDS_BETWEEN_LOOKS)
