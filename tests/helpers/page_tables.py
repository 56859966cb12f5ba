# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What the tables of the documentation's pages name."""

from __future__ import annotations

import re


def names_in_first_column(page: str, head: str) -> list[str]:
    """All words in backticks in the first column of a table.

    Args:
        page: text of the page.
        head: how the table's first line begins.

    >>> page = "| file | what |\\n| --- | --- |\\n| `a`, `b` | two |\\n| `c` | `d` |\\n\\n| `e` |"
    >>> names_in_first_column(page, "| file")
    ['a', 'b', 'c']
    """
    table = page.split(head)[1].split("\n\n")[0]
    names: list[str] = []
    for row in table.splitlines()[2:]:
        first_column = row.split("|")[1]
        names += re.findall(r"`([^`]+)`", first_column)
    return names
