# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Hostile files of a run: tensors that are none, and texts without an end."""

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

from monai_fairfl.data import site_datalist, site_folders
from monai_fairfl.errors import ConfigError, DataError, FederationError
from monai_fairfl.model_files import read_recipe
from monai_fairfl.run_folder import Checkpoint, Checkpoints

# --- safetensors; a manifest is mended to fit, as somebody does who changes a file on purpose


def file_of(header: dict[str, Any]) -> bytes:
    """A safetensors file with this header."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(16)


def tensor(begin: int, end: int, shape: list[int]) -> dict[str, Any]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}


class Bomb:
    """A pickle that ends the process which reads it."""

    def __reduce__(self) -> Any:
        return (os._exit, (9,))


HOSTILE = {
    "a header of 2^62 bytes": struct.pack("<Q", 2**62) + b"{}",
    "a header of 1 GB that is not there": struct.pack("<Q", 2**30) + b"{}",
    "offsets far beyond the file": file_of({"w": tensor(0, 2**40, [2**38])}),
    "a shape of 2^62 entries": file_of({"w": tensor(0, 16, [2**31, 2**31])}),
    "overlapping tensors": file_of({"a": tensor(0, 12, [3]), "b": tensor(8, 16, [2])}),
    "a hole between tensors": file_of({"a": tensor(0, 4, [1]), "b": tensor(8, 16, [2])}),
    "offsets that go backwards": file_of({"a": tensor(16, 0, [4])}),
    "negative offsets": file_of({"a": tensor(-16, 0, [4])}),
    "a header nested ten thousand times": file_of({}).replace(b"{}", b"[" * 10_000),
    "no header": b"",
    "a pickle": pickle.dumps(Bomb()),
}


def put(folder: Path, content: bytes) -> None:
    """Put a file in the place of the model, with a manifest that fits."""
    (folder / "model.safetensors").write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["sha256"]["model.safetensors"] = hashlib.sha256(content).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_checkpoint_is_refused_before_memory_is_spent(name: str, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for number in (0, 1):
        checkpoints.save(Checkpoint(number, {"w": torch.ones(4)}))
    put(tmp_path / "round-0001", HOSTILE[name])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = checkpoints.load()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert found is not None and found.round == 0
    assert (after - before) * 1024 < 200_000_000
    put(tmp_path / "round-0000", HOSTILE[name])
    with pytest.raises(FederationError, match="round-0000"):
        checkpoints.load()


# --- texts that are small on disk and endless in memory, or nested without an end

NUMBER = '{"training": ' + "9" * 100_000 + "}"
BOMBS = {
    "deep": "[" * 200_000,
    "deep object": '{"a":' * 200_000,
    "moderate": '{"training": ' + "[" * 100 + "]" * 100 + "}",
    "number": NUMBER,
}


@pytest.mark.parametrize("name", BOMBS)
def test_an_endless_text_is_refused_by_the_name_of_its_file(name: str, tmp_path: Path) -> None:
    text = BOMBS[name]
    (tmp_path / "elm").mkdir()
    file = tmp_path / "list.json"
    file.write_text(text)
    with pytest.raises(DataError, match=r"list\.json.*nested" if text != NUMBER else "list"):
        site_datalist(tmp_path / "elm", file)

    (tmp_path / "others" / "datalist_2D").mkdir(parents=True)
    (tmp_path / "others" / "datalist_2D" / "client_A.json").write_text(text)
    (tmp_path / "others" / "elm").mkdir()
    (tmp_path / "others" / "elm" / "dataset.json").write_text(text)
    assert list(site_folders(tmp_path / "others")) == ["client_A", "elm"]
    with pytest.raises(DataError):
        site_datalist(tmp_path / "others" / "elm", tmp_path / "new.json")

    network = torch.jit.script(torch.nn.Identity())
    torch.jit.save(network, tmp_path / "model.ts", _extra_files={"recipe.json": text})
    with pytest.raises(ConfigError, match=r"model\.ts"):
        read_recipe(tmp_path / "model.ts")
