# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fault 45: a full disk ends the run with a clear error, and the last good state remains."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers.checkout import CHECKOUT
from helpers.driving import LeastSquares
from helpers.least_squares_federation import TARGETS, federation, global_weights, ledger_bytes

from monai_fairfl.client.state import ClientState
from monai_fairfl.errors import DiskFullError
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.run_folder.checkpoint import Checkpoint, Checkpoints
from monai_fairfl.transports.in_process import InProcess
from monai_fairfl.valuation.utility import Key, MeasuredModels

ROOM = "could not be written .*: it needs [0-9]+ bytes, [0-9]+ are free there"


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file may grow beyond ``size`` bytes: the system refuses it as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def leftovers(folder: Path) -> list[Path]:
    """Files and folders that were not written to their end."""
    return [
        path for path in folder.rglob("*") if path.name.startswith(".") and path.name != ".lock"
    ]


def test_a_ledger_that_cannot_grow_keeps_its_whole_lines_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    federation(tmp_path / "whole").run()
    room = len(ledger_bytes(tmp_path / "whole")) * 2 // 3
    with files_of_at_most(room):
        with pytest.raises(DiskFullError, match=f"ledger.jsonl {ROOM}.*--resume True"):
            federation(tmp_path / "parts").run()
    begun = ledger_bytes(tmp_path / "parts")
    assert begun.endswith(b"\n") and ledger_bytes(tmp_path / "whole").startswith(begun)
    assert len(begun.splitlines()) > 1 and not leftovers(tmp_path / "parts")

    federation(tmp_path / "parts").run(resume=True)
    assert ledger_bytes(tmp_path / "parts") == ledger_bytes(tmp_path / "whole")
    assert torch.equal(global_weights(tmp_path / "parts"), global_weights(tmp_path / "whole"))


def test_a_valuation_without_room_for_a_score_names_the_file_and_keeps_the_others(
    tmp_path: Path,
) -> None:
    path = tmp_path / "measured.jsonl"
    models = MeasuredModels(path, "run")
    first, second = (Key(f"round {t}", frozenset("AB"), "score", frozenset("A")) for t in (0, 1))
    models.add(first, {"A": 0.5})
    before = path.read_bytes()
    with files_of_at_most(len(before) + 10), pytest.raises(DiskFullError, match=f"{path} {ROOM}"):
        models.add(second, {"A": 0.5})
    assert path.read_bytes() == before


def test_a_checkpoint_that_finds_no_room_leaves_the_previous_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation(tmp_path / "whole").run()
    save = Checkpoints.save

    def save_on_a_full_disk(self: Checkpoints, checkpoint: Checkpoint) -> None:
        with files_of_at_most(100 if checkpoint.round == 2 else 10**9):
            save(self, checkpoint)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", save_on_a_full_disk)
        with pytest.raises(DiskFullError, match=f"round-0002/.* {ROOM}"):
            federation(tmp_path / "parts").run()
    written = [path.name for path in (tmp_path / "parts" / "run" / "checkpoints").iterdir()]
    assert sorted(written) == ["round-0000", "round-0001"]
    assert not leftovers(tmp_path / "parts")

    federation(tmp_path / "parts").run(resume=True)
    assert ledger_bytes(tmp_path / "parts") == ledger_bytes(tmp_path / "whole")


class Storing(LeastSquares):
    """A client that stores a large state after each training."""

    def __init__(self, name: str, folder: Path):
        super().__init__(TARGETS[name])
        self.states = ClientState(folder / name)

    def answer(self, request: Request) -> Reply:
        reply = super().answer(request)
        if request.task == "train":
            state = {"local": torch.zeros(20_000), "round": request.round}
            if (request.client, request.round) != ("B", 1):
                self.states.save(request.run, request.round, state)
            else:
                with files_of_at_most(10_000):
                    self.states.save(request.run, request.round, state)
        return reply


def test_a_client_without_room_for_its_state_is_out_for_the_round_and_names_the_file(
    tmp_path: Path,
) -> None:
    clients = InProcess({name: partial(Storing, name, tmp_path / "sites") for name in TARGETS})
    history = federation(tmp_path, transport=clients).run()
    reason = history.rounds[1]["missing"]["B"]
    assert reason.startswith("error: DiskFullError: ")
    assert "sites/B/run-round-0001.pt could not be written" in reason and "bytes" in reason
    assert [set(record["missing"]) for record in history.rounds] == [set(), {"B"}, set(), set()]

    states = ClientState(tmp_path / "sites" / "B")
    assert states.before("run", 9) == [3, 2, 0] and not leftovers(tmp_path / "sites")
    assert states.load("run", 0)["round"] == 0


ON_A_SMALL_DISK = """
set -e
mount -t tmpfs -o size=64k none "$1"
"$2" "$3" "$1" || true
mount -o remount,size=10m "$1"
"$2" "$3" "$1" resume
cp -r "$1"/. "$4"
"""


def can_mount() -> bool:
    """Whether this user may mount a small disk in a name space of its own."""
    if shutil.which("unshare") is None:
        return False
    mount = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(mount, capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.long
def test_a_run_on_a_disk_that_fills_up_says_so_and_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    if not can_mount():
        pytest.skip("this user may not mount a disk")
    federation(tmp_path / "whole", rounds=8).run()
    disk, result = tmp_path / "disk", tmp_path / "result"
    disk.mkdir()
    result.mkdir()
    script = CHECKOUT / "tests" / "faults" / "federation_on_a_disk.py"
    shell = ["unshare", "-rm", "bash", "-c", ON_A_SMALL_DISK, "disk"]
    paths = [str(disk), sys.executable, str(script), str(result)]
    done = subprocess.run([*shell, *paths], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "DiskFullError" in done.stderr and "No space left on device" in done.stderr
    assert f"{disk}/run/" in done.stderr and "are free there" in done.stderr
    assert ledger_bytes(result) == ledger_bytes(tmp_path / "whole")
    assert not leftovers(result)
