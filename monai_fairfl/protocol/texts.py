# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Texts of sites, which go into logs, records and pages of others."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""``text`` in one line, with a space for each character that cannot be printed.

    A line break or a terminal's escape code in an error message would let a site write lines of its
    own into the log of all. Half of a surrogate pair cannot be written into a page.

    >>> printable("no space left\n2026-01-01 client oak: quarantined\x1b[31m")
    'no space left 2026-01-01 client oak: quarantined [31m'
    """
    return "".join(character if character.isprintable() else " " for character in text)
