# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The page of guards names those there are, with their thresholds, and its example is the file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from monai_fairfl.guards import DEFAULT, catalogue

CHECKOUT = Path(__file__).parents[2]
PAGE = (CHECKOUT / "docs" / "guards.md").read_text()
ROWS = dict(re.findall(r"^\| `(\w+)` \| (.*)$", PAGE, re.MULTILINE))


def test_the_table_has_the_default_guards_in_their_order() -> None:
    names = [type(guard).__name__ for guard in DEFAULT]
    assert [name for name in ROWS if name in catalogue.shipped()] == names


def thresholds() -> list[tuple[str, str, Any]]:
    found = []
    for name in catalogue.shipped():
        for argument, value in catalogue.describe(name)["arguments"].items():
            if argument not in ("entries", "seed", "agreement"):
                found.append((name, argument, value))
    return found


IN_WORDS = {
    ("Empty", "share"): "a thousandth",
    ("Copies", "nearer"): "a quarter",
    ("Replayed", "nearer"): "",
    ("Outsized", "times"): "1,000",
}


@pytest.mark.parametrize(("name", "argument", "value"), thresholds())
def test_the_table_has_the_thresholds(name: str, argument: str, value: float) -> None:
    assert IN_WORDS.get((name, argument), f"{value:g}") in ROWS[name]


def test_the_example_is_the_file_that_is_tested() -> None:
    [example] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    file = (CHECKOUT / "docs" / "examples" / "frozen_tensors.py").read_text()
    assert file.endswith(example) and len(example) > 500
