# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The page of guards names those there are, with their thresholds, and its example is the file."""

from __future__ import annotations

import inspect
import re

from helpers.checkout import CHECKOUT

from monai_fairfl import guards

PAGE = (CHECKOUT / "docs" / "guards.md").read_text()
ROWS = dict(re.findall(r"^\| `(\w+)` \| (.*)$", PAGE, re.MULTILINE))
SHIPPED = [
    name
    for name in guards.__all__
    if inspect.isclass(kind := getattr(guards, name))
    and issubclass(kind, guards.Guard)
    and kind is not guards.Guard
]
NO_THRESHOLDS = {"agreement"}
IN_WORDS = {
    ("Empty", "share"): "a thousandth",
    ("Copies", "nearer"): "a quarter",
    ("Replayed", "nearer"): "",
    ("Outsized", "times"): "1,000",
}


def test_the_table_has_the_default_guards_in_their_order_with_their_thresholds() -> None:
    names = [type(guard).__name__ for guard in guards.DEFAULT]
    assert [name for name in ROWS if name in SHIPPED] == names
    for name in SHIPPED:
        for argument in inspect.signature(getattr(guards, name)).parameters.values():
            if argument.name not in NO_THRESHOLDS:
                word = IN_WORDS.get((name, argument.name), f"{argument.default:g}")
                assert word in ROWS[name], (name, argument.name)


def test_the_example_is_the_file_that_is_tested() -> None:
    [example] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    file = (CHECKOUT / "docs" / "examples" / "frozen_tensors.py").read_text()
    assert file.endswith(example) and len(example) > 500
