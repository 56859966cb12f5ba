# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Kill -9 at any moment of a round, and the resumed run has the bits of a whole one.

A process runs the federation. It ends itself with SIGKILL just before one of its operations on
files: opening one to write, renaming, making or removing. Every operation of two rounds has its
turn.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.least_squares_federation import federation, global_weights, ledger_bytes

from monai_fairfl.server import Observer
from monai_fairfl.strategies import FedCE

WRITES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate")
FROM_ROUND, TO_ROUND = 1, 3


class Counter(Observer):
    """Counts operations on files while rounds 1 and 2 are played; may kill the process."""

    def __init__(self, die_at: int = -1):
        self.die_at = die_at
        self.count = 0
        self.counts = False
        sys.addaudithook(self._seen)

    def record_added(self, record: Mapping[str, Any]) -> None:
        number = record.get("round", -1) + 1
        self.counts = FROM_ROUND <= number < TO_ROUND

    def _seen(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.counts:
            return
        writes = event in WRITES
        if event == "open" and isinstance(arguments[2], int):
            writes = bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))
        if not writes:
            return
        if self.count == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1


def count_writes(folder: Path, counted: Any) -> None:
    """Run it whole, and put the number of operations into ``counted``."""
    counter = Counter()
    federation(folder, FedCE("sum"), observer=counter).run()
    counted.value = counter.count


def run_and_die(folder: Path, die_at: int) -> None:
    federation(folder, FedCE("sum"), observer=Counter(die_at)).run()


def in_a_process(target: Any, *arguments: Any) -> int | None:
    """Run a function in a process of its own; its exit code."""
    process = get_context("fork").Process(target=target, args=arguments)
    process.start()
    process.join(120)
    return process.exitcode


@pytest.mark.slow
@pytest.mark.long
def test_a_kill_before_any_write_of_a_round_loses_nothing(tmp_path: Path) -> None:
    counted = get_context("fork").Value("i", 0)
    assert in_a_process(count_writes, tmp_path / "whole", counted) == 0
    # Ledger, checkpoint of four files, schedule: each opened and renamed.
    assert counted.value > 20
    for die_at in range(counted.value):
        folder = tmp_path / str(die_at)
        assert in_a_process(run_and_die, folder, die_at) == -signal.SIGKILL
        assert federation(folder, FedCE("sum")).run(resume=True).finished
        assert ledger_bytes(folder) == ledger_bytes(tmp_path / "whole"), die_at
        assert torch.equal(global_weights(folder), global_weights(tmp_path / "whole"))
