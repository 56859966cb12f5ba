# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
import torch

from monai_fairfl.errors import FederationError
from monai_fairfl.model_files.recipe import save_model_file
from monai_fairfl.run_folder.checkpoint import Checkpoint, Checkpoints, read_checkpoint
from monai_fairfl.run_folder.ledger import digest_of


def checkpoint(number: int, **rewards: float) -> Checkpoint:
    models = {client: {"w": torch.full((2,), value)} for client, value in rewards.items()}
    return Checkpoint(
        number,
        {"w": torch.full((2,), float(number)), "n": torch.tensor(number)},
        models,
        {"best": number},
    )


def test_the_newest_comes_back_whole(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    for number in range(3):
        store.save(checkpoint(number, HK=1.0 + number))
    back = store.load()
    assert back is not None and back.round == 2 and back.state == {"best": 2}
    assert back.weights["w"].tolist() == [2.0, 2.0] and back.weights["n"].dtype == torch.int64
    assert back.rewards["HK"]["w"].tolist() == [3.0, 3.0]


def test_only_the_last_k_are_kept_and_any_of_them_is_whole(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep=3)
    for number in range(5):
        store.save(checkpoint(number, HK=10.0 + number))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["round-0002", "round-0003", "round-0004"]
    for damaged in ("round-0004", "round-0003"):
        (tmp_path / damaged / "model.safetensors").unlink()
    back = store.load()
    assert back is not None and back.round == 2 and back.rewards["HK"]["w"].tolist() == [12.0, 12.0]


def test_rounds_are_counted_and_not_sorted_as_text(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep=3)
    for number in range(9997, 10002):
        store.save(checkpoint(number))
    (tmp_path / "round-9999-copy").mkdir()
    assert {p.name for p in tmp_path.iterdir()} == {
        "round-9999",
        "round-10000",
        "round-10001",
        "round-9999-copy",
    }
    back = store.load()
    assert back is not None and back.round == 10001
    assert {p.name for p in tmp_path.iterdir()} == {
        "round-9999",
        "round-10000",
        "round-10001",
        "round-9999-copy",
    }


@pytest.mark.parametrize("damage", ["cut", "flip", "missing", "manifest"])
def test_a_damaged_newest_gives_way_to_the_one_before_and_says_so(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = Checkpoints(tmp_path)
    store.save(checkpoint(0))
    store.save(checkpoint(1))
    model = tmp_path / "round-0001" / "model.safetensors"
    data = bytearray(model.read_bytes())
    if damage == "cut":
        model.write_bytes(data[: len(data) // 2])
    elif damage == "flip":
        data[-1] ^= 1
        model.write_bytes(data)
    elif damage == "missing":
        model.unlink()
    else:
        (tmp_path / "round-0001" / "manifest.json").write_text("{")
    back = store.load()
    assert back is not None and back.round == 0
    assert "round-0001 is damaged" in caplog.text
    # Its round is played again; what is left of it has another name.
    assert {p.name for p in tmp_path.iterdir()} == {"round-0000", "round-0001.damaged"}
    assert store.newest_first() == [tmp_path / "round-0000"]


def test_a_damaged_one_goes_with_the_whole_ones_of_its_time(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep=2)
    store.save(checkpoint(0))
    for _ in range(2):
        store.save(checkpoint(1))
        (tmp_path / "round-0001" / "model.safetensors").unlink()
        assert store.load().round == 0  # type: ignore[union-attr]
    for number in (1, 2):
        store.save(checkpoint(number))
        assert store.damaged() == [tmp_path / "round-0001.damaged"]
    store.save(checkpoint(3))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["round-0002", "round-0003"]


def test_one_that_the_system_cannot_read_at_present_is_not_damaged(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    store.save(checkpoint(0))
    store.save(checkpoint(1))
    model = tmp_path / "round-0001" / "model.safetensors"
    whole = model.rename(tmp_path / "whole")
    model.mkdir()
    with pytest.raises(FederationError, match="round-0001 cannot be read .*Mend the cause"):
        store.load()
    model.rmdir()
    whole.rename(model)
    assert store.load().round == 1  # type: ignore[union-attr]


def test_a_crash_while_writing_leaves_the_last_one_in_force(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    store.save(checkpoint(0))
    half = tmp_path / ".writing-round-0001"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    assert store.load().round == 0  # type: ignore[union-attr]
    store.save(checkpoint(1))
    assert store.load().round == 1 and not half.exists()  # type: ignore[union-attr]


def test_all_damaged_is_an_error_and_none_is_none(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    assert store.load() is None
    store.save(checkpoint(0))
    (tmp_path / "round-0000" / "strategy.json").write_text("{}")
    with pytest.raises(FederationError, match="strategy.json was changed"):
        store.load()


@pytest.mark.parametrize("written", [0, 99])
def test_another_format_is_refused_with_both_formats(written: int, tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    store.save(checkpoint(0))
    manifest = tmp_path / "round-0000" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": written}))
    with pytest.raises(FederationError, match=f"format {written}, and this .* reads format 1"):
        store.load()


def test_a_pickle_in_place_of_tensors_is_never_executed(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    store.save(checkpoint(0))
    canary = tmp_path / "canary"

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (open, (str(canary), "w"))  # type: ignore[return-value]

    import hashlib

    data = pickle.dumps(Bomb())
    folder = tmp_path / "round-0000"
    (folder / "model.safetensors").write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["sha256"]["model.safetensors"] = hashlib.sha256(data).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(FederationError):
        store.load()
    assert not canary.exists()


def test_a_client_name_cannot_leave_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be used"):
        Checkpoints(tmp_path).save(Checkpoint(0, {}, {"../../x": {"w": torch.ones(1)}}))


def test_keep_must_leave_a_predecessor(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 2"):
        Checkpoints(tmp_path, keep=1)


def test_a_model_without_recipe_is_a_plain_state_dict(tmp_path: Path) -> None:
    save_model_file(tmp_path / "models" / "global.pt", {"w": torch.ones(2)})
    assert torch.load(tmp_path / "models" / "global.pt", weights_only=True)["w"].tolist() == [
        1.0,
        1.0,
    ]


def test_every_file_is_on_disk_before_the_manifest_is_written(
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
    Checkpoints(tmp_path).save(checkpoint(0, HK=1.0))
    files = {"model.safetensors", "strategy.json", "HK.safetensors"}
    assert set(done[:3]) == files
    assert done[3:] == [".manifest.json.writing", "manifest.json", "round-0000"]


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
    Checkpoints(tmp_path).save(Checkpoint(0, weights, {"A": weights}))
    found = read_checkpoint(tmp_path / "round-0000")
    for model in (found.weights, found.rewards["A"]):
        assert digest_of(model) == digest_of(weights)
