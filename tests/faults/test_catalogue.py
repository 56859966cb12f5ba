# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The catalogue of faults: 64 rows, each with tests that exist, and all of them on the page.

``python tests/faults/test_catalogue.py`` prints the page's tables.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[2]
CATALOGUE: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("catalogue.json").read_text(encoding="utf-8")
)
STATUSES = {"not offered", "the engine's", "later"}
KEYS = {"number", "topic", "fault", "happens", "recorded", "status", "reason", "tests"}


def tables() -> str:
    """The catalogue as the page shows it: a table for each topic."""
    lines = []
    topic = ""
    for case in CATALOGUE:
        if case["topic"] != topic:
            topic = case["topic"]
            lines += ["", f"### {topic}", ""]
            lines += ["| no. | fault | what happens | where it is recorded |"]
            lines += ["| --- | --- | --- | --- |"]
        cells = [str(case["number"]), case["fault"], case["happens"], case["recorded"]]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines[1:]) + "\n"


def all_named_tests() -> list[str]:
    return sorted({test for case in CATALOGUE for test in case["tests"]})


def test_all_numbers_are_there_in_their_order() -> None:
    assert [case["number"] for case in CATALOGUE] == list(range(1, 65))


@pytest.mark.parametrize("case", CATALOGUE, ids=lambda case: str(case["number"]))
def test_a_fault_has_tests_or_a_reason_for_none(case: dict[str, Any]) -> None:
    assert set(case) <= KEYS and case["fault"] and case["happens"] and case["recorded"]
    if "status" in case:
        assert case["status"] in STATUSES and case["reason"]
    else:
        assert case["tests"]
    assert len(set(case["tests"])) == len(case["tests"])


@pytest.mark.parametrize("file", sorted({test.partition("::")[0] for test in all_named_tests()}))
def test_every_test_that_is_named_is_in_its_file(file: str) -> None:
    named = {test.partition("::")[2] for test in all_named_tests() if test.startswith(f"{file}::")}
    tree = ast.parse((CHECKOUT / file).read_text(encoding="utf-8"))
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert named <= defined


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.long
def test_every_test_that_is_named_is_collected() -> None:
    pytest.importorskip("nvflare")
    named = all_named_tests()
    if find_spec("flwr") is None:
        # make test-flower collects these.
        named = [test for test in named if not test.startswith("tests/transports/flower/")]
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    words += ["-W", "ignore", *named]
    found = subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True, timeout=600)
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-2000:]
    collected = {line.partition("[")[0] for line in found.stdout.splitlines() if "::" in line}
    assert set(named) <= collected


def test_every_test_of_a_fault_is_in_the_catalogue() -> None:
    named = {test.partition("::")[0] for test in all_named_tests()}
    for file in Path(__file__).parent.glob("test_*.py"):
        if file.name != Path(__file__).name:
            assert f"tests/faults/{file.name}" in named


def test_the_page_shows_the_catalogue() -> None:
    """After a change, put the output of this file into the page."""
    assert tables() in (CHECKOUT / "docs" / "faults.md").read_text(encoding="utf-8")


if __name__ == "__main__":
    print(tables(), end="")
