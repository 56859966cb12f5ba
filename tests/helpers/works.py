# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Pieces of work for the scheduler: each does one thing, such as ending its own process."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from helpers.least_squares_federation import federation
from helpers.worker_clients import honest

from monai_fairfl.errors import ConfigError
from monai_fairfl.server.federation import History
from monai_fairfl.strategies import FedAvg, Strategy
from monai_fairfl.transports.in_process import InProcess
from monai_fairfl.transports.workers import Turn
from monai_fairfl.utils.files import write_atomically
from monai_fairfl.utils.terminal import stopping_on_signals


def seen(turn: Turn) -> dict[str, Any]:
    """Where it is done, and with what."""
    return {
        "process": os.getpid(),
        "jobs": turn.jobs,
        "devices": list(turn.devices),
        "again": turn.again,
        "has_pool": turn.pool is not None,
    }


def meet(folder: Path, name: str, number: int, turn: Turn) -> dict[str, Any]:
    """Wait until ``number`` of these are at work at the same time."""
    (folder / name).touch()
    deadline = time.monotonic() + 60
    while len(list(folder.iterdir())) < number:
        assert time.monotonic() < deadline, "nobody else came"
        time.sleep(0.01)
    return seen(turn)


class Waiting(FedAvg):
    """FedAvg whose rounds say by a file that they have begun, and wait until another is there."""

    def __init__(self, begun: Path, go: Path):
        super().__init__()
        self._begun = begun
        self._go = go

    def round(self, clients: Any) -> Any:
        self._begun.touch()
        deadline = time.monotonic() + 120
        while not self._go.exists():
            assert time.monotonic() < deadline, "nobody wrote the file"
            time.sleep(0.01)
        return (yield from super().round(clients))


class Killing(FedAvg):
    """FedAvg whose process is killed before its second round, as long as a file is not there."""

    def __init__(self, killed: Path):
        super().__init__()
        self._killed = killed

    def round(self, clients: Any) -> Any:
        self._begun = getattr(self, "_begun", 0) + 1
        if self._begun == 2 and not self._killed.exists():
            self._killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return (yield from super().round(clients))


def train(folder: Path, kind: str, turn: Turn) -> History:
    """Run a federation of four rounds; one whose process ended goes on."""
    strategy: Strategy = FedAvg()
    if kind == "waiting":
        strategy = Waiting(folder / "in a round", folder.parent / "go")
    elif kind == "killing":
        strategy = Killing(folder / "killed")
    folder.mkdir(exist_ok=True)
    made = federation(folder, strategy, transport=InProcess(honest()))
    with stopping_on_signals(made.stop):
        return made.run(resume=turn.again)


def end_always(turn: Turn) -> None:
    """End its process, however often it is tried."""
    os.kill(os.getpid(), signal.SIGKILL)


def raise_error(turn: Turn) -> None:
    raise ConfigError("this concerns all")


class UnsendableError(Exception):
    def __init__(self, one: int, two: int):
        super().__init__(f"{one} and {two}")
        self.lock = threading.Lock()


def raise_unsendable(turn: Turn) -> None:
    raise UnsendableError(1, 2)


def endless(file: Path, turn: Turn) -> None:
    """Write the number of its process, and never end."""
    # The process may be killed at any moment: the file is there whole, or not at all.
    write_atomically(file, str(os.getpid()).encode())
    time.sleep(600)


def unsendable_result(turn: Turn) -> Any:
    return threading.Lock()
