# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A device that this machine lacks is refused before hours of work, wherever it is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.bundle_runs import federation

from monai_fairfl.cli import main
from monai_fairfl.errors import ConfigError
from monai_fairfl.utils.devices import has_bfloat16, require_device

MISSING = f"cuda:{torch.cuda.device_count()}"
"""The first CUDA device that this machine lacks."""

NONE_HERE = (
    "device cuda:0: PyTorch finds no CUDA device here. Leave the device out, or install a CUDA "
    "build of PyTorch"
)
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


def test_the_processor_is_always_there_and_a_misspelt_device_nowhere() -> None:
    require_device("cpu")
    with pytest.raises(ConfigError, match="'gpu' is not a device: write 'cpu', 'cuda:0'"):
        require_device("gpu")


def test_a_device_that_torch_knows_and_this_machine_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match=f"device {MISSING}: (PyTorch finds no|this machine has)"):
        require_device(MISSING)
    # Its makers' own package adds it to torch.
    with pytest.raises(ConfigError, match="device hpu: torch cannot use it on this machine"):
        require_device("hpu")


@without_gpu
def test_a_machine_without_gpu_names_the_fix() -> None:
    with pytest.raises(ConfigError) as refused:
        require_device("cuda:0")
    assert str(refused.value) == NONE_HERE


@pytest.mark.slow
def test_a_federation_is_refused_before_it_writes_anything(hospitals: Path, tmp_path: Path) -> None:
    run = federation(hospitals, tmp_path / "run", "FedAvg", device=MISSING)
    with pytest.raises(ConfigError, match=f"device {MISSING}: (PyTorch finds no|this machine has)"):
        run.run_with()
    assert not (tmp_path / "run").exists()


@without_gpu
@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "compare"])
def test_the_commands_say_so_and_nothing_of_resuming(
    command: str, hospitals: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = [command, str(hospitals), "--quick", "--devices", "cuda:0", "--out", str(out)]
    assert main([*words, "--strategies", "Standalone", "FedAvg"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"monai-fairfl: {NONE_HERE}"
    assert not list(out.rglob("ledger.jsonl"))


@without_gpu
@pytest.mark.parametrize("command", ["infer", "evaluate", "adapt"])
def test_a_model_is_not_even_looked_for(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hospital").mkdir()
    words = [command, str(tmp_path / "model.pt"), str(tmp_path / "hospital"), "--device", "cuda:0"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"monai-fairfl: {NONE_HERE}"


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"architecture": "x86_64", "avx2": True, "avx512_bf16": False}, False),
        ({"architecture": "x86_64", "avx512_bf16": True}, True),
        ({"architecture": "aarch64", "bf16": True}, True),
    ],
)
def test_a_processor_has_bfloat16_where_it_has_instructions_for_it(
    known: dict[str, object], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known, raising=False)
    assert has_bfloat16("cpu") is expected
    assert not has_bfloat16("meta")
