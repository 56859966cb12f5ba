# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Names that are safe in a path, and short names of files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from monai_fairfl.errors import ConfigError

DEVICES = re.compile(r"(con|prn|aux|nul|(com|lpt)[0-9]) *(\..*)?", re.IGNORECASE)
"""Names that are devices of Windows, whatever follows the first dot."""

LONGEST_NAME = 128
"""Characters that a run's name may have."""


def safe_name(name: str, what: str = "client name", most: int = 64) -> str:
    """``name``, if it can be a file name everywhere.

    Args:
        name: of a client, or of a run.
        what: it is, for the message.
        most: characters.

    Raises:
        ConfigError: for names with other characters than letters, digits, ``_``, ``-``, ``.`` and
            space, names that do not begin with a letter, a digit or ``_``, or that are longer than
            ``most`` characters; and for those that Windows does not keep: with ``.`` or a space at
            the end, or of one of its devices.

    >>> safe_name("RUNMC-3T")
    'RUNMC-3T'
    """
    if not re.fullmatch(rf"[A-Za-z0-9_][A-Za-z0-9_. -]{{0,{most - 1}}}", name):
        raise ConfigError(
            f"{what} {name!r:.100} cannot be used: give it 1 to {most} letters (A to Z, without "
            "accents), digits, '_', '-', '.' or spaces, beginning with a letter, a digit or '_'"
        )
    if name.endswith((".", " ")) or DEVICES.fullmatch(name):
        raise ConfigError(
            f"{what} {name!r} cannot be used: Windows has no such file. Leave out '.' and spaces "
            "at the end, and take no name of its devices, such as 'con' and 'aux'"
        )
    return name


def distinct_names(paths: Sequence[str]) -> list[str]:
    """Different names of files: each with as many of its folders as that takes, else a number.

    >>> distinct_names(["a/elm/Case00.nii.gz", "a/oak/Case00.nii.gz"])
    ['elm/Case00.nii.gz', 'oak/Case00.nii.gz']
    >>> distinct_names(["a/Case00.nii.gz", "a/Case01.nii.gz"])
    ['Case00.nii.gz', 'Case01.nii.gz']
    """
    parts = [Path(path).parts for path in paths]
    deepest = max((len(part) for part in parts), default=0)
    for depth in range(1, deepest + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [str(number) for number in range(len(paths))]
