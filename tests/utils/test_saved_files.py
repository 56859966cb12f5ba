# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Files of ``torch.save`` that cannot be read: the error says whose fault that is."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from monai_fairfl.errors import ConfigError
from monai_fairfl.model_files import read_recipe, state_of_file
from monai_fairfl.utils.saved_files import load_saved, read_state_dict

READERS = [load_saved, read_state_dict, read_recipe, state_of_file]


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_a_file_that_is_not_there_is_not_called_one_of_another_form(
    read: Callable[[Path], Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="no.pt does not exist: name a model file$"):
        read(tmp_path / "no.pt")


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_a_file_that_the_system_does_not_let_be_read_is_named_with_the_systems_reason(
    read: Callable[[Path], Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read \(Is a directory\): name a model file"):
        read(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_file_that_was_cut_short_is_none_of_torch_save(share: float, tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    torch.save({"w": torch.ones(1000)}, file)
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    with pytest.raises(ConfigError, match=r"model.pt is no state_dict of torch.save"):
        load_saved(file)


def write_checkpoint(file: Path) -> None:
    """A model of many weights, none of them 0."""
    torch.save({"model": {"w": torch.ones(1000)}}, file)


def write_torchscript(file: Path) -> None:
    """The same as TorchScript with a recipe."""
    network = torch.jit.script(torch.nn.Linear(1000, 1))
    recipe = '{"bundle": "b", "version": "1", "values": {}}'
    torch.jit.save(network, str(file), _extra_files={"recipe.json": recipe})


@pytest.mark.parametrize("read", [read_recipe, state_of_file], ids=lambda read: read.__name__)
@pytest.mark.parametrize("write", [write_checkpoint, write_torchscript])
def test_weights_that_were_changed_in_the_file_are_not_used(
    write: Callable[[Path], None], read: Callable[[Path], Any], tmp_path: Path
) -> None:
    file = tmp_path / "model.pt"
    write(file)
    read(file)
    with zipfile.ZipFile(file) as archive:
        weights = max(archive.infolist(), key=lambda entry: entry.file_size)
    # As a disk or a copy may leave it: a block of zeros. The file is as long as before.
    content = bytearray(file.read_bytes())
    middle = weights.header_offset + weights.file_size // 2
    content[middle : middle + 512] = bytes(512)
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"model.pt is damaged: .*data/.*Copy it again"):
        read(file)


@pytest.mark.slow
def test_a_bit_that_was_changed_anywhere_is_found_or_changes_nothing(tmp_path: Path) -> None:
    """In names, offsets and sizes too, where ``zipfile`` and PyTorch raise errors of many kinds."""
    file = tmp_path / "model.pt"
    weights = torch.arange(20.0)
    torch.save({"w": weights}, file)
    whole = file.read_bytes()
    refused = 0
    for place in range(0, len(whole), 7):
        content = bytearray(whole)
        content[place] ^= 0x80
        file.write_bytes(content)
        try:
            read = load_saved(file)
        except ConfigError as error:
            assert "model.pt" in str(error)
            refused += 1
        else:
            assert torch.equal(read["w"], weights)
    assert refused > 50


@pytest.mark.parametrize("read", [read_recipe, state_of_file], ids=lambda read: read.__name__)
def test_an_archive_whose_list_of_entries_is_damaged_is_named(
    read: Callable[[Path], Any], tmp_path: Path
) -> None:
    file = tmp_path / "model.ts"
    write_torchscript(file)
    content = file.read_bytes()
    file.write_bytes(content.replace(b"PK\x01\x02", b"PK\x00\x00"))
    with pytest.raises(ConfigError, match="model.ts is damaged"):
        read(file)


def test_torchscript_that_this_pytorch_cannot_run_is_named(tmp_path: Path) -> None:
    file = tmp_path / "model.ts"
    write_torchscript(file)
    with zipfile.ZipFile(file) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in entries.items():
            later = b"999\n" if name.endswith("/version") else content
            archive.writestr(name, later)
    with pytest.raises(ConfigError, match="model.ts is no TorchScript that can be read .*version"):
        state_of_file(file)
