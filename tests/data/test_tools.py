# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What all rooms share, by what a user sees of it: files, locks, devices, cores, dotted paths."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.command_line import Commands
from helpers.faults_of_folders import files_of_at_most, leftovers
from helpers.refusals import refused

from monai_fairfl import ModelRecipe
from monai_fairfl.cli import main
from monai_fairfl.data import SITES, write_sites
from monai_fairfl.errors import ConfigError, DiskFullError
from monai_fairfl.model_files import read_recipe, save_model_file, state_of_file

ODD = {
    "counter": torch.tensor(7),
    "flags": torch.tensor([True, False]),
    "half": torch.randn(3).half(),
    "bfloat16": torch.randn(5).bfloat16(),
    "not finite": torch.tensor([float("nan"), float("-inf"), -0.0]),
    "empty": torch.empty(3, 0, dtype=torch.int64),
    "turned": torch.randn(6, 8).T,
    "channels last": torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last),
    "repeated": torch.ones(1).expand(4, 3),
    "int8": torch.tensor([-1, 127], dtype=torch.int8),
}
"""Everything that a model's state may hold, and its odd shapes."""


def write_checkpoint(file: Path) -> None:
    save_model_file(file, {"w": torch.arange(1000.0) + 1, **ODD}, ModelRecipe("b", "1", {}))


def test_a_models_odd_tensors_are_read_to_the_bit(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "a.pt")
    found = state_of_file(tmp_path / "a.pt")
    for name, tensor in ODD.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        # Not even the sign of a zero differs.
        assert repr(found[name].flatten().tolist()) == repr(tensor.flatten().tolist()), name


@pytest.mark.parametrize("read", [read_recipe, state_of_file])
def test_a_model_file_that_is_not_whole_is_named(
    read: Callable[[Path], Any], tmp_path: Path
) -> None:
    file = tmp_path / "model.pt"
    with refused(file, "No such file", by=ConfigError):
        read(file)
    with refused(tmp_path, "directory", by=ConfigError):
        read(tmp_path)
    write_checkpoint(file)
    whole = file.read_bytes()
    for share in (0.0, 0.5):
        file.write_bytes(whole[: int(share * len(whole))])
        with refused(file, by=ConfigError):
            read(file)
    file.write_bytes(whole)
    with zipfile.ZipFile(file) as archive:
        weights = max(archive.infolist(), key=lambda entry: entry.file_size)
    # As a disk or a copy may leave it: a block of zeros. The file is as long as before.
    middle = weights.header_offset + weights.file_size // 2
    file.write_bytes(whole[:middle] + bytes(512) + whole[middle + 512 :])
    with refused(file, "data/", by=ConfigError):
        read(file)


def test_a_full_disk_leaves_no_part_of_a_file_and_what_is_missing_is_made_later(
    tmp_path: Path,
) -> None:
    write = partial(write_sites, tmp_path, SITES[:1], size=(24, 24, 6), cases=1)
    with files_of_at_most(1000), refused("alder/Case00", "bytes", by=DiskFullError):
        write()
    assert not leftovers(tmp_path)
    write()
    assert len(list((tmp_path / "alder").iterdir())) == 2


MISSING = f"cuda:{torch.cuda.device_count()}"
"""The first CUDA device that this machine lacks."""


@pytest.mark.parametrize("device", [MISSING, "gpu"])
def test_a_device_that_is_not_there_is_refused_before_anything_is_written(
    device: str, hospitals: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "out")]
    using = [str(tmp_path / "model.pt"), str(tmp_path), "--device", device, *out]
    for words in (["train", str(hospitals), "--devices", device, *out], ["infer", *using]):
        assert main(words) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert device in error and "cuda:-1" not in error
    assert not list(tmp_path.rglob("ledger.jsonl"))


MODULES = {
    "own_methods": "from monai_fairfl.strategies import FedAvg\nclass Fairer(FedAvg):\n    pass\n"
    "Alias = dict[str, float]\n",
    "own_misspelt": "def broken(:\n",
    "own_script": "import sys\nsys.exit('usage: ...')\n",
}
PATHS = {
    "nosuch.Thing": "No module named 'nosuch'",
    "own_methods.Fair": "has no attribute 'Fair'",
    "own_methods.Alias": "Strategy",
    "own_misspelt.Fairer": "SyntaxError",
    "own_script.Fairer": "SystemExit",
    "own_local.Fairer": "PYTHONPATH=.",
    "json.dumps": "Strategy",
}


def test_a_path_that_names_no_strategy_is_answered_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "own_local.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path / "here")
    for path, word in PATHS.items():
        error = Commands(capsys).json("strategies", path, code=2)["error"]
        assert path.rpartition(".")[2] in error and word in error
    assert main(["strategies", "own_methods.Fairer"]) == 0
