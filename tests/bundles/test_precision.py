# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Trainings compute in bfloat16 only where the hardware does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.shipped_bundles import Bundle
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


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


@pytest.mark.parametrize("recipe", ["", "strong", "volumes"])
def test_without_bfloat16_in_hardware_no_recipe_computes_in_it(
    recipe: str, bundle: Bundle, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if recipe not in ("", *bundle.recipes):
        pytest.skip("this bundle has no such recipe")
    names = ("train", recipe) if recipe else ("train",)
    monkeypatch.setattr("monai_fairfl.inferers.has_bfloat16", lambda device: False)
    with NoBFloat16():
        bundle.run(names, site, tmp_path / "without", max_epochs=1)
    assert (tmp_path / "without" / "model.pt").is_file()

    # The same look finds it where the hardware has it.
    monkeypatch.setattr("monai_fairfl.inferers.has_bfloat16", lambda device: True)
    if "HardwarePrecisionInferer" not in json.dumps([bundle.config(name) for name in names]):
        return
    with pytest.raises(RuntimeError) as failed, NoBFloat16():
        bundle.run(names, site, tmp_path / "with", max_epochs=1)
    assert "computes in bfloat16" in str(failed.value.__cause__)
