# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""CSV tables that are safe in a spreadsheet, which runs a text that begins like a formula.

Names of sites, cases and classes come from outside. A text cell that begins with ``=``, ``+``,
``-``, ``@``, a tab or a line break gets an apostrophe in front, as OWASP's page on CSV injection
has it. Numbers stay as they are.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
"""The beginning of a text that is marked. Apostrophes of its own count, so that :func:`text_of` is
the inverse.
"""


def cell(value: Any) -> Any:
    """A value as a spreadsheet may read it: an apostrophe goes before what looks like a formula.

    >>> cell("=HYPERLINK(1)"), cell("elm"), cell(-0.25), cell(["cut off", "empty"])
    ("'=HYPERLINK(1)", 'elm', -0.25, 'cut off; empty')
    """
    if isinstance(value, list):
        value = "; ".join(map(str, value))
    return f"'{value}" if isinstance(value, str) and FORMULA.match(value) else value


def text_of(found: str) -> str:
    """The inverse of :func:`cell`, for programs that read such a table.

    >>> text_of(cell("=HYPERLINK(1)")), text_of(cell("'=1")), text_of("'elm")
    ('=HYPERLINK(1)', "'=1", "'elm")
    """
    return found[1:] if found.startswith("'") and FORMULA.match(found) else found


def csv_text(fields: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """A table with a header line, as the text of a CSV file.

    Args:
        fields: names of the columns, in their order.
        rows: each a mapping of some of these names to values; a missing value is an empty cell.

    >>> csv_text(["site", "value"], [{"site": "@elm", "value": -1.5}])
    "site,value\\n'@elm,-1.5\\n"
    """
    text = io.StringIO(newline="")
    # With this end csv quotes both characters; else a carriage return in a name would begin a line.
    writer = csv.writer(text, lineterminator="\r\n")
    for row in [dict(zip(fields, fields)), *rows]:
        writer.writerow([cell(row.get(name)) for name in fields])
    return text.getvalue().replace("\r\n", "\n")


def read_csv_text(text: str) -> list[dict[str, str]]:
    """The rows of a table that :func:`csv_text` made, with the texts that were given to it.

    Raises:
        ValueError: when a row has another number of cells than the header.

    >>> read_csv_text(csv_text(["case", "dice"], [{"case": "=1", "dice": 0.5}]))
    [{'case': '=1', 'dice': '0.5'}]
    """
    rows = []
    for number, row in enumerate(csv.DictReader(io.StringIO(text, newline="")), 1):
        if None in row or None in row.values():
            raise ValueError(f"row {number} has another number of cells than the header")
        rows.append({text_of(name): text_of(value) for name, value in row.items()})
    return rows
