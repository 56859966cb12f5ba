# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Clients for worker processes: each does one thing, such as ending its own process."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from helpers.driving import LeastSquares

from monai_fairfl.errors import ConfigError
from monai_fairfl.protocol.messages import Reply, Request

logger = logging.getLogger("monai_fairfl.tests")


class Echo:
    """Sends back what it received, as update and as buffers."""

    def answer(self, request: Request) -> Reply:
        return Reply(request.client, request.weights, 1, buffers=request.weights, id=request.id)


DECLARED: list[str] = []
"""What modules that a worker imports add to."""


class Reporting:
    """Measures where it lives and how torch is set; it writes a line when it is let go."""

    def __init__(self, log: Path | None = None):
        self.answered = 0
        self.log = log

    def answer(self, request: Request) -> Reply:
        self.answered += 1
        measured: dict[str, Any] = {
            "process": float(os.getpid()),
            "answered": float(self.answered),
            "address": float(request.weights["w"].data_ptr()),
            "threads": float(torch.get_num_threads()),
            "deterministic": float(torch.are_deterministic_algorithms_enabled()),
            "cudnn_deterministic": float(torch.backends.cudnn.deterministic),
            "declared": float(len(DECLARED)),
        }
        return Reply(request.client, None, 0, measured, id=request.id)

    def finalize(self) -> None:
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{os.getpid()}\n")


class Deterministic(Reporting):
    """Makes cuDNN deterministic when it is built, as a bundle does."""

    def __init__(self) -> None:
        super().__init__()
        torch.backends.cudnn.deterministic = True


class Acting(LeastSquares):
    """Does something before it answers its requests of one round, once; see :data:`ACTIONS`.

    Args:
        target: of the training.
        action: its name.
        number: of the round.
        done: a file that it writes when it has done it.
    """

    def __init__(self, target: list[float], action: str, number: int, done: Path):
        super().__init__(target)
        self.action = action
        self.number = number
        self.done = done

    def answer(self, request: Request) -> Reply:
        if request.round == self.number and not self.done.exists():
            self.done.touch()
            ACTIONS[self.action]()
        return super().answer(request)


def _raise() -> None:
    raise ConfigError("slices must be 1 or more, got 0") from ValueError("range")


def _log_and_warn() -> None:
    logger.info("of the %s", "client", extra={"site": "elm"})
    logger.debug("too fine")
    warnings.warn("an odd image", UserWarning, stacklevel=1)


ACTIONS: dict[str, Callable[[], Any]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: sys.exit(3),
    "raise": _raise,
    "log": _log_and_warn,
    "sleep": lambda: time.sleep(2),
}


class Talking:
    """Logs and warns from several threads, and from a process that it forks, while it answers."""

    def answer(self, request: Request) -> Reply:
        def talk() -> None:
            # So long that a message takes two writes.
            for _ in range(200):
                logger.info("x" * 30_000)

        threads = [threading.Thread(target=talk) for _ in range(4)]
        for thread in threads:
            thread.start()
        child = os.fork()
        if child == 0:
            logger.warning("of the forked process")
            warnings.warn("of the forked process", UserWarning, stacklevel=1)
            os._exit(0)
        os.waitpid(child, 0)
        number = 0
        while any(thread.is_alive() for thread in threads):
            number += 1
            warnings.warn(f"in between {number}", UserWarning, stacklevel=1)
            time.sleep(0.001)
        return Reply(request.client, None, 0, {"score": 1.0}, id=request.id)


class Unsendable:
    """Its reply holds what cannot be pickled."""

    def answer(self, request: Request) -> Reply:
        return replace(Reply(request.client, None, 0, id=request.id), measurements=lambda: 0)  # type: ignore[arg-type]


class Endless:
    """Starts a process of its own, writes both numbers into a file, and never answers."""

    def __init__(self, file: Path):
        self.file = file

    def answer(self, request: Request) -> Reply:
        child = subprocess.Popen(["sleep", "600"])
        with self.file.open("a") as file:
            file.write(f"{os.getpid()}\n{child.pid}\n")
        time.sleep(600)
        raise AssertionError


TARGETS = {"A": [1.0, 0.0], "B": [0.0, 1.0], "C": [2.0, 2.0], "D": [0.5, 0.0]}


def honest() -> dict[str, Callable[[], LeastSquares]]:
    """Client -> its maker, for every client of :data:`TARGETS`."""
    makers = {}
    for name, target in TARGETS.items():
        makers[name] = partial(LeastSquares, target)
    return makers


def children_of(process: int) -> list[int]:
    """The processes that a process has started."""
    words = ["ps", "-A", "-o", "pid=,ppid="]
    listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    pairs = [line.split() for line in listed.splitlines()]
    return [int(pid) for pid, parent in pairs if int(parent) == process]


def is_alive(process: int) -> bool:
    """Whether a process runs; one that ended and that nobody has waited for does not."""
    words = ["ps", "-o", "stat=", "-p", str(process)]
    state = subprocess.run(words, capture_output=True, text=True).stdout.strip()
    return bool(state) and not state.startswith("Z")


def all_end(processes: list[int], seconds: float = 20) -> bool:
    """Whether all of the processes end within some seconds."""
    deadline = time.monotonic() + seconds
    while any(is_alive(process) for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
