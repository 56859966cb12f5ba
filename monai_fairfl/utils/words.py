# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Numbers of things in words."""

from __future__ import annotations


def count_words(number: int, what: str) -> str:
    """A number of things in words.

    >>> count_words(1, "round"), count_words(2, "round")
    ('1 round', '2 rounds')
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
