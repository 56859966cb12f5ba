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


def default_of(shown: str, bundle: str) -> str:
    """A default as the page gives it to a bundle: "60 for the prostate bundle, 30 for the ...".

    Links and code spans count for their words.
    """
    plain = re.sub(r"\]\([^)]*\)|[`\[]", "", shown)
    for part in plain.split(", "):
        value, _, whose = part.partition(" for the ")
        if whose and whose.split()[0] in bundle:
            return value
    return plain.split(":")[0]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parts[-3])
def test_a_number_or_a_truth_value_is_the_default_that_the_page_gives(file: Path) -> None:
    compared = []
    for name, value in keys_of(file).items():
        if isinstance(value, (bool, int, float)):
            assert default_of(rows()[name], bundle=file.parts[-3]) == str(value), name
            compared.append(name)
    assert {"rounds", "local_epochs", "case_seconds", "seed"} <= set(compared)
