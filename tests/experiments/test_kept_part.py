# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The table of the largest and the surest part: models of one seed together, volumes counted."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from helpers.checkout import CHECKOUT


@pytest.fixture
def kept_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(str(CHECKOUT / "experiments"))
    module = importlib.import_module("papers.kept_part")
    monkeypatch.setattr(module, "HERE", tmp_path)
    return module


def write(module: Any, cell: Any, dice: dict[str, dict[str, float]]) -> None:
    """Write the JSON of a model: its validation cases of one site; no test case is another's."""
    file = module.result_file(cell)
    file.parent.mkdir(parents=True, exist_ok=True)
    nobody = {"A": {"t.nii.gz": {"largest": 0.9, "surest": 0.9}}}
    found = {"seed": cell.fold, "validation": {"A": dice}, "testing": nobody}
    file.write_text(json.dumps(found))


def test_without_a_model_the_table_says_so(kept_part: Any) -> None:
    with pytest.raises(importlib.import_module("reading").NotFinished, match="a model"):
        kept_part.table()


def test_a_row_has_all_models_of_a_seed_and_counts_what_each_part_loses(kept_part: Any) -> None:
    of_seed_0 = [cell for cell in kept_part.cells() if cell.fold == 0]
    assert kept_part.cells()[: len(of_seed_0)] == of_seed_0
    for cell, lost in zip(of_seed_0, (0.0, 0.6), strict=False):
        sound = {"largest": 0.8, "surest": 0.8}
        write(kept_part, cell, {"v.nii.gz": {"largest": lost, "surest": 0.6}, "w.nii.gz": sound})
    validation, testing = kept_part.table().splitlines()[2:]
    cells = [cell.strip() for cell in validation.strip("|").split("|")]
    # The case gains 0.6 by one model and nothing by the other, and the site has two cases.
    assert cells[:-1] == ["validation", "0", "2", "0.550", "1 of 4", "0.700", "0 of 4"]
    assert cells[-1].startswith("+0.150 (")
    assert "| test | 0 | 2 | 0.900 | 0 of 2 | 0.900 | 0 of 2 | +0.000" in testing
