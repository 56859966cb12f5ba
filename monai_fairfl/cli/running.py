# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Runs a line of ``python -m monai.bundle run`` in this process, quietly.

What MONAI and other libraries print goes into a log. The terminal shows one line of progress, the
warnings of this package, and what the command has to say at the end.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shlex
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from rich.console import Console

from monai_fairfl.bundle.configuration import FEDERATE, read_keys
from monai_fairfl.bundle.settings import QUICK
from monai_fairfl.bundle.trainings import CONSOLE
from monai_fairfl.cli.options import keys_given
from monai_fairfl.errors import ConfigError, FairFLError, in_words
from monai_fairfl.report import as_text
from monai_fairfl.utils.files import write_atomically

logger = logging.getLogger("monai_fairfl")
"""The logger whose warnings a user sees, those of all rooms included."""


def run_line(
    files: Sequence[str], keys: Mapping[str, Any], log: Path, verbose: bool = False
) -> None:
    """Do what a line of ``python -m monai.bundle run`` does, which is printed first.

    Args:
        files: of the configuration, merged in this order.
        keys: key -> value that replaces one of the configuration; a path is its text.
        log: gets what is printed and logged; what it holds already stays.
        verbose: everything is shown instead of being written there.

    Raises:
        FairFLError: what was wrong, as this package words it; or, of any other error, its words
            and where its traceback is.
        SystemExit: as the configuration ends.
    """
    import monai.bundle

    keys = {name: str(key) if isinstance(key, Path) else key for name, key in keys.items()}
    words = ["python", "-m", "monai.bundle", "run"]
    for name, value in {"config_file": files[0] if len(files) == 1 else files, **keys}.items():
        words += [f"--{name}", str(value)]
    with output_into(log, verbose):
        print(shlex.join(words), file=sys.stderr, flush=True)
        try:
            monai.bundle.run(config_file=list(files), **keys)
            return
        except Exception as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, FairFLError):
                cause = cause.__cause__
            if cause is None:
                traceback.print_exception(error)
                cause = FairFLError(f"{in_words(error)}. For the traceback see {log}")
    raise cause


def chosen_files(args: argparse.Namespace, bundle: Path) -> list[str]:
    """``federate.json``, and what ``--recipe``, ``--quick`` and ``--settings`` merge after it.

    Raises:
        ConfigError: the bundle has no such recipe.
    """
    files = [bundle / FEDERATE]
    if args.recipe is not None:
        files.append(bundle / "configs" / f"federate_{args.recipe}.json")
        if not files[-1].is_file():
            known = sorted(file.stem[9:] for file in files[-1].parent.glob("federate_*.json"))
            raise ConfigError(f"{bundle} has no recipe {args.recipe!r}, only {known}")
    if args.quick:
        files.append(bundle / QUICK)
    if args.settings is not None:
        files.append(args.settings)
    # With their folders: the line may be used in another one.
    return [str(file.absolute()) for file in files]


def keys_in(files: Sequence[str]) -> dict[str, Any]:
    """The keys of some files, of which a later one counts more."""
    keys: dict[str, Any] = {}
    for file in files:
        keys |= read_keys(Path(file), must=True)
    return keys


def given_keys(args: argparse.Namespace, files: Sequence[str]) -> dict[str, Any]:
    """The keys that the options of a command give, their overrides beside those of the files."""
    given = keys_given(args)
    if given.get("overrides"):
        given["overrides"] = {**(keys_in(files).get("overrides") or {}), **given["overrides"]}
    return given


def written_overlay(brought: Mapping[str, Any], folder: Path) -> list[str]:
    """Write what a model brings, where its bundle has it otherwise; the file, if there is one."""
    if not brought:
        return []
    file = folder / "recipe.json"
    write_atomically(file, json.dumps(brought, indent=4).encode())
    return [str(file)]


def text_of_report(run_dir: Path) -> str:
    """The report that a training wrote at its end, as text."""
    page = run_dir / "report.html"
    if not page.exists():
        return f"{run_dir}: done, without a report"
    return f"{as_text(json.loads(page.with_suffix('.json').read_text()))}\nReport: {page}"


@contextmanager
def output_into(log: Path, verbose: bool = False) -> Iterator[None]:
    """Inside, all output goes into a log, that of worker processes too.

    Warnings of this package are shown as well, each text once, and runs show their progress.

    Args:
        log: gets the output, after what it holds.
        verbose: whether all is shown instead.
    """
    # A bundle's logging.conf replaces the handlers of the root logger.
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    with ExitStack() as inside:
        before = CONSOLE.set(Console(stderr=True, highlight=False))
        inside.callback(CONSOLE.reset, before)
        if verbose:
            yield
            return
        log.parent.mkdir(parents=True, exist_ok=True)
        # A path may have bytes that are no UTF-8: it must not end the run that prints it.
        stream = log.open("a", encoding="utf-8", errors="backslashreplace", buffering=1)
        inside.enter_context(stream)
        # The standard error of this moment, wherever it goes later.
        terminal = inside.enter_context(os.fdopen(os.dup(2), "w", errors="replace"))
        console = Console(file=terminal, highlight=False)
        shown = _OnConsole(console)
        for descriptor, standard in enumerate((sys.stdout, sys.stderr), 1):
            standard.flush()
            saved = os.dup(descriptor)
            inside.callback(os.close, saved)
            inside.callback(os.dup2, saved, descriptor)
            os.dup2(stream.fileno(), descriptor)
        inside.enter_context(redirect_stdout(stream))
        inside.enter_context(redirect_stderr(stream))
        CONSOLE.set(console)
        logger.addHandler(shown)
        try:
            yield
        finally:
            logger.removeHandler(shown)
            root.handlers[:] = handlers
            root.setLevel(level)


class _OnConsole(logging.Handler):
    """Prints each warning once."""

    def __init__(self, console: Console):
        super().__init__(logging.WARNING)
        self.console = console
        self.shown: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text not in self.shown:
            self.shown.add(text)
            self.console.print(text, markup=False, soft_wrap=True)
