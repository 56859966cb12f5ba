# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A full disk ends a run with a clear error, and one run at a time has a folder locked."""

from __future__ import annotations

import fcntl
import os
import signal
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.faults_of_folders import files_of_at_most, leftovers
from helpers.least_squares_federation import (
    Listening,
    changing,
    federation,
    global_weights,
    ledger_bytes,
    nobody,
)

from monai_fairfl.errors import DiskFullError, FederationError
from monai_fairfl.run_folder import Checkpoint, Checkpoints


def test_a_ledger_that_cannot_grow_keeps_its_whole_lines_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    federation(tmp_path / "whole").run()
    with files_of_at_most(len(ledger_bytes(tmp_path / "whole")) * 2 // 3):
        with pytest.raises(DiskFullError, match=r"ledger\.jsonl .*bytes"):
            federation(tmp_path / "parts").run()
    begun = ledger_bytes(tmp_path / "parts")
    assert begun.endswith(b"\n") and ledger_bytes(tmp_path / "whole").startswith(begun)
    assert len(begun.splitlines()) > 1 and not leftovers(tmp_path / "parts")

    federation(tmp_path / "parts").run(resume=True)
    assert ledger_bytes(tmp_path / "parts") == ledger_bytes(tmp_path / "whole")
    assert torch.equal(global_weights(tmp_path / "parts"), global_weights(tmp_path / "whole"))


@pytest.mark.parametrize("size", [100, 600], ids=["no tensors", "no large tensors"])
def test_a_checkpoint_that_finds_no_room_leaves_the_previous_one(size: int, tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    for number in (0, 1):
        store.save(Checkpoint(number, {"w": torch.full((4,), float(number))}))
    with files_of_at_most(size), pytest.raises(DiskFullError, match="round-0002.*bytes"):
        store.save(Checkpoint(2, {"w": torch.zeros(4)}, {"A": {"w": torch.zeros(1000)}}))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round-0000", "round-0001"]
    found = store.load()
    assert found is not None and found.round == 1 and found.weights["w"].tolist() == [1.0] * 4


# --- locks


def test_a_second_run_in_the_same_folder_is_refused_while_the_first_goes_on(tmp_path: Path) -> None:
    refused: list[str] = []

    def start_another(record: Any) -> None:
        if record.get("round") == 1:
            with pytest.raises(FederationError, match="in use") as error:
                federation(tmp_path / "two", transport=nobody()).run(resume=True)
            refused.append(str(error.value))

    federation(tmp_path / "two", observer=Listening(start_another)).run()
    assert len(refused) == 1 and "two/run" in refused[0]
    federation(tmp_path / "one").run()
    assert ledger_bytes(tmp_path / "one") == ledger_bytes(tmp_path / "two")


def run_and_die(folder: Path) -> None:
    def die(record: Any) -> None:
        if record.get("round") == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    federation(folder, observer=Listening(die)).run()


def test_a_folder_is_free_again_when_its_run_was_killed(tmp_path: Path) -> None:
    killed = get_context("fork").Process(target=run_and_die, args=(tmp_path,))
    killed.start()
    killed.join(60)
    assert killed.exitcode == -signal.SIGKILL
    assert federation(tmp_path).run(resume=True).finished


def test_a_file_system_without_locks_holds_no_run_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unsupported(file: Any, how: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    assert federation(tmp_path).run().finished
    assert [message for message in caplog.messages if "locked" in message]


# --- the order on the disk


def test_a_round_is_on_disk_in_the_ledger_before_its_checkpoint_and_before_the_next_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync = os.fsync

    def recorded_fsync(descriptor: int) -> None:
        done.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def asked(request: Any) -> bool:
        done.append(f"asked {request.round}")
        return False

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    federation(tmp_path, transport=changing(asked), rounds=2).run()
    order = [name for name in dict.fromkeys(done) if "asked" in name]
    assert order == ["asked 0", "asked 1", "asked 2"]
    for number in (0, 1):
        of_round = done[done.index(f"asked {number}") : done.index(f"asked {number + 1}")]
        assert of_round.index("ledger.jsonl") < of_round.index("model.safetensors")
        assert ".manifest.json.writing" in of_round
    assert "ledger.jsonl" in done[: done.index("asked 0")]
    assert done[done.index("asked 2") :].count("ledger.jsonl") == 1
