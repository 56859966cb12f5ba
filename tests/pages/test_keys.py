# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``docs/keys.md`` lists every key of the bundles' ``federate.json`` once, with its default."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers.checkout import CHECKOUT

PAGE = (CHECKOUT / "docs" / "keys.md").read_text()
FILES = sorted(CHECKOUT.glob("bundles/*/configs/federate.json"))
MACHINERY = {"imports", "federation", "initialize", "run"}
"""Keys that nobody sets: they make and run the federation."""


def rows() -> dict[str, str]:
    """Key -> the default that the page gives."""
    found: dict[str, str] = {}
    for line in PAGE.splitlines():
        if not line.startswith("| `"):
            continue
        names, default = line.split(" | ")[:2]
        for name in re.findall(r"`(\w+)`", names):
            assert name not in found, f"{name} is listed twice"
            found[name] = default
    return found


def keys_of(file: Path) -> dict[str, Any]:
    """The keys that a user sets, with their defaults."""
    content = json.loads(file.read_text())
    return {key: value for key, value in content.items() if key not in MACHINERY}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parts[-3])
def test_the_page_has_each_key(file: Path) -> None:
    assert set(rows()) == set(keys_of(file))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parts[-3])
def test_a_number_or_a_truth_value_is_the_default_that_the_page_gives(file: Path) -> None:
    compared = 0
    for name, value in keys_of(file).items():
        shown = rows()[name]
        if isinstance(value, (bool, int, float)) and "measured" not in shown:
            assert shown.replace("`", "").split(":")[0] == str(value), name
            compared += 1
    assert compared >= 10
