# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The commands that a run records, and commands that train the same in another way."""

from __future__ import annotations

import ast
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monai_fairfl.run_folder.full_run import QUICK, FullRun


@dataclass(frozen=True)
class Commands:
    """The commands that a run records.

    Args:
        own: words of ``python -m monai.bundle run`` and its arguments, which do what is run;
            ``None`` where nobody knows them.
        full: words of the short command that trains the bundle's full run on the same hospitals;
            ``None`` where there is none.
        folds: words of the short command that trains it in folds, so that every case is tested;
            ``None`` where there is none.
    """

    own: Sequence[str] | None = None
    full: Sequence[str] | None = None
    folds: Sequence[str] | None = None


_recorded: ContextVar[Commands | None] = ContextVar("commands", default=None)


@contextmanager
def recorded_as(
    words: Sequence[str], full: Sequence[str] | None = None, folds: Sequence[str] | None = None
) -> Iterator[None]:
    """Let the runs within record these commands, see :class:`Commands`.

    >>> with recorded_as(["python", "-m", "monai.bundle", "run", "--rounds", "3"]):
    ...     commands_to_record().own[-1]
    '3'
    """
    token = _recorded.set(Commands(words, full, folds))
    try:
        yield
    finally:
        _recorded.reset(token)


def commands_to_record() -> Commands:
    """The commands of :func:`recorded_as`, or else the one that started this process."""
    given = _recorded.get()
    if given is not None:
        return given
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None or not spec.name.startswith("monai.bundle"):
        return Commands()
    return Commands(["python", "-m", "monai.bundle", *sys.argv[1:]])


def full_command(words: Sequence[str], full: FullRun, contradicting: Iterable[str] = ()) -> str:
    """The command that trains the full run from the start, in a folder of its own.

    The overlay of a first look is left out, and with it its small images.

    Args:
        words: of the command of a shorter run, see :class:`Commands`.
        full: of its bundle.
        contradicting: overrides of which the shorter run had other values than ``full``.

    >>> words = "python -m monai.bundle run --rounds 3 --run_dir runs/a".split()
    >>> full_command(words, FullRun(60, 4, 0.5))
    'python -m monai.bundle run --rounds 60 --run_dir runs/a-full --local_epochs 4'
    >>> words = "python -m monai.bundle run --run_dir a --config_file".split()
    >>> files = "['b/a.json', 'b/quick.json']"
    >>> full_command([*words, files], FullRun(60, 4, 0.5)).split()[6:8]
    ['--config_file', 'b/a.json']
    >>> small = ["--overrides#size", "[32, 32]"]
    >>> full_command([*words, files, *small], FullRun(60, 4, 0.5, {"size": [9, 9]}), ["size"])[-37:]
    "'[9, 9]' --rounds 60 --local_epochs 4"
    >>> words = "python -m monai.bundle run --overrides#size [32,32]".split()
    >>> full_command(words, FullRun(60, 4, 0.5, {"size": [128, 128]}), ["size"]).split("'")[3]
    '[128, 128]'
    """
    changed = _without_first_look(list(words))
    has_overlay = changed != list(words)
    for key in contradicting:
        # What the overlay alone had is gone with it.
        if not has_overlay or _gives_override(words, key):
            changed = _with_override(changed, key, full.overrides[key])
    changed = _with_argument(changed, "rounds", str(full.rounds))
    changed = _with_argument(changed, "local_epochs", str(full.local_epochs))
    folder = _argument(words, "run_dir")
    fresh = "runs/full" if folder is None else f"{folder.rstrip('/')}-full"
    return shlex.join(_with_argument(changed, "run_dir", fresh))


def _gives_override(words: Sequence[str], key: str) -> bool:
    """Whether the words themselves give an override, and not a file that they name."""
    return key in _overrides(words) or _argument(words, f"overrides#{key}") is not None


def _overrides(words: Sequence[str]) -> Mapping[str, Any]:
    """The value of ``--overrides``; empty where it is not given."""
    given = _literal_argument(words, "overrides")
    return given if isinstance(given, Mapping) else {}


def _with_override(words: list[str], key: str, value: Any) -> list[str]:
    """``words`` with this value of an override, wherever another one was given."""
    given = _overrides(words)
    if key in given:
        return _with_argument(words, "overrides", str({**given, key: value}))
    return _with_argument(words, f"overrides#{key}", str(value))


def _without_first_look(words: list[str]) -> list[str]:
    """``words`` without the bundle's overlay of a first look."""
    files = _literal_argument(words, "config_file")
    if not isinstance(files, (list, tuple)):
        return words
    remaining = [str(file) for file in files if Path(str(file)).name != QUICK]
    if len(remaining) == 1:
        return _with_argument(words, "config_file", remaining[0])
    return _with_argument(words, "config_file", str(remaining))


def _argument(words: Sequence[str], name: str) -> str | None:
    """The value of ``--name VALUE`` or ``--name=VALUE``; the last one counts."""
    found = None
    for position, word in enumerate(words):
        if word == f"--{name}" and position + 1 < len(words):
            found = words[position + 1]
        elif word.startswith(f"--{name}="):
            found = word.partition("=")[2]
    return found


def _literal_argument(words: Sequence[str], name: str) -> Any:
    """The value of ``--name`` as Python writes it; ``None`` for any other text, or for none."""
    try:
        return ast.literal_eval(_argument(words, name) or "")
    except (ValueError, SyntaxError):
        return None


def _with_argument(words: list[str], name: str, value: str) -> list[str]:
    """``words`` with this value of ``--name``, at its place where it was given, else at the end."""
    if _argument(words, name) is None:
        return [*words, f"--{name}", value]
    changed = list(words)
    for position, word in enumerate(words):
        if word == f"--{name}":
            changed[position + 1] = value
        elif word.startswith(f"--{name}="):
            changed[position] = f"--{name}={value}"
    return changed
