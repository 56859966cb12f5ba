# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Clients and pieces of work for worker processes; each does one thing, such as ending its own
process.
"""

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
from functools import partial
from pathlib import Path
from typing import Any

import torch
from helpers.driving import LeastSquares
from helpers.least_squares_federation import TARGETS, federation

from monai_fairfl import InProcess, Reply, Request
from monai_fairfl.errors import ConfigError
from monai_fairfl.strategies import FedAvg, Rounds
from monai_fairfl.transports.workers import Turn, carry_out

logger = logging.getLogger("monai_fairfl.tests")


# --- clients


def honest() -> dict[str, Callable[[], LeastSquares]]:
    """Client -> its maker."""
    return {name: partial(LeastSquares, target) for name, target in TARGETS.items()}


class Echo:
    """Sends back what it received, as update and as buffers."""

    def answer(self, request: Request) -> Reply:
        return request.reply(request.weights, 1, buffers=request.weights)


class Reporting:
    """Measures where it lives and how torch is set, in a process that it makes deterministic."""

    def __init__(self) -> None:
        self.answered = 0
        torch.backends.cudnn.deterministic = True

    def answer(self, request: Request) -> Reply:
        self.answered += 1
        measured: dict[str, float] = {
            "process": os.getpid(),
            "answered": self.answered,
            "value": float(request.weights["w"][0]),
            "threads": torch.get_num_threads(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "own_setting": torch.backends.cudnn.deterministic,
            "imported": "wave" in sys.modules,
        }
        return request.reply(measurements=measured)


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


def refuse() -> None:
    raise ConfigError("slices must be 1 or more") from ValueError("range")


class Talking:
    """Logs from threads and warns while it answers; so does a process that it forks."""

    def answer(self, request: Request) -> Reply:
        # So long that a message takes two writes.
        long = {"args": ["x" * 30_000], "kwargs": {"extra": {"site": "elm"}}}
        threads = [threading.Thread(target=logger.info, **long) for _ in range(100)]
        for number, thread in enumerate(threads):
            thread.start()
            warnings.warn(f"an odd image {number} {'y' * 30_000}", stacklevel=1)
        child = os.fork()
        if child == 0:
            logger.warning("of the forked process")
            warnings.warn("of the forked process", stacklevel=1)
            os._exit(0)
        os.waitpid(child, 0)
        for thread in threads:
            thread.join()
        return request.reply(measurements={"score": 1.0})


class Unsendable:
    """Its reply holds what cannot be pickled."""

    def answer(self, request: Request) -> Reply:
        return request.reply(measurements={"score": threading.Lock()})


class Halved:
    """Its process is killed when a part of its reply is sent.

    Args:
        folder: gets a file that is named as the process; it answers once ``go`` is there.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def answer(self, request: Request) -> Reply:
        (self.folder / str(os.getpid())).touch()
        while not (self.folder / "go").exists():
            time.sleep(0.01)
        threading.Thread(target=self._end_after, args=[self._written()], daemon=True).start()
        return request.reply({"w": torch.zeros(20_000_000)}, 1)

    def _written(self) -> str:
        """The bytes that this process has written."""
        return Path("/proc/self/io").read_text().partition("wchar: ")[2].split()[0]

    def _end_after(self, before: str) -> None:
        while self._written() == before:
            time.sleep(0.01)
        end_by_kill()


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


def lost(*given: object) -> None:
    """A measurement of a module that a worker does not find."""


lost.__module__ = "not_there"


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


class Killing(FedAvg):
    """FedAvg whose process is killed before its second round, unless a file is there."""

    def __init__(self, killed: Path):
        super().__init__()
        self._killed = killed
        self._begun = 0

    def round(self, clients: Any) -> Rounds:
        self._begun += 1
        if self._begun == 2 and not self._killed.exists():
            self._killed.touch()
            end_by_kill()
        return (yield from super().round(clients))


def train(folder: Path, turn: Turn) -> Any:
    """Run a federation of four rounds whose process is killed once."""
    folder.mkdir(exist_ok=True)
    made = federation(folder, Killing(folder / "killed"), transport=InProcess(honest()))
    return made.run(resume=turn.again)


def end_always(turn: Turn) -> None:
    end_by_kill()


def raise_error(turn: Turn) -> None:
    raise ConfigError("this concerns all")


class UnsendableError(Exception):
    def __init__(self, one: int, two: int):
        super().__init__(f"{one} and {two}")


def raise_unsendable(turn: Turn) -> None:
    raise UnsendableError(1, 2)


def unsendable_result(turn: Turn) -> object:
    return threading.Lock()


def says_when_asked_to_stop(folder: Path, name: str) -> None:
    """Say by a file that this process was asked to stop."""
    usual = signal.getsignal(signal.SIGUSR1)
    assert callable(usual)

    def asked(number: int, frame: Any) -> None:
        usual(number, frame)
        (folder / f"{name}-asked").touch()

    signal.signal(signal.SIGUSR1, asked)


def two_pieces(folder: Path, name: str, turn: Turn) -> None:
    """Carry out two pieces, one after the other."""
    says_when_asked_to_stop(folder, name)
    carry_out({part: partial(meet, folder, name + part, "go") for part in "12"})


def late_piece(folder: Path, name: str, turn: Turn) -> None:
    """Prepare, and only then carry out a piece, as a training that checks its sites first."""
    says_when_asked_to_stop(folder, name)
    meet(folder, f"{name}1", "go", turn)
    carry_out({"2": partial(meet, folder, f"{name}2", "go")})


# --- processes


def descendants_of(process: int) -> list[int]:
    """The processes that a process has started, and those that these have."""
    words = ["ps", "-A", "-o", "pid=,ppid="]
    listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    found = [process]
    pairs = [line.split() for line in listed.splitlines()]
    for parent in found:
        found += [int(pid) for pid, of in pairs if int(of) == parent]
    return found[1:]


def is_alive(process: int) -> bool:
    """Whether a process runs; one that ended and that nobody has waited for does not."""
    words = ["ps", "-o", "stat=", "-p", str(process)]
    state = subprocess.run(words, capture_output=True, text=True).stdout.strip()
    return bool(state) and not state.startswith("Z")


def all_end(processes: list[int], seconds: float = 60) -> bool:
    """Whether all of the processes end within some seconds."""
    deadline = time.monotonic() + seconds
    while any(is_alive(process) for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
