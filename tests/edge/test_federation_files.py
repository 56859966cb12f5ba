# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Hostile files and names of a run: tensors, texts without an end, and markup."""

from __future__ import annotations

import csv
import hashlib
import json
import resource
import struct
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.least_squares_federation import federation as small_federation
from helpers.odd_federation import CLIENTS, federation
from safetensors.torch import save

from monai_fairfl import Estimate, Reply, Request, write_report
from monai_fairfl.audit import read_receipts
from monai_fairfl.data import site_datalist, site_folders
from monai_fairfl.errors import ConfigError, DataError, FederationError
from monai_fairfl.model_files import read_recipe
from monai_fairfl.run_folder import Checkpoint, Checkpoints
from monai_fairfl.strategies import FedAvg, FedCE

# --- safetensors; a manifest is mended to fit, as somebody does who changes a file on purpose


def file_of(header: dict[str, Any]) -> bytes:
    """A safetensors file with this header."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(16)


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


def test_an_honest_file_that_was_replaced_in_the_same_way_is_read(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(Checkpoint(0, {"w": torch.ones(4)}))
    put(tmp_path / "round-0000", save({"w": torch.zeros(4)}))
    found = checkpoints.load()
    assert found is not None and not found.weights["w"].any()


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


def test_a_state_of_a_checkpoint_that_is_nested_without_an_end_is_damaged(tmp_path: Path) -> None:
    small_federation(tmp_path, rounds=2).run()
    folder = tmp_path / "run" / "checkpoints" / "round-0001"
    deep = b"[" * 200_000
    (folder / "strategy.json").write_bytes(deep)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["sha256"]["strategy.json"] = hashlib.sha256(deep).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert small_federation(tmp_path, rounds=3).run(resume=True).finished
    assert (folder.parent / "round-0001.damaged").exists()


def test_receipts_that_are_no_text_are_named(tmp_path: Path) -> None:
    (tmp_path / "receipts.jsonl").write_bytes(b"\xff\xfe\n[1]\n")
    with pytest.raises(ConfigError, match="line 2"):
        read_receipts(tmp_path / "receipts.jsonl")


# --- markup

NAMES = (
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    "<img src=x onerror=alert(3)>",
    '"onmouseover="alert(4)',
    '=HYPERLINK("http://x")',
)


class Reader(HTMLParser):
    """The tags of a page, and the names of their attributes."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)


def markup(request: Request, reply: Reply) -> Reply:
    """Every score has classes with such names, and there are measurements with such names."""
    measured: dict[str, Any] = dict(reply.measurements)
    for name, value in reply.measurements.items():
        if name.endswith("score"):
            assert isinstance(value, dict)
            measured[name] = {**value, **dict.fromkeys(NAMES, Estimate(0.5, 0.1, 5))}
    if reply.update is not None:
        measured.update(dict.fromkeys(NAMES, 0.5))
    return replace(reply, measurements=measured)


@pytest.mark.slow
def test_names_that_are_markup_or_formulas_are_text_in_a_report(tmp_path: Path) -> None:
    """From a server that takes any name of a measurement."""
    pytest.importorskip("jinja2")
    for out, fault in (("theirs", markup), ("ours", None)):
        folders = []
        for strategy in (FedAvg(), FedCE()):
            folders.append(tmp_path / f"{out} runs" / strategy.name)
            faults = dict.fromkeys(CLIENTS, fault) if fault else {}
            federation(strategy, folders[-1], faults=faults, unasked=True).run()
        assert (NAMES[0] in (folders[0] / "ledger.jsonl").read_text()) == (out == "theirs")
        write_report(folders, tmp_path / out)
    pages = sorted((tmp_path / "theirs").rglob("*.html"))
    assert len(pages) == 1 + len(CLIENTS)
    for page in pages:
        theirs = Reader(page.read_text())
        ours = Reader((tmp_path / "ours" / page.relative_to(tmp_path / "theirs")).read_text())
        assert theirs.tags == ours.tags and not {"img", "script"} & theirs.tags
        assert not [name for name in theirs.attributes if name.startswith("on")]
    cells = []
    for file in (tmp_path / "theirs").glob("*.csv"):
        for row in csv.reader(file.read_text().splitlines()):
            cells += row
    assert any("HYPERLINK" in cell for cell in cells)
    assert not [cell for cell in cells if cell.startswith("=")]
