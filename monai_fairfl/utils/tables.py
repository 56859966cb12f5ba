# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Tables, and numbers of things, as text."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Column, Table


def text_of_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as text, as wide as the terminal, or 80 characters.

    Args:
        titles: of the columns.
        rows: cells, which may have several lines.

    >>> print(text_of_table(["Site", "Cases"], [["elm", "6"]]).splitlines()[-1].split())
    ['elm', '6']
    """
    columns = [Column(title, overflow="fold") for title in titles]
    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    width = max(80, shutil.get_terminal_size((100, 24)).columns)
    console = Console(width=width, markup=False, highlight=False)
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n")


def count_words(number: int, what: str) -> str:
    """A number of things in words.

    >>> count_words(1, "round"), count_words(2, "round")
    ('1 round', '2 rounds')
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
