# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What one hospital contributed, in numbers and words."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

LEAST_RATIO = 0.07
"""A share below this part of the images' share is next to nothing."""

SAME_SHARE = 0.1
"""By which part of its share a value may differ from it and still be a share."""

TIMES = {
    0.1: "a tenth of",
    0.2: "a fifth of",
    0.25: "a quarter of",
    1 / 3: "a third of",
    0.5: "half",
    2 / 3: "two thirds of",
    0.75: "three quarters of",
    0.8: "four fifths of",
    1.0: "",
    1.25: "one and a quarter times",
    1.5: "one and a half times",
    2.0: "twice",
    2.5: "two and a half times",
    3.0: "three times",
    4.0: "four times",
    5.0: "five times",
    6.0: "six times",
    7.0: "seven times",
    8.0: "eight times",
    9.0: "nine times",
    10.0: "ten times",
}
"""Ratio -> how it is called."""


@dataclass(frozen=True)
class Contribution:
    """What one hospital contributed.

    Args:
        value: in the unit of the source; ``None`` where it has none.
        share: of the sum over the hospitals, negative values counted as 0; ``None`` without one.
            Of a single round's values it is over the hospitals that have one in this round.
        images: its share of the images of the same hospitals; ``None`` where it is not known.
        ratio: ``share`` over ``images``, or over an even share; ``None`` where it means nothing.
        least: smallest value, see ``range_of``; ``None`` without a range.
        most: largest one.
        range_of: what the range is over: rounds or seeds.
        interval: whether the range is a 95 % interval, which only repeats give.
        words: for a reader.
        round: that the value is of; ``None`` where it is the run's last, or of no single round.
    """

    value: float | None = None
    share: float | None = None
    images: float | None = None
    ratio: float | None = None
    least: float | None = None
    most: float | None = None
    range_of: str = ""
    interval: bool = False
    words: str = ""
    round: int | None = None

    @classmethod
    def of_value(
        cls,
        value: float,
        share: float | None,
        images: float | None,
        number: int,
        least: float | None = None,
        most: float | None = None,
        range_of: str = "",
        interval: bool = False,
        verb: str = "carries",
    ) -> Contribution:
        """A contribution with its ratio and words.

        Args:
            value: in the unit of the source.
            share: as of the contribution.
            images: as of the contribution.
            number: how many hospitals share the sum.
            least: as of the contribution.
            most: as of the contribution.
            range_of: as of the contribution.
            interval: as of the contribution.
            verb: what a hospital does with its share, in the words.
        """
        ratio = None
        words = ""
        if share is not None and images:
            ratio = share / images
            words = f"{verb} {ratio_words(ratio)}"
        elif share is not None and number > 1:
            ratio = share * number
            words = f"{verb} {ratio_words(ratio, 'an even share')}"
        if value < 0:
            words = "its value is negative"
            if least is not None and most is not None and least <= 0 <= most:
                words = "its value is negative, but its range includes 0: next to nothing"
        return cls(value, share, images, ratio, least, most, range_of, interval, words)

    @classmethod
    def unknown(cls, words: str) -> Contribution:
        """No contribution, and why."""
        return cls(words=words)


@dataclass(frozen=True)
class Contributions:
    """What a run says of all hospitals.

    Args:
        strategy: whose numbers they are; ``None``: there is no answer.
        source: where the numbers come from, as a column's title; ``None``: there is no answer.
        meaning: what they are, or why there are none and what would give them, in sentences.
        sites: hospital -> its contribution; empty without an answer.
    """

    strategy: str | None
    source: str | None
    meaning: str
    sites: dict[str, Contribution]


def images_among(images: Mapping[str, float], hospitals: Collection[str]) -> dict[str, float]:
    """Shares of the images among some hospitals; those whose images are not known are left out.

    Args:
        images: hospital -> its share of all images.
        hospitals: among whom the contributions are shared out.

    >>> images_among({"ash": 0.25, "elm": 0.25, "oak": 0.5}, ["ash", "elm"])
    {'ash': 0.5, 'elm': 0.5}
    """
    known = {site: images[site] for site in hospitals if images.get(site)}
    total = sum(known.values())
    return {site: share / total for site, share in known.items()}


def ratio_words(ratio: float, of: str = "its share of the images") -> str:
    """How much more than its part a hospital carries.

    >>> ratio_words(2.1), ratio_words(1.11)
    ('twice its share of the images', 'its share of the images')
    >>> ratio_words(0.01), ratio_words(14.2)
    ('next to nothing', '14 times its share of the images')
    """
    if ratio < LEAST_RATIO:
        return "next to nothing"
    if ratio > 10.5:
        return f"{ratio:.0f} times {of}"
    nearest = min(TIMES, key=lambda times: abs(math.log(ratio / times)))
    return f"{TIMES[nearest]} {of}".strip()


def range_words(contribution: Mapping[str, Any]) -> str:
    """The number of a contribution with its range, which is named as what it is.

    >>> found = {"value": 0.54, "share": 0.54, "least": 0.37, "most": 0.54, "range_of": "rounds"}
    >>> range_words({**found, "interval": False})
    '0.54; over rounds 0.37 to 0.54'
    >>> range_words({**found, "interval": False, "round": 4})
    '0.54 in round 4; over rounds 0.37 to 0.54'
    >>> range_words({**found, "interval": True, "range_of": "3 seeds"})
    '0.54 (95 % interval over 3 seeds: 0.37 to 0.54)'
    >>> range_words({**found, "value": 0.0044, "share": 0.04, "least": None})
    '0.0044'
    """
    digits = 2 if _is_share(contribution) else 4
    # Adding 0.0 turns -0.0 into 0.0.
    value = f"{round(contribution['value'], digits) + 0.0:.{digits}f}"
    if contribution.get("round") is not None:
        value += f" in round {contribution['round']}"
    if contribution["least"] is None or contribution["most"] is None:
        return value
    ends = f"{contribution['least']:.{digits}f} to {contribution['most']:.{digits}f}"
    if contribution["interval"]:
        return f"{value} (95 % interval over {contribution['range_of']}: {ends})"
    return f"{value}; over {contribution['range_of']} {ends}"


def _is_share(contribution: Mapping[str, Any]) -> bool:
    """Whether the value is about the share itself, and so need not be shown to four decimals.

    A value in Dice is small, and so are the shares of many hospitals: only their ratio tells.
    """
    share, value = contribution["share"], contribution["value"]
    if share is None:
        return False
    return bool(abs(share - value) <= SAME_SHARE * share)
