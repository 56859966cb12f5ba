# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What every command is made of: its answer, its folder, and options that several commands have.

Each key of ``federate.json`` is an option of the same name, ``--local-epochs`` for
``local_epochs``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from monai_fairfl.bundle.settings import Settings, rows_of
from monai_fairfl.errors import ConfigError
from monai_fairfl.utils.arguments import check_value
from monai_fairfl.utils.plain_values import written_value
from monai_fairfl.utils.settings import LEAD, meanings

OF_THE_COMMAND = ("bundle_root", "sites_root", "run_dir", "resume", "strategy", "strategies")
"""Keys that a command sets itself, by DATA, ``--bundle``, ``--out`` and ``--strategy``."""

LOG = "log.txt"
"""What libraries print while a command works, in its folder."""

STEREO = {"auto": None, "yes": True, "no": False}
"""What ``--stereo`` says -> whether photographs are pairs of views."""

OPTIONS: dict[str, dict[str, Any]] = {
    "model": {"metavar": "MODEL", "help": "model file, or the folder of a run, for its global one"},
    "--bundle": {
        "metavar": "NAME|DIR",
        "help": "bundle to use (default: the shipped one for these images, or for this model)",
    },
    "--device": {"help": "device to use, such as cuda:0 (default: a GPU if there is one)"},
    "--out": {
        "metavar": "DIR",
        "help": "folder for all that is written (default: one here, named after command and data)",
    },
    "--quick": {
        "action": "store_true",
        "help": "a first look, as with monai-fairfl try: minutes, and no result to publish",
    },
    "--recipe": {
        "metavar": "NAME",
        "help": "another recipe of the bundle, such as light: less training, and worse masks",
    },
    "--settings": {
        "type": Path,
        "metavar": "FILE",
        "help": "JSON file with keys of a federation (docs/keys.md), read after the bundle's own",
    },
    "--stereo": {
        "choices": STEREO,
        "default": "auto",
        "help": "whether photographs are pairs of views (default: those 1.8 times as wide as high)",
    },
    "--verbose": {
        "action": "store_true",
        "help": "show the output of MONAI and other libraries, which is otherwise in log.txt",
    },
}
"""Name of an argument of several commands -> what it is."""


class Answer(NamedTuple):
    """What a command found: plain JSON, the same as text, and the exit code."""

    data: dict[str, Any]
    text: str
    code: int = 0


def say(text: str) -> None:
    """Show what a command does; standard output is for its answer."""
    print(text, file=sys.stderr, flush=True)


def out_folder(given: str | None, default: str, new: bool = False) -> Path:
    """The absolute folder that a command writes into, which need not exist.

    Args:
        given: what ``--out`` names.
        default: name of the folder here, where it names none.
        new: whether it must be new, or empty but for the log of a command that was refused.

    Raises:
        ConfigError: nothing can be written there, or it holds something already.

    >>> out_folder("/dev/null/runs", "run")
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.ConfigError: /dev/null/runs cannot be written: /dev/null is a file, or \
read-only for this account; name another folder with --out
    """
    folder = Path(given or default).absolute()
    existing = folder
    while not os.path.lexists(existing):
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{folder} cannot be written: {existing} is a file, or read-only for this account; "
            "name another folder with --out"
        )
    if new and folder.is_dir() and any(path.name != LOG for path in folder.iterdir()):
        raise ConfigError(
            f"{folder} is not empty: name another folder with --out, or delete this one"
        )
    return folder


@contextmanager
def emptied_unless_done(folder: Path) -> Iterator[None]:
    """Make a new folder; after Ctrl-C or an error only its log stays: the command may go again.

    Args:
        folder: new, or empty but for the log.
    """
    existed = folder.is_dir()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != LOG:
                path.unlink()
        if not existed and not any(folder.iterdir()):
            folder.rmdir()
        raise


def add(command: argparse._ActionsContainer, *names: str) -> None:
    """Add arguments of :data:`OPTIONS`."""
    for name in names:
        command.add_argument(name, **OPTIONS[name])


def number(allowed: str, kind: str = "int") -> Callable[[str], Any]:
    """Parses a number of a range, for ``type=`` of an argument.

    >>> number("(0, inf)", "float")("0.5")
    0.5
    """
    return partial(value_of, kind, allowed)


def value_of(kind: str, allowed: Any, text: str) -> Any:
    """The value of an argument, as JSON or as Python writes it, else a text.

    Args:
        kind: its type, such as ``"int"`` or ``"Mapping"``.
        allowed: its range, see :func:`~monai_fairfl.utils.arguments.check_value`; ``None``: any.
        text: as it was given.

    Raises:
        ArgumentTypeError: it is of another type, or out of its range.
    """
    try:
        value = written_value(text)
    except ValueError:
        value = text
    if kind.startswith("Mapping"):
        if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
            example = "\"{'size': [128, 128]}\""
            raise argparse.ArgumentTypeError(f"{text!r} is not values by name, such as {example}")
    elif (allowed or kind == "bool") and not (value is None and kind.endswith("| None")):
        try:
            check_value("it", value, kind, allowed)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
    return value


def add_keys(command: argparse.ArgumentParser, shown: Sequence[str], who: str = LEAD) -> None:
    """Add an option for each setting that somebody may set, such as all keys of ``federate.json``.

    Args:
        command: gets them.
        shown: keys that its help explains; docs/keys.md has the others.
        who: sets them: the lead of a federation, or a job.

    >>> parser = argparse.ArgumentParser()
    >>> add_keys(parser, ["rounds"])
    >>> keys_given(parser.parse_args(["--rounds", "3", "--seeds", "0", "1", "--share-cases"]))
    {'rounds': 3, 'seeds': [0, 1], 'share_cases': True}
    """
    keys = command.add_argument_group("keys of federate.json, each an option (docs/keys.md)")
    texts = meanings(Settings)
    for name, row in rows_of(who).items():
        if name in OF_THE_COMMAND:
            continue
        parse = partial(value_of, str(row.type), row.metadata["allowed"])
        given: dict[str, Any] = {"type": parse, "default": argparse.SUPPRESS}
        if str(row.type) == "bool":
            given |= {"nargs": "?", "const": True}
        elif str(row.type).startswith("Sequence") or name in ("site_names", "config"):
            given |= {"nargs": "*", "action": _Listed}
        help_text = argparse.SUPPRESS
        if name in shown:
            # Without marks and links, which are of the page.
            plain = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", texts[name])
            help_text = plain.replace("`", "").replace("%", "%%")
        option = f"--{name.replace('_', '-')}"
        keys.add_argument(option, metavar="VALUE", help=help_text, **given)


class _Listed(argparse.Action):
    """A list: its values one after the other, or written as one."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option: Any = None
    ) -> None:
        if len(values) == 1 and isinstance(values[0], (list, type(None))):
            values = values[0]
        setattr(namespace, self.dest, values)


def keys_given(args: argparse.Namespace) -> dict[str, Any]:
    """The keys that the options of a command give."""
    names = [name for name in rows_of(LEAD) if name not in OF_THE_COMMAND]
    return {name: getattr(args, name) for name in names if hasattr(args, name)}
