# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Trainings compute in bfloat16 only where the hardware does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.shipped_bundles import PROSTATE, Bundle
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

STRONG = "../../../experiments/overlays/strong_base"


class NoBFloat16(TorchDispatchMode):
    """Refuses every operation that takes or makes a tensor in bfloat16."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, found)):
            if isinstance(leaf, torch.Tensor) and leaf.dtype is torch.bfloat16:
                raise AssertionError(f"{func} computes in bfloat16")
        return found


def train(
    bundle: Bundle, site: Path, out: Path, monkeypatch: pytest.MonkeyPatch, in_hardware: bool
) -> None:
    monkeypatch.setattr("monai_fairfl.inferers.has_bfloat16", lambda device: in_hardware)
    small = {"filters": [4, 8, 8]} if bundle is PROSTATE else {}
    names = ("train", STRONG) if bundle is PROSTATE else ("train",)
    with NoBFloat16():
        bundle.run(names, site, out, max_epochs=1, **small)


def test_without_bfloat16_in_hardware_no_training_computes_in_it(
    bundle: Bundle, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(bundle, site, tmp_path, monkeypatch, in_hardware=False)
    assert (tmp_path / "model.pt").is_file()


def test_with_it_a_strong_training_does(
    bundle: Bundle, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bundle is not PROSTATE:
        pytest.skip("it trains in float32")
    with pytest.raises(RuntimeError) as failed:
        train(bundle, site, tmp_path, monkeypatch, in_hardware=True)
    assert "computes in bfloat16" in str(failed.value.__cause__)
