# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What runs in a worker process: it answers requests to its clients until the pool is gone."""

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

from monai_fairfl.errors import in_words
from monai_fairfl.protocol.messages import Reply, failed
from monai_fairfl.protocol.values import Weights
from monai_fairfl.transports.in_process import Clients
from monai_fairfl.transports.workers.messages import (
    Answered,
    Ask,
    Begun,
    Logged,
    Release,
    Released,
    Warned,
    send,
)
from monai_fairfl.transports.workers.shared_memory import SharedMemory
from monai_fairfl.utils.terminal import quiet


def serve(connection: int, received: int, sent: int) -> NoReturn:
    """Answer the pool's messages; this function only ends with the process.

    Args:
        connection: file descriptor of the connection to the pool.
        received: descriptor of the memory that the pool writes.
        sent: descriptor of the memory that this process writes.
    """
    pool = Connection(connection)
    # The main thread works. Another one waits for messages, and so notices the pool's end.
    messages: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_take_in, args=(pool, messages), daemon=True).start()
    begin = pickle.loads(messages.get())
    for module in begin.modules:
        # What is missing matters when a client needs it: its reply then says so.
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    worker = _Worker(pool, SharedMemory(received), SharedMemory(sent))
    with quiet():
        _report_to(pool)
        send(pool, Begun())
        while True:
            worker.take(pickle.loads(messages.get()))


def _take_in(pool: Connection, messages: SimpleQueue[bytes]) -> None:
    """Queue the pool's messages; when the pool is gone, end this process at once.

    It may be in the middle of a training: its client's files are whole at every moment.
    """
    while True:
        try:
            messages.put(pool.recv_bytes())
        except (EOFError, OSError):
            # The whole group: processes that load images for this one end, too.
            os.killpg(os.getpgrp(), signal.SIGKILL)


class _Worker:
    """The clients of this process.

    Args:
        pool: to which replies go.
        received: memory with the weights of a request.
        sent: memory for the tensors of a reply.
    """

    def __init__(self, pool: Connection, received: SharedMemory, sent: SharedMemory):
        self._pool = pool
        self._received = received
        self._sent = sent
        # The transport's number -> its clients.
        self._clients: defaultdict[int, Clients] = defaultdict(Clients)
        self._model: Weights = {}

    def take(self, message: Any) -> None:
        """Carry out what the pool asks for."""
        if isinstance(message, Ask):
            self._answer(message)
        elif isinstance(message, Release):
            self._clients.pop(message.owner, Clients()).close()
            send(self._pool, Released())

    def _answer(self, asked: Ask) -> None:
        asked.torch.apply()
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

    def _send(self, reply: Reply) -> None:
        update, buffers = self._sent.write([reply.update or {}, reply.buffers or {}])
        answered = Answered(
            replace(reply, update=None, buffers=None),
            update if reply.update is not None else None,
            buffers if reply.buffers is not None else None,
        )
        send(self._pool, answered)


class _Forwarding(QueueHandler):
    """Sends log records to the pool's process, whose handlers show them."""

    def enqueue(self, record: logging.LogRecord) -> None:
        send(self.queue, Logged(record))  # type: ignore[arg-type]


def _report_to(pool: Connection) -> None:
    """Let the pool's process show what is logged here, and what is warned of."""

    def warned(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        send(pool, Warned(str(message), category, filename, lineno))

    logging.getLogger().addHandler(_Forwarding(pool))  # type: ignore[arg-type]
    warnings.showwarning = warned
