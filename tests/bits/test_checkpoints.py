# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: each is written whole or not at all, and one that is not whole is never used."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from monai_fairfl.errors import FederationError
from monai_fairfl.run_folder import Checkpoint, Checkpoints, digest_of


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
    with pytest.raises(ValueError, match="keep"):
        Checkpoints(tmp_path, keep=1)


def test_what_is_no_checkpoint_is_left_alone(store: Checkpoints) -> None:
    for name in ("round-0000-copy", "notes"):
        (store.folder / name).mkdir()
    for number in range(2, 6):
        store.save(checkpoint(number))
    assert {"round-0000-copy", "notes"} < names(store) and loaded(store) == 5


def test_tensors_come_back_however_they_lie_in_memory(tmp_path: Path) -> None:
    both = torch.arange(6.0)
    weights = {
        "all": both,
        "end": both[4:],
        "transposed": both.view(2, 3).T,
        "one": both[1::5][:1],
        "none": both[6:],
        "half": torch.ones((), dtype=torch.bfloat16),
    }
    store = Checkpoints(tmp_path)
    store.save(Checkpoint(0, weights, {"A": weights}))
    found = store.load()
    assert found is not None
    assert digest_of(found.weights) == digest_of(found.rewards["A"]) == digest_of(weights)


# --- not whole


def _flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


DAMAGES: dict[str, Any] = {
    "cut": ("model.safetensors", _cut),
    "a bit of the model": ("model.safetensors", _flip),
    "a bit of a reward": ("rewards/HK.safetensors", _flip),
    "missing": ("model.safetensors", Path.unlink),
    "another state": ("strategy.json", lambda file: file.write_text("{}")),
    "no manifest": ("manifest.json", Path.unlink),
    "manifest cut": ("manifest.json", _cut),
    "manifest of a list": ("manifest.json", lambda file: file.write_text("[]")),
    "manifest nested": ("manifest.json", lambda file: file.write_text("[" * 100_000)),
    "manifest without a format": ("manifest.json", lambda f: f.write_text('{"round": 1}')),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_gives_way_to_the_one_before(store: Checkpoints, damage: str) -> None:
    name, spoil = DAMAGES[damage]
    spoil(store.folder / "round-0001" / name)
    assert loaded(store) == 0
    # Its round is played again; what is left of it has another name.
    assert names(store) == {"round-0000", "round-0001.damaged"}
    store.save(checkpoint(1))
    assert loaded(store) == 1 and "round-0001.damaged" in names(store)

    for number in (2, 3, 4):
        store.save(checkpoint(number))
    assert names(store) == {"round-0002", "round-0003", "round-0004"}


def test_where_all_are_damaged_the_run_does_not_begin_again(store: Checkpoints) -> None:
    for folder in ("round-0000", "round-0001"):
        _flip(store.folder / folder / "model.safetensors")
    with pytest.raises(FederationError, match=r"round-0001: model\.safetensors"):
        store.load()
    assert names(store) == {"round-0000", "round-0001"}


def test_one_that_the_system_cannot_read_at_present_is_not_damaged(store: Checkpoints) -> None:
    model = store.folder / "round-0001" / "model.safetensors"
    whole = model.rename(store.folder / "whole")
    model.mkdir()
    with pytest.raises(FederationError, match="round-0001 cannot be read"):
        store.load()
    model.rmdir()
    whole.rename(model)
    assert loaded(store) == 1


def test_a_crash_while_writing_leaves_the_last_one_in_force(store: Checkpoints) -> None:
    half = store.folder / ".writing-round-0002"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    assert loaded(store) == 1
    store.save(checkpoint(2))
    assert loaded(store) == 2 and not half.exists()


@pytest.mark.parametrize("written", [0, 99])
def test_another_format_is_refused_and_not_damaged(store: Checkpoints, written: int) -> None:
    manifest = store.folder / "round-0001" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": written}))
    with pytest.raises(FederationError, match=f"format {written}"):
        store.load()


def test_every_file_is_on_disk_before_the_manifest_and_that_before_the_folder_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def recorded_fsync(descriptor: int) -> None:
        done.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def recorded_replace(source: Path, target: Path) -> None:
        done.append(Path(target).name)
        replace(source, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "replace", recorded_replace)
    Checkpoints(tmp_path).save(checkpoint(0))
    assert set(done[:3]) == {"model.safetensors", "strategy.json", "HK.safetensors"}
    assert done[3:] == [".manifest.json.writing", "manifest.json", "round-0000"]


def test_a_pickle_in_place_of_tensors_is_never_executed(store: Checkpoints) -> None:
    canary = store.folder.parent / "canary"

    class Bomb:
        def __reduce__(self) -> Any:
            return (open, (str(canary), "w"))

    data = pickle.dumps(Bomb())
    folder = store.folder / "round-0001"
    (folder / "model.safetensors").write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["sha256"]["model.safetensors"] = hashlib.sha256(data).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert loaded(store) == 0 and not canary.exists()
