# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Ledger, checkpoints and recorded updates: whole or named, and written in an order."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.least_squares_federation import (
    TARGETS,
    federation,
    global_weights,
    ledger_file,
)

from monai_fairfl import Estimate, Federation, __version__, read_ledger
from monai_fairfl.errors import FederationError
from monai_fairfl.run import Checkpoint, Checkpoints, Ledger, recorded_rounds
from monai_fairfl.strategies import FedAvg


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger of three records."""
    ledger = Ledger(tmp_path / "l.jsonl")
    for number in range(3):
        ledger.append({"round": number, "score": Estimate(0.5, None, number)})
    return ledger.path


def test_each_record_carries_the_hash_of_the_line_before(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    previous = ""
    for line in lines:
        assert json.loads(line)["previous"] == previous
        previous = hashlib.sha256(line).hexdigest()
    again = Ledger(path)
    assert again.head == previous and len(again.records) == 3
    again.append({"round": 3})
    assert [record["round"] for record in read_ledger(path)] == [0, 1, 2, 3]
    again.truncate(3)
    assert path.read_bytes() == b"".join(lines)


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda lines: [lines[0].replace("0.5", "0.9"), *lines[1:]], 2),
        (lambda lines: [lines[0], lines[2]], 2),
        (lambda lines: lines[1:], 1),
        (lambda lines: [*lines, "[]\n"], 4),
        (lambda lines: ["x\n", *lines], 1),
    ],
)
def test_a_line_that_does_not_follow_is_named(path: Path, damage: Any, line: int) -> None:
    changed = damage(path.read_text().splitlines(keepends=True))
    path.write_text("".join(changed))
    for read in (read_ledger, Ledger):
        with pytest.raises(FederationError, match=rf"l\.jsonl.*line {line}\b"):
            read(path)
    assert path.read_text() == "".join(changed)


def test_a_last_line_cut_short_by_a_crash_is_dropped(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"round": 3, "sco')
    assert len(read_ledger(path)) == 3
    assert len(Ledger(path).records) == 3 and path.read_bytes() == whole


def test_a_ledger_of_another_format_is_not_read(tmp_path: Path) -> None:
    federation(tmp_path, rounds=1).run()
    opening = read_ledger(ledger_file(tmp_path))[0]
    assert (opening["format"], opening["package"]) == (1, __version__)
    path = tmp_path / "other.jsonl"
    Ledger(path).append({**opening, "format": 2, "package": "9.0.0"})
    for reads in (read_ledger, Ledger):
        with pytest.raises(FederationError, match="9.0.0.*format 2"):
            reads(path)


def checkpoint(number: int) -> Checkpoint:
    model = {"w": torch.full((2,), float(number)), "n": torch.tensor(number)}
    reward = {"w": torch.full((2,), 10.0 + number)}
    return Checkpoint(number, model, {"HK": reward}, {"best": number})


@pytest.fixture
def store(tmp_path: Path) -> Checkpoints:
    """Of rounds 0 and 1."""
    made = Checkpoints(tmp_path)
    for number in (0, 1):
        made.save(checkpoint(number))
    return made


def names(store: Checkpoints) -> set[str]:
    return {path.name for path in store.folder.iterdir()}


def loaded(store: Checkpoints) -> int:
    """The round of the checkpoint that is used; it must be whole."""
    found = store.load()
    assert found is not None
    assert found.weights["w"].tolist() == 2 * [float(found.round)]
    assert found.weights["n"].dtype == torch.int64
    assert found.rewards["HK"]["w"].tolist() == 2 * [10.0 + found.round]
    assert found.state == {"best": found.round}
    return found.round


def test_the_newest_comes_back_and_only_some_are_kept(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep=3)
    assert store.load() is None
    for number in range(9997, 10002):  # rounds are counted, and not sorted as text
        store.save(checkpoint(number))
        assert loaded(store) == number
    assert names(store) == {"round-9999", "round-10000", "round-10001"}


# --- not whole


def _flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


DAMAGES: dict[str, Any] = {
    "a bit of the model": ("model.safetensors", _flip),
    "missing": ("model.safetensors", Path.unlink),
    "no manifest": ("manifest.json", Path.unlink),
    "manifest nested": ("manifest.json", lambda file: file.write_text("[" * 100_000)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_is_named_and_deleted_gives_way_to_the_one_before(
    store: Checkpoints, damage: str
) -> None:
    name, spoil = DAMAGES[damage]
    spoil(store.folder / "round-0001" / name)
    with pytest.raises(FederationError, match="round-0001"):
        store.load()
    shutil.rmtree(store.folder / "round-0001")
    assert loaded(store) == 0


def recorded_run(folder: Path) -> Federation:
    return federation(folder, FedAvg(), rounds=3, record_updates=True)


def updates(folder: Path) -> list[dict[str, list[float]]]:
    """Of each round: client -> what it sent."""
    found = []
    for recorded in recorded_rounds(folder / "run"):
        sent = {}
        for reply in recorded.replies():
            assert reply.update is not None
            sent[reply.client] = reply.update["w"].tolist()
        found.append(sent)
    return found


def test_every_rounds_updates_average_to_the_next_rounds_start(tmp_path: Path) -> None:
    recorded_run(tmp_path).run()
    rounds = recorded_rounds(tmp_path / "run")
    assert [recorded.manifest["round"] for recorded in rounds] == [0, 1, 2]
    later = [*(recorded.start()["w"] for recorded in rounds[1:]), global_weights(tmp_path)]
    for recorded, sent, after in zip(rounds, updates(tmp_path), later, strict=True):
        assert recorded.clients == list(sent) == list(TARGETS)
        mean = np.mean(list(sent.values()), axis=0)
        np.testing.assert_allclose(recorded.start()["w"] + mean, after, atol=1e-12)

    folder = tmp_path / "run" / "updates"
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    names = ["start.safetensors", "manifest.json", *(f"clients/{c}.safetensors" for c in TARGETS)]
    assert files == {f"round-000{number}/{name}" for number in range(3) for name in names}


# --- damage


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    recorded_run(tmp_path).run()
    folder = tmp_path / "run" / "updates" / "round-0001"
    manifest = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(FederationError, match="round-0001 is damaged"):
        recorded_rounds(tmp_path / "run")
    (folder / "manifest.json").write_text(manifest)
    (folder / "clients" / "A.safetensors").write_bytes(b"")
    with pytest.raises(FederationError, match=r"round-0001 .*A\.safetensors"):
        recorded_rounds(tmp_path / "run")[1].replies()
