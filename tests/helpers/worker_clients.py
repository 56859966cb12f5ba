# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Clients and pieces of work for worker processes; each does one thing, such as ending its own
process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from helpers.driving import LeastSquares
from helpers.least_squares_federation import TARGETS, clients, federation

from monai_fairfl import InProcess, Reply, Request
from monai_fairfl.errors import ConfigError
from monai_fairfl.transports.workers import Turn

# --- clients


class Echo:
    """Sends back what it received, as update and as buffers."""

    def answer(self, request: Request) -> Reply:
        return request.reply(request.weights, 1, buffers=request.weights)


class Reporting:
    """Measures where it lives, and how often it has answered."""

    answered = 0

    def answer(self, request: Request) -> Reply:
        self.answered += 1
        return request.reply(measurements={"process": os.getpid(), "answered": self.answered})


class Acting(LeastSquares):
    """Does something before it answers its first request of one round."""

    def __init__(self, name: str, action: Callable[[], object], number: int, done: Path):
        super().__init__(TARGETS[name])
        self.action = action
        self.number = number
        self.done = done

    def answer(self, request: Request) -> Reply:
        if request.round == self.number and not self.done.exists():
            self.done.touch()
            self.action()
        return super().answer(request)


def end_by_kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Unsendable:
    """Its reply holds what cannot be pickled."""

    def answer(self, request: Request) -> Reply:
        return request.reply(measurements={"score": threading.Lock()})


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


# --- pieces of work


def seen(turn: Turn) -> dict[str, Any]:
    """Where it is done, and with what."""
    return {"process": os.getpid(), **vars(turn)}


def meet(folder: Path, name: str, other: str, turn: Turn) -> dict[str, Any]:
    """Say by a file that it has begun, and wait for another file."""
    (folder / name).touch()
    deadline = time.monotonic() + 120
    while not (folder / other).exists():
        assert time.monotonic() < deadline, f"no {other}"
        time.sleep(0.01)
    return seen(turn)


def train(folder: Path, turn: Turn) -> Any:
    """Run a federation of four rounds."""
    return federation(folder, transport=InProcess(clients())).run()


def end(turn: Turn) -> None:
    end_by_kill()


def raise_error(turn: Turn) -> None:
    raise ConfigError("this concerns all")


# --- processes


def descendants_of(process: int) -> list[int]:
    """The processes that a process has started, and those that these have."""
    return [found.pid for found in psutil.Process(process).children(recursive=True)]


def is_alive(process: int) -> bool:
    """Whether a process runs; one that ended and that nobody has waited for does not."""
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(process).status() != psutil.STATUS_ZOMBIE)
    return False


def all_end(processes: list[int], seconds: float = 60) -> bool:
    """Whether all of the processes end within some seconds."""
    deadline = time.monotonic() + seconds
    while any(is_alive(process) for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
