# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fault 47: a safetensors file with a huge header, or offsets that overlap, is refused.

Its manifest is mended to fit, as somebody does who changes a checkpoint on purpose.
"""

from __future__ import annotations

import hashlib
import json
import resource
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from monai_fairfl.errors import FederationError
from monai_fairfl.run_folder.checkpoint import Checkpoint, Checkpoints

PAYLOAD = b"\0" * 16


def file_of(header: dict[str, Any], payload: bytes = PAYLOAD) -> bytes:
    """A safetensors file with this header."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + payload


def tensor(begin: int, end: int, shape: list[int]) -> dict[str, Any]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}


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
}
MOST_BYTES = 200_000_000


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_before_memory_is_spent(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path)
    for number in (0, 1):
        checkpoints.save(Checkpoint(number, {"w": torch.ones(4)}))
    replace(tmp_path / "round-0001", HOSTILE[name])

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = checkpoints.load()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert found is not None and found.round == 0
    assert "round-0001 is damaged" in caplog.text
    assert (after - before) * 1024 < MOST_BYTES

    replace(tmp_path / "round-0000", HOSTILE[name])
    with pytest.raises(FederationError, match="no checkpoint of .* can be read"):
        checkpoints.load()


def replace(folder: Path, content: bytes) -> None:
    """Put a file in the place of the model, with a manifest that fits."""
    (folder / "model.safetensors").write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["sha256"]["model.safetensors"] = hashlib.sha256(content).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_an_honest_file_that_was_replaced_in_the_same_way_is_read(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(Checkpoint(0, {"w": torch.ones(4)}))
    replace(tmp_path / "round-0000", save({"w": torch.zeros(4)}))
    found = checkpoints.load()
    assert found is not None and not found.weights["w"].any()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[]", "it holds no JSON object but a list"),
        ("7", "it holds no JSON object but a int"),
        ("null", "it holds no JSON object but a NoneType"),
        ("[" * 100_000, "it is nested deeper than 50 levels"),
        ('{"round": 1}', "'format'"),
        ("{", "Expecting property name"),
    ],
    ids=["list", "number", "null", "deep", "without a format", "cut short"],
)
def test_a_manifest_that_is_no_object_is_a_damaged_checkpoint(
    content: str, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path)
    for number in (0, 1):
        checkpoints.save(Checkpoint(number, {"w": torch.ones(4)}))
    (tmp_path / "round-0001" / "manifest.json").write_text(content)
    found = checkpoints.load()
    assert found is not None and found.round == 0
    assert f"round-0001 is damaged ({reason}" in caplog.text
