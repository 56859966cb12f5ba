# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Folders and files for the account that makes them alone: others on the machine cannot read them.

What exists keeps its mode: its owner may share it with a group.
"""

from __future__ import annotations

from pathlib import Path

OWN_FOLDER = 0o700
OWN_FILE = 0o600


def private_folder(folder: Path) -> Path:
    """Make a folder that only its owner may enter, where it is missing.

    Folders above it that are missing, too, are as the system makes them.

    Args:
        folder: to make.

    >>> import tempfile
    >>> made = private_folder(Path(tempfile.mkdtemp(), "sites", "elm"))
    >>> f"{made.stat().st_mode & 0o777:o}"
    '700'
    """
    folder.mkdir(mode=OWN_FOLDER, parents=True, exist_ok=True)
    return folder


def private_file(file: Path) -> Path:
    """Make an empty file that only its owner may read, where it is missing, before it is filled.

    >>> import tempfile
    >>> made = private_file(Path(tempfile.mkdtemp(), "cases.json"))
    >>> f"{made.stat().st_mode & 0o777:o}"
    '600'
    """
    file.touch(mode=OWN_FILE)
    return file
