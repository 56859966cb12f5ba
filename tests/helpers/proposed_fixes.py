# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The fixes that the messages of a room propose."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection

from helpers.checkout import CHECKOUT


def without_a_row(room: str, rows: Collection[str], others: str) -> list[str]:
    """The clauses of a room's messages, after the first, that neither a row nor ``others`` names.

    Args:
        room: its folder in the package.
        rows: words of the fixes that a test follows.
        others: how other clauses begin, parted by ``|``.
    """
    proposed = set()
    for file in (CHECKOUT / "monai_fairfl" / room).glob("*.py"):
        tree = ast.parse(file.read_text())
        # Not docstrings, nor the parts of what has values in it.
        skip = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            skip.update(node.values if isinstance(node, ast.JoinedStr) else ())
        for node in ast.walk(tree):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            text = "".join(
                str(getattr(part, "value", "")) if isinstance(part, ast.Constant) else "{}"
                for part in parts
            )
            if node not in skip:
                proposed.update(re.split(r"; |\. (?=[A-Z])", text)[1:])
    missing = []
    for clause in sorted(proposed):
        first = clause.partition("{}")[0].strip(" .")
        if first and not any(first in fix or fix in first for fix in rows):
            missing.append(clause)
    return [clause for clause in missing if not clause.startswith(tuple(others.split("|")))]
