# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The table of models between the received and the adapted one: means over cases, then models."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.checkout import CHECKOUT


@pytest.fixture
def share(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(str(CHECKOUT / "experiments"))
    module = importlib.import_module("papers.last_mile_share")
    monkeypatch.setattr(module, "HERE", tmp_path)
    return module


def test_without_a_federation_the_table_says_so(share: Any) -> None:
    with pytest.raises(importlib.import_module("reading").NotFinished, match="a federation"):
        share.table()


def test_a_row_has_the_mean_of_all_models_and_what_half_of_the_way_gains(share: Any) -> None:
    first, second, *_ = share.cells()
    cases = {"v": {"0": 0.5, "half": 0.7, "1": 0.8}, "w": {"0": 0.7, "half": 0.7, "1": 0.6}}
    for cell, sites in ((first, {"A": cases}), (second, {"A": cases, "B": {"u": cases["v"]}})):
        file = share.result_file(cell)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"validation": sites, "testing": {"A": cases}}))
    validation, testing = share.table().splitlines()[2:]
    cells = [cell.strip() for cell in validation.strip("|").split("|")]
    # Means of the models: 0.6, 0.6 and 0.5 as received.
    assert cells[:5] == ["validation", "3", "0.567", "0.700", "0.733"]
    # Site A gains 0.1 over the received model, site B 0.2; both have one weight.
    assert cells[5].startswith("+0.150 (")
    assert cells[6].startswith("-0.050 (")
    assert testing.startswith("| test | 2 | 0.600 | 0.700 | 0.700 | +0.100")


def test_the_ends_of_the_way_are_the_two_models_to_the_bit(share: Any) -> None:
    torch.manual_seed(0)
    begin = {"w": torch.randn(100), "batches": torch.tensor(3)}
    end = {"w": torch.randn(100), "batches": torch.tensor(5)}
    assert torch.equal(share.between(begin, end, 0.0)["w"], begin["w"])
    assert torch.equal(share.between(begin, end, 1.0)["w"], end["w"])
    assert share.between(begin, end, 0.5)["batches"] == 5
