# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Numbers of things and times in words."""

from __future__ import annotations


def duration_words(seconds: float) -> str:
    """An estimated time, as coarse as it is known.

    >>> duration_words(20), duration_words(600), duration_words(9000)
    ('about a minute', 'about 10 minutes', 'about 2.5 hours')
    """
    minutes = max(1, round(seconds / 60))
    if minutes == 1:
        return "about a minute"
    if minutes < 90:
        return f"about {minutes} minutes"
    return f"about {seconds / 3600:.1f} hours"


def count_words(number: int, what: str) -> str:
    """A number of things in words.

    >>> count_words(1, "round"), count_words(2, "round")
    ('1 round', '2 rounds')
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def rounds_done(number: int) -> str:
    """How many rounds are done, in words.

    >>> rounds_done(1), rounds_done(2)
    ('1 round is done', '2 rounds are done')
    """
    return f"{count_words(number, 'round')} {'is' if number == 1 else 'are'} done"
