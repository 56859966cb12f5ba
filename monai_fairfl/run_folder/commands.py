# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The commands that a run records, and commands that train the same in another way."""

from __future__ import annotations

import ast
import json
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
        own: words of ``python -m monai.bundle run`` and its arguments, which do what is run.
        full: words of the short command that trains the bundle's full run on the same hospitals;
            ``None`` where there is none.
        folds: words of the short command that trains it in folds, so that every case is tested;
            ``None`` where there is none.
    """

    own: Sequence[str] | None = None
    full: Sequence[str] | None = None
    folds: Sequence[str] | None = None


NO_COMMANDS = Commands()

_recorded: ContextVar[Commands] = ContextVar("commands", default=NO_COMMANDS)


@contextmanager
def recorded_as(
    words: Sequence[str], full: Sequence[str] | None = None, folds: Sequence[str] | None = None
) -> Iterator[None]:
    """Let the runs within record these commands, see :class:`Commands`.

    The first one counts in place of the command that started the process.

    >>> with recorded_as(["python", "-m", "monai.bundle", "run", "--rounds", "3"]):
    ...     command_line()[-1]
    '3'
    """
    token = _recorded.set(Commands(words, full, folds))
    try:
        yield
    finally:
        _recorded.reset(token)


def command_line() -> list[str] | None:
    """The words of ``python -m monai.bundle`` that train what runs now.

    Those of :func:`recorded_as` come first, then those that started this process; ``None`` where
    there are neither.
    """
    given = _recorded.get().own
    if given is not None:
        return list(given)
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None or not spec.name.startswith("monai.bundle"):
        return None
    return ["python", "-m", "monai.bundle", *sys.argv[1:]]


def short_full_command() -> list[str] | None:
    """The words of the short command of a full run, of :func:`recorded_as`.

    >>> with recorded_as(["python"], full=["monai-fairfl", "train", "hospitals"]):
    ...     short_full_command()
    ['monai-fairfl', 'train', 'hospitals']
    """
    given = _recorded.get().full
    return None if given is None else list(given)


def folds_command() -> list[str] | None:
    """The words of the short command of a full run in folds, of :func:`recorded_as`."""
    given = _recorded.get().folds
    return None if given is None else list(given)


def full_command(words: Sequence[str], full: FullRun, contradicting: Iterable[str] = ()) -> str:
    """The command that trains the full run from the start, in a folder of its own.

    The overlay of a first look is left out, and with it its small images.

    Args:
        words: of the command of a shorter run, see :func:`command_line`.
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
    try:
        given = ast.literal_eval(_argument(words, "overrides") or "")
    except (ValueError, SyntaxError):
        return {}
    return given if isinstance(given, Mapping) else {}


def _with_override(words: list[str], key: str, value: Any) -> list[str]:
    """``words`` with this value of an override, wherever another one was given."""
    given = _overrides(words)
    if key in given:
        return _with_argument(words, "overrides", str({**given, key: value}))
    return _with_argument(words, f"overrides#{key}", str(value))


def _without_first_look(words: list[str]) -> list[str]:
    """``words`` without the bundle's overlay of a first look."""
    given = _argument(words, "config_file")
    try:
        files = ast.literal_eval(given or "")
    except (ValueError, SyntaxError):
        # One file, which is no list.
        return words
    if not isinstance(files, (list, tuple)):
        return words
    remaining = [str(file) for file in files if Path(str(file)).name != QUICK]
    if len(remaining) == 1:
        return _with_argument(words, "config_file", remaining[0])
    return _with_argument(words, "config_file", str(remaining))


def command_without(words: Sequence[str], sites: Sequence[str], folder: str) -> str:
    """The command that trains the same with these sites only, from the start.

    Args:
        words: of the run's command, see :func:`command_line`.
        sites: that take part.
        folder: of the new run, its ``run_dir``.

    >>> words = "python -m monai.bundle run --resume True --run_dir runs/a".split()
    >>> print(command_without(words, ["HK", "UCL"], "runs/b"))
    python -m monai.bundle run --resume False --run_dir runs/b --site_names '["HK", "UCL"]'
    """
    changed = list(words)
    if _argument(words, "resume") is not None:
        changed = _with_argument(changed, "resume", "False")
    changed = _with_argument(changed, "run_dir", folder)
    return shlex.join(_with_argument(changed, "site_names", json.dumps(list(sites))))


def _argument(words: Sequence[str], name: str) -> str | None:
    """The value of ``--name VALUE`` or ``--name=VALUE``; the last one counts."""
    found = None
    for position, word in enumerate(words):
        if word == f"--{name}" and position + 1 < len(words):
            found = words[position + 1]
        elif word.startswith(f"--{name}="):
            found = word.partition("=")[2]
    return found


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
