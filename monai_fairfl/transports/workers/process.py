# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""One worker process: it does one thing after another for the process that started it, which shows
what is logged there, and notices its end.

A pipe leads to each process. ``concurrent.futures.ProcessPoolExecutor`` waits forever for a result
of which a process that was killed has sent a part.
"""

from __future__ import annotations

import atexit
import importlib
import io
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from logging.handlers import QueueHandler
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.backends import cudnn

from monai_fairfl.errors import FairFLError, FederationError, in_words
from monai_fairfl.messages import MEASUREMENTS
from monai_fairfl.utils.terminal import quiet, stop_for_good

TORCH_SETTINGS: Sequence[tuple[Callable[[], Any], Callable[[Any], Any]]] = (
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (partial(getattr, cudnn, "deterministic"), partial(setattr, cudnn, "deterministic")),
    (partial(getattr, cudnn, "benchmark"), partial(setattr, cudnn, "benchmark")),
)
"""What of torch's global settings decides a client's numbers: how it is read, and set."""


SECONDS_BETWEEN_LOOKS = 0.5
"""How often it is looked whether a worker that says nothing still runs."""


def packed(value: Any) -> memoryview:
    """A message, as bytes.

    By ``Connection.send``, torch would put each tensor into shared memory: a container has little
    of that, and a process may have few files open.

    >>> unpacked(packed({"w": torch.tensor([1.0, 2.0])}))
    {'w': tensor([1., 2.])}
    """
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getbuffer()


def unpacked(message: bytes | memoryview) -> Any:
    """A message of :func:`packed`, with its tensors on the CPU."""
    return torch.load(io.BytesIO(message), map_location="cpu", weights_only=False)


class Worker:
    """A process that does what it is asked, with torch set as in this one.

    >>> worker = Worker()
    >>> worker.begin(os.getpid)
    >>> found = []
    >>> while not found:
    ...     found = list(news([worker]))
    >>> found == [(worker, "returned", worker.process.pid)]
    True
    >>> worker.end()
    """

    def __init__(self) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        settings = [read() for read, _ in TORCH_SETTINGS]
        # Measurements of one's own are known where their modules are imported.
        functions = [entry.function for entry in MEASUREMENTS.values()]
        modules = {one.__module__ for one in functions if not isinstance(one, str)}
        self.process = prepare().Process(target=_serve, args=(theirs, settings, modules))
        with _undisturbed():
            try:
                self.process.start()
            except (ConnectionError, EOFError):
                # What forks workers was killed a moment ago, and the system does not say so yet.
                time.sleep(1)
                self.process.start()
        theirs.close()
        # Else Python would wait for the process when this one exits.
        atexit.register(self.end)

    def begin(self, do: Callable[[], Any]) -> None:
        """Ask for something, where there is nothing else to do; :func:`news` has what came of it.

        Args:
            do: a function that can be pickled.
        """
        # A process that has ended is news, too.
        with suppress(OSError):
            self.connection.send_bytes(packed(do))

    def take(self) -> tuple[str, Any] | None:
        """What the process says, see :func:`news`; ``None`` where that is nothing."""
        if not self.process.is_alive():
            # Processes that it started may have the connection open, too.
            self._kill()
        elif not self.connection.poll():
            return None
        try:
            kind, value = unpacked(self.connection.recv_bytes())
        except (EOFError, OSError):
            self.end()
            status = self.process.exitcode
            return "ended", (
                f"its worker process ended with status {status}: what it printed says why; -9 is "
                "SIGKILL, as for want of memory, of which fewer jobs need less"
            )
        if kind == "log":
            logger = logging.getLogger(value.name)
            if logger.isEnabledFor(value.levelno):
                logger.handle(value)
            return None
        return kind, value

    def stop(self) -> None:
        """Ask for an end of what it does after its round, and of all that it has yet to begin."""
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGUSR1)

    def end(self) -> None:
        """Kill the process, with the processes that it started."""
        if self.connection.closed:
            return
        atexit.unregister(self.end)
        self._kill()
        self.process.join()
        self.connection.close()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()


def news(workers: Iterable[Worker]) -> Iterator[tuple[Worker, str, Any]]:
    """What workers say: the next of each, once one of them does; nothing after a moment.

    It is ``"returned"`` with what a function returned, ``"raised"`` with its error, ``"rounds"``
    with their number in a federation, or ``"ended"`` with how the process ended.
    """
    asked = list(workers)
    wait([worker.connection for worker in asked], SECONDS_BETWEEN_LOOKS)
    for worker in asked:
        said = worker.take()
        if said is not None:
            yield worker, *said


@cache
def prepare() -> Any:
    """Start the process that workers are forks of, which imports the libraries in the meantime.

    Where there is a GPU, each worker imports them: it would be of no use to forks of a process in
    which a library has looked for it.
    """
    context = multiprocessing.get_context("forkserver")
    # Whole runs need the first one; an optimizer imports the second.
    modules = ["monai_fairfl.bundle.comparison", "torch._dynamo"]
    context.set_forkserver_preload([] if torch.cuda.is_available() else modules)
    with _undisturbed():
        forkserver.ensure_running()
    return context


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Inside, a process that starts never gets Ctrl-C, and knows nothing of a script.

    Ctrl-C is for this process, which then ends after the round. And a script that starts workers
    without a guard (``if __name__ == "__main__"``) would be run again by each of them.
    """
    # It would undo the mask when it starts.
    resource_tracker.ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


# --- in a worker process

_parent: list[Connection] = []
"""The way to the process that has started this one."""

_saying = threading.Lock()


def say(kind: str, value: Any) -> None:
    """Send something to the process that has started this worker, from any thread."""
    message = packed((kind, value))
    with _saying:
        _parent[0].send_bytes(message)


def _serve(connection: Connection, settings: Sequence[Any], modules: set[str]) -> None:
    """Do what is asked, until the other end is gone."""
    # A session of its own: it is killed with the processes that load images for it.
    os.setsid()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGUSR1, lambda number, frame: stop_for_good())
    for module in modules:
        # What is missing matters when a client needs it: its reply then says so.
        with suppress(ImportError):
            importlib.import_module(module)
    for (_, use), setting in zip(TORCH_SETTINGS, settings, strict=True):
        use(setting)
    _parent.append(connection)
    with quiet(), suppress(EOFError, OSError):
        _show_there()
        while True:
            do = connection.recv_bytes()
            try:
                say("returned", unpacked(do)())
            except Exception as error:
                # Others may be of a class that cannot be sent.
                known = isinstance(error, (FairFLError, OSError))
                say("raised", error if known else FederationError(in_words(error)))


def _end_with_parent() -> None:
    """End this process and those that it started when its parent is gone, however that ended.

    It may be in the middle of a training: its client's files are whole at every moment.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.killpg(0, signal.SIGKILL)


def _show_there() -> None:
    """Let the process that has started this one show what is logged here, and warned of."""
    log = QueueHandler(SimpleNamespace(put_nowait=partial(say, "log")))

    def show_here() -> None:
        logging.getLogger().removeHandler(log)
        logging.captureWarnings(False)

    logging.getLogger().addHandler(log)
    logging.captureWarnings(True)
    # For a process that this one forks, to load images.
    os.register_at_fork(after_in_child=show_here)
