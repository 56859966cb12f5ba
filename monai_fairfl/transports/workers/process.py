# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What runs in a worker process: it answers requests to its clients, and does whole pieces of work,
until the pool is gone.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import pickle
import signal
import sys
import threading
import warnings
from collections import defaultdict
from dataclasses import replace
from logging.handlers import QueueHandler
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, NoReturn, TextIO

from monai_fairfl.errors import FederationError, in_words
from monai_fairfl.messages import Reply, Weights, failed
from monai_fairfl.server.progress import shown_by
from monai_fairfl.transports.in_process import Clients
from monai_fairfl.transports.workers.messages import (
    Answered,
    Ask,
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
from monai_fairfl.transports.workers.shared_memory import SharedMemory
from monai_fairfl.utils.terminal import quiet, stop_for_good


def serve(connection: int, received: int, sent: int) -> NoReturn:
    """Answer the pool's messages; this function only ends with the process.

    Args:
        connection: file descriptor of the connection to the pool.
        received: descriptor of the memory that the pool writes.
        sent: descriptor of the memory that this process writes.
    """
    pool = _Pool(Connection(connection))
    # The main thread works. Another one waits for messages, and so notices the pool's end.
    messages: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_take_in, args=(pool.connection, messages), daemon=True).start()
    begin = messages.get()
    for module in begin.modules:
        # What is missing matters when a client needs it: its reply then says so.
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    worker = _Worker(pool, SharedMemory(received), SharedMemory(sent))
    with quiet():
        _report_to(pool)
        pool.send(Begun())
        while True:
            worker.take(messages.get())


class _Pool:
    """The way to the pool, for all threads of this process.

    A process that this one forks, to load images, inherits it and must not use it: its bytes would
    come between those of a reply.
    """

    def __init__(self, connection: Connection):
        self.connection = connection
        self._lock = threading.Lock()
        self._process = os.getpid()

    @property
    def is_own(self) -> bool:
        """Whether this is the process that the pool has started."""
        return os.getpid() == self._process

    def send(self, message: Any) -> None:
        """Send a message."""
        with self._lock:
            send(self.connection, message)


def _take_in(pool: Connection, messages: SimpleQueue[Any]) -> None:
    """Queue the pool's messages; when the pool is gone, end this process at once.

    It may be in the middle of a training: its client's files are whole at every moment. The main
    thread works when it is asked to stop, so that is done here.
    """
    while True:
        try:
            message = receive(pool)
        except (EOFError, OSError):
            # The whole group: processes that load images for this one end, too.
            os.killpg(os.getpgrp(), signal.SIGKILL)
        if isinstance(message, Stop):
            stop_for_good()
        else:
            messages.put(message)


class _Worker:
    """The clients of this process.

    Args:
        pool: to which replies go.
        received: memory with the weights of a request.
        sent: memory for the tensors of a reply.
    """

    def __init__(self, pool: _Pool, received: SharedMemory, sent: SharedMemory):
        self._pool = pool
        self._received = received
        self._sent = sent
        # The transport's number -> its clients.
        self._clients: defaultdict[int, Clients] = defaultdict(Clients)
        self._model: Weights = {}
        # Those of the pool's process, as they were set here last.
        self._settings: TorchSettings | None = None

    def take(self, message: Any) -> None:
        """Carry out what the pool asks for."""
        if isinstance(message, Ask):
            self._answer(message)
        elif isinstance(message, Release):
            self._clients.pop(message.owner, Clients()).close()
            self._pool.send(Released())
        elif isinstance(message, Do):
            self._do(message)

    def _use(self, settings: TorchSettings) -> None:
        """Compute as the pool's process does.

        Settings that did not change are not set again: what a client has set when it was built
        stays, as in one process. A bundle so makes cuDNN deterministic.
        """
        if settings != self._settings:
            settings.apply()
            self._settings = settings

    def _answer(self, asked: Ask) -> None:
        self._use(asked.torch)
        if asked.model is not None:
            self._model = self._received.read(asked.model)
        request = replace(asked.request, weights=self._model)
        reply = self._clients[asked.owner].answer(request, lambda: pickle.loads(asked.make)())
        # What the client printed must not be lost if this process is killed.
        sys.stdout.flush()
        try:
            self._send(reply)
        except Exception as error:
            # A reply that cannot be sent is a fault of its client alone.
            self._send(failed(request, in_words(error)))

    def _do(self, asked: Do) -> None:
        self._use(asked.torch)
        try:
            with shown_by(self._report_rounds):
                did = Did(pickle.loads(asked.work)())
        except Exception as error:
            did = Did(error=_sendable(error))
        sys.stdout.flush()
        try:
            self._pool.send(did)
        except Exception as error:
            self._pool.send(Did(error=_sendable(error)))

    def _report_rounds(self, number: int) -> None:
        self._pool.send(RoundsDone(number))

    def _send(self, reply: Reply) -> None:
        update, buffers = self._sent.write([reply.update or {}, reply.buffers or {}])
        # A client that only measured has none, which is not the same as an empty one.
        places = Answered(replace(reply, update=None, buffers=None), None, None)
        if reply.update is not None:
            places = replace(places, update=update)
        if reply.buffers is not None:
            places = replace(places, buffers=buffers)
        self._pool.send(places)


def _sendable(error: Exception) -> Exception:
    """An error as it is, where the pool can receive it, else one with its words."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever a class of one's own raises
        return FederationError(in_words(error))
    return error


class _Forwarding(QueueHandler):
    """Sends log records to the pool's process, whose handlers show them."""

    def __init__(self, pool: _Pool):
        super().__init__(SimpleQueue())
        self._pool = pool

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record; one of a forked process goes to standard error, if it is a warning."""
        if self._pool.is_own:
            super().emit(record)
        elif logging.lastResort is not None and record.levelno >= logging.lastResort.level:
            logging.lastResort.handle(record)

    def enqueue(self, record: logging.LogRecord) -> None:
        """Send a record that can be pickled."""
        self._pool.send(Logged(record))


def _report_to(pool: _Pool) -> None:
    """Let the pool's process show what is logged here, and what is warned of."""
    usual = warnings.showwarning

    def warned(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if pool.is_own:
            pool.send(Warned(str(message), category, filename, lineno))
        else:
            usual(message, category, filename, lineno, file, line)

    logging.getLogger().addHandler(_Forwarding(pool))
    warnings.showwarning = warned
