# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a layout is, and what it finds in a site's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

PARTS = ("training", "validation", "testing")

Case = dict[str, Any]
"""``{"image": path, "label": path}``, and ``"values"`` where pixel values code structures."""


@dataclass(frozen=True)
class Found:
    """The cases of one site, sorted by image, with absolute paths.

    Args:
        cases: all of them.
        parts: the split that came with the data: some of ``training``, ``validation`` and
            ``testing``. ``None``: none.
        patients: image -> patient, where several cases are of one; every other case is a patient of
            its own.
        channels: names of the channels of an image, where the layout states them.
        notes: what a user should know, in sentences.
    """

    cases: list[Case]
    parts: dict[str, list[Case]] | None = None
    patients: Mapping[str, str] = field(default_factory=dict)
    channels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Layout(Protocol):
    """A module of this package: one way in which public data sets arrange a site's files."""

    EXPECTS: str
    """The layout in one line, for errors."""

    def recognises(self, folder: Path) -> bool:
        """Whether the folder is of this kind; it need not be complete."""

    def find(self, folder: Path) -> Found:
        """Its cases.

        Raises:
            DataError: files that do not pair, are missing or cannot be understood; all of them are
                named.
        """


def all_named(problems: Sequence[str], most: int = 20, separator: str = "; ") -> str:
    """Problems in one text, the first ``most`` in full.

    >>> all_named(["a is missing", "b is missing", "c is missing"], most=2)
    'a is missing; b is missing; and 1 more'
    """
    more = [f"and {len(problems) - most} more"] if len(problems) > most else []
    return separator.join([*problems[:most], *more])
