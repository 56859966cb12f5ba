# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A run that was stopped, killed or finished is resumed: to the same bits, or not at all."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.faults_of_folders import forge
from helpers.least_squares_federation import (
    federation,
    global_weights,
    ledger_bytes,
    ledger_file,
    nobody,
    records_less_the_plan,
    stopped_in_round,
)

from monai_fairfl.errors import FederationError
from monai_fairfl.server import Observer
from monai_fairfl.strategies import FedAvg


def test_another_processor_is_named_when_a_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stopped_in_round(1, tmp_path).run()
    file = tmp_path / "run" / "schedule.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "processor": "an abacus"}))
    federation(tmp_path).run(resume=True)
    assert "an abacus" in caplog.text


# --- not at all


def test_a_run_whose_checkpoints_are_gone_is_not_begun_again(tmp_path: Path) -> None:
    stopped_in_round(1, tmp_path).run()
    before = ledger_bytes(tmp_path)
    checkpoints = tmp_path / "run" / "checkpoints"
    shutil.rmtree(checkpoints)
    (checkpoints / ".writing-round-0002").mkdir(parents=True)
    with pytest.raises(FederationError, match="has no checkpoints") as error:
        federation(tmp_path, transport=nobody()).run(resume=True)
    assert str(checkpoints) in str(error.value)
    assert ledger_bytes(tmp_path) == before


@pytest.mark.parametrize("left", [None, bytes(300)])
def test_a_run_without_its_ledger_is_not_begun_again(left: bytes | None, tmp_path: Path) -> None:
    """It is missing, or a crash of the machine left it empty or full of zeros."""
    stopped_in_round(1, tmp_path).run()
    ledger_file(tmp_path).unlink()
    if left is not None:
        ledger_file(tmp_path).write_bytes(left)
    for resume in (True, False):
        with pytest.raises(FederationError, match="ledger"):
            federation(tmp_path, transport=nobody()).run(resume)
    assert (ledger_file(tmp_path).read_bytes() if left is not None else None) == left
    assert (tmp_path / "run/checkpoints/round-0001/manifest.json").exists()


@pytest.mark.parametrize(
    "manipulate",
    [
        lambda records: records[1]["aggregation"].update(A=0.25),
        lambda records: records.__delitem__(slice(-2, None)),
    ],
)
def test_a_ledger_that_does_not_fit_its_checkpoint_is_not_resumed(
    manipulate: Any, tmp_path: Path
) -> None:
    """The chain of both is intact."""
    stopped_in_round(2, tmp_path).run()
    forge(tmp_path / "run", manipulate)
    before = ledger_bytes(tmp_path)
    with pytest.raises(FederationError, match="fit the checkpoint of round 2"):
        federation(tmp_path, transport=nobody(), rounds=6).run(resume=True)
    assert ledger_bytes(tmp_path) == before


# --- the settings of a run that goes on

OF_THE_EXPERIMENT: dict[str, Any] = {
    **{"evaluate": (), "buffers": "samples", "seed": 7, "clients_per_round": 2},
    **{"local_norm": True, "ranges": {"global_loss": [-1, 1]}, "samples": {"A": 7}},
}
OF_THE_RUN: dict[str, Any] = {
    **{"min_clients": 1, "timeout": 60.0, "final": (), "record_updates": True},
    **{"adapt_epochs": 4, "rounds": 1},
}


def test_a_resumed_run_may_change_just_the_settings_that_are_not_of_the_experiment(
    tmp_path: Path,
) -> None:
    opening = federation(tmp_path, FedAvg(), rounds=2).run().records[0]
    before = ledger_bytes(tmp_path)
    for name, now in OF_THE_EXPERIMENT.items():
        assert name in opening
        changed = federation(tmp_path, FedAvg(), **{"rounds": 2, name: now})
        with pytest.raises(FederationError, match=rf"\b{name} = "):
            changed.run(resume=True)
        assert ledger_bytes(tmp_path) == before
    for name, now in OF_THE_RUN.items():
        assert name not in opening
        changed = federation(tmp_path, FedAvg(), **{"rounds": 2, name: now})
        assert changed.run(resume=True).finished


# --- a finished run


def test_a_finished_run_is_over_and_a_concluded_one_ends_as_if_no_more_rounds_were_planned(
    tmp_path: Path,
) -> None:
    history = stopped_in_round(1, tmp_path / "concluded", "conclude").run()
    assert history.finished
    federation(tmp_path / "planned", rounds=2).run()
    planned = records_less_the_plan(tmp_path / "planned")
    assert records_less_the_plan(tmp_path / "concluded") == planned
    with pytest.raises(FederationError, match="ended"):
        federation(tmp_path / "planned").run(resume=True)

    finished = ledger_bytes(tmp_path / "concluded")
    resumed = federation(tmp_path / "concluded", transport=nobody()).run(resume=True)
    assert resumed.finished and resumed.records == history.records
    assert ledger_bytes(tmp_path / "concluded") == finished


# --- killed at each write


WRITES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate")
COUNTED = 2
"""The round whose operations are counted."""


class Counter(Observer):
    """Counts operations on files while a round is played; may kill the process.

    Just before one of them: opening a file to write, renaming, making or removing.
    """

    def __init__(self, die_at: int = -1):
        self.die_at = die_at
        self.count = 0
        self.counts = False
        sys.addaudithook(self._seen)

    def record_added(self, record: Mapping[str, Any]) -> None:
        self.counts = record.get("round") == COUNTED - 1

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


def play(folder: Path, counted: Any, die_at: int = -1) -> None:
    """Run it, and put the number of operations into ``counted``; or die before one of them."""
    counter = Counter(die_at)
    federation(folder, observer=counter).run()
    counted.value = counter.count


def in_a_process(*arguments: Any) -> int | None:
    """The exit code of a process that plays."""
    process = get_context("fork").Process(target=play, args=arguments)
    process.start()
    process.join(120)
    return process.exitcode


def test_a_kill_before_any_write_of_a_round_loses_nothing(tmp_path: Path) -> None:
    counted = get_context("fork").Value("i", 0)
    assert in_a_process(tmp_path / "whole", counted) == 0
    # Ledger, checkpoint of four files, schedule: each opened and renamed.
    assert counted.value > 10
    for die_at in range(counted.value):
        folder = tmp_path / str(die_at)
        assert in_a_process(folder, counted, die_at) == -signal.SIGKILL
        assert federation(folder).run(resume=True).finished
        assert ledger_bytes(folder) == ledger_bytes(tmp_path / "whole"), die_at
        assert torch.equal(global_weights(folder), global_weights(tmp_path / "whole"))
