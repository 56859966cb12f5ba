# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A full disk, one run at a time in a folder, and hostile files in it."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import resource
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.driving import Listening
from helpers.faults_of_folders import files_of_at_most, leftovers
from helpers.least_squares_federation import (
    changing,
    federation,
    global_weights,
    ledger_bytes,
    nobody,
)

from monai_fairfl.errors import DiskFullError, FederationError
from monai_fairfl.run import Checkpoint, Checkpoints


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


def test_a_checkpoint_that_finds_no_room_leaves_the_previous_one(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    for number in (0, 1):
        store.save(Checkpoint(number, {"w": torch.full((4,), float(number))}))
    with files_of_at_most(600), pytest.raises(DiskFullError, match="round-0002.*bytes"):
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
        assert of_round.index("ledger.jsonl") < of_round.index(".model.safetensors.writing")
        assert ".manifest.json.writing" in of_round
    assert "ledger.jsonl" in done[: done.index("asked 0")]
    assert done[done.index("asked 2") :].count("ledger.jsonl") == 1


# --- safetensors; a manifest is mended to fit, as somebody does who changes a file on purpose


class Bomb:
    """A pickle that ends the process which reads it."""

    def __reduce__(self) -> Any:
        return (os._exit, (9,))


HOSTILE = {
    "a header of 2^62 bytes": struct.pack("<Q", 2**62) + b"{}",
    "a pickle": pickle.dumps(Bomb()),
}


def put(folder: Path, content: bytes) -> None:
    """Put a file in the place of the model, with a manifest that fits."""
    (folder / "model.safetensors").write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["sha256"]["model.safetensors"] = hashlib.sha256(content).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_a_hostile_checkpoint_is_refused_before_memory_is_spent(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for content in HOSTILE.values():
        checkpoints.save(Checkpoint(0, {"w": torch.ones(4)}))
        put(tmp_path / "round-0000", content)
        with pytest.raises(FederationError, match="round-0000"):
            checkpoints.load()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (after - before) * 1024 < 200_000_000
