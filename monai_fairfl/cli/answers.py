# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What every command gives and writes: its answer, and its folder."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from monai_fairfl.errors import ConfigError

LOG = "log.txt"
"""What libraries print while a command works, in its folder."""


class Answer(NamedTuple):
    """What a command found: plain JSON, the same as text, and the exit code."""

    data: dict[str, Any]
    text: str
    code: int = 0


def say(text: str) -> None:
    """Show what a command does; standard output is for its answer."""
    print(text, file=sys.stderr, flush=True)


def out_folder(given: str | None, default: str, new: bool = False) -> Path:
    """The absolute folder that a command writes into, which need not exist; it is shown.

    Args:
        given: what ``--out`` names.
        default: name of the folder here, where it names none.
        new: whether it must be new, or empty but for the log of a command that was refused.

    Raises:
        ConfigError: it holds something already.

    >>> out_folder("/runs/first", "run")
    PosixPath('/runs/first')
    """
    folder = Path(given or default).absolute()
    if new and folder.exists() and any(path.name != LOG for path in folder.iterdir()):
        raise ConfigError(f"{folder} is not empty: name another folder with --out")
    say(f"Into the folder {folder}")
    return folder


@contextmanager
def emptied_unless_done(folder: Path) -> Iterator[None]:
    """Make a new folder; after Ctrl-C or an error only its log stays: the command may go again.

    Args:
        folder: new, or empty but for the log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != LOG:
                path.unlink()
        raise
