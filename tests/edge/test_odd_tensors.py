# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Tensors and numbers of a kind that training seldom makes: they work, or are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.fixed_sites import federate

from monai_fairfl.errors import ConfigError
from monai_fairfl.strategies import FedAvg

ONES = torch.ones(4)


def train(
    folder: Path, update: torch.Tensor = ONES, model: torch.Tensor = 0 * ONES
) -> Mapping[str, Any]:
    """The record of a round in which one of three sites sends what is odd."""
    updates = {name: {"w": update if name == "A" else ONES} for name in "ABC"}
    return federate(FedAvg(), folder, [updates], start={"w": model}).rounds[0]


@pytest.mark.parametrize(
    "update",
    [torch.ones(4, requires_grad=True), ONES.to(torch.float8_e4m3fn)],
    ids=["requires grad", "8 bit"],
)
def test_an_update_of_another_kind_counts_by_its_values(
    update: torch.Tensor, tmp_path: Path
) -> None:
    assert train(tmp_path, update)["aggregation"]["A"] == pytest.approx(1 / 3)
    stored = torch.load(tmp_path / "run" / "models" / "global.pt")
    assert torch.equal(stored["w"], ONES) and not stored["w"].requires_grad


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (ONES.to(torch.complex64), "complex64"),
        (ONES.to(torch.float8_e4m3fn), "float8"),
        (ONES.to_sparse(), "sparse"),
    ],
)
def test_a_model_without_a_mean_is_refused_before_the_first_round(
    model: torch.Tensor, word: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"'w'.*{word}"):
        train(tmp_path, model=model)
