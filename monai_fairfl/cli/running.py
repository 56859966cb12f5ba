# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Runs a line of ``python -m monai.bundle run`` in this process, quietly.

What MONAI and other libraries print goes into a log. The terminal shows the line, one line of
progress, the warnings of this package, and what the command has to say at the end.
"""

from __future__ import annotations

import ast
import json
import logging
import os
import shlex
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from monai.bundle import ConfigParser
from rich.console import Console

from monai_fairfl.bundle.run_config import recorded_as
from monai_fairfl.bundle.runs_display import shown_on
from monai_fairfl.errors import ConfigError, FairFLError, FederationError, in_words
from monai_fairfl.report import as_text
from monai_fairfl.report.collect import find_runs
from monai_fairfl.run.checkpoint import Schedule
from monai_fairfl.run.resuming import ended
from monai_fairfl.utils.terminal import data_notes_to, was_shown
from monai_fairfl.utils.words import count_words

logger = logging.getLogger(__name__)

PACKAGE = "monai_fairfl"
"""Root of the loggers whose warnings a user sees."""


@dataclass(frozen=True)
class MonaiLine:
    """A line of ``python -m monai.bundle run``.

    Args:
        files: of the configuration, merged in this order.
        arguments: key -> value that replaces one of the configuration.

    >>> print(MonaiLine(["train.json"], {"overrides": {"size": [64, 64]}}).text)
    python -m monai.bundle run --config_file train.json --overrides '{"size": [64, 64]}'
    """

    files: Sequence[str]
    arguments: Mapping[str, Any]

    @property
    def words(self) -> list[str]:
        """The words of the line, as a shell would hand them over."""
        config_file: Any = list(self.files)
        if len(self.files) == 1:
            config_file = self.files[0]
        words = ["python", "-m", "monai.bundle", "run"]
        for name, value in {"config_file": config_file, **self.arguments}.items():
            words += [f"--{name}", _as_argument(value)]
        return words

    @property
    def text(self) -> str:
        """The line for a shell."""
        return shlex.join(self.words)

    def configuration(self) -> ConfigParser:
        """The configuration that the line runs; nothing of it is built.

        Raises:
            ConfigError: naming a file that is none.
        """
        parser = ConfigParser()
        try:
            parser.read_config(list(self.files))
        except Exception as error:  # of JSON, of YAML
            files = ", ".join(self.files)
            raise ConfigError(
                f"one of {files} is not a configuration: {in_words(error)}"
            ) from error
        parser.update(dict(self.arguments))
        return parser

    def run(self, log: Path, verbose: bool = False) -> None:
        """Do what the line does.

        Args:
            log: gets what is printed and logged; what it holds already stays.
            verbose: everything is shown instead of being written there.

        Raises:
            FairFLError: what was wrong, as this package words it; or, of any other error, its words
                and where its traceback is.
            SystemExit: as the configuration ends.
        """
        import monai.bundle

        with recorded_as(self.words), output_into(log, verbose):
            print(self.text, file=sys.stderr, flush=True)
            try:
                monai.bundle.run(config_file=list(self.files), **self.arguments)
            except Exception as error:
                raise _in_our_words(error, log, verbose) from error


def _as_argument(value: Any) -> str:
    """A value as MONAI's command line reads it: a text as it is, else as Python writes it.

    Double quotes stay readable in a shell's line.

    >>> _as_argument({"size": [64, 64]}), _as_argument({"stereo": False}), _as_argument("FedCE")
    ('{"size": [64, 64]}', "{'stereo': False}", 'FedCE')
    """
    if isinstance(value, str):
        return value
    as_json = json.dumps(value)
    try:
        if ast.literal_eval(as_json) == value:
            return as_json
    except ValueError:
        # JSON's true, false and null are none of Python.
        pass
    return str(value)


def _in_our_words(error: Exception, log: Path, verbose: bool) -> FairFLError:
    """The error of this package that another one was raised from, or one with its words."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, FairFLError):
            return cause
        cause = cause.__cause__
    traceback.print_exception(error)
    where = "above" if verbose else f"in {log}"
    return FairFLError(f"{in_words(error)}. The traceback is {where}")


def require_end(run_dir: Path) -> None:
    """Refuse to speak of a training that a signal stopped as of one that is done.

    Args:
        run_dir: of a run, or of a comparison.

    Raises:
        FederationError: naming the runs that did not end, and their last round.
    """
    unfinished = []
    for run in find_runs([run_dir]):
        if not ended(run):
            done = len(Schedule.read(run).seconds)
            unfinished.append(f"{run.name} stopped with {count_words(done, 'round')} done")
    if unfinished:
        raise FederationError(f"{'; '.join(unfinished)}. The same command goes on")


def text_of_report(run_dir: Path) -> str:
    """The report that a training wrote at its end, as text."""
    page = run_dir / "report.html"
    if not page.exists():
        return f"{run_dir}: done, without a report"
    report = json.loads((run_dir / "report.json").read_text())
    return f"{as_text(report)}\nReport: {page}"


@contextmanager
def output_into(log: Path, verbose: bool = False) -> Iterator[None]:
    """Inside, output goes into a log, see :func:`quietly`; or all is shown, with the progress.

    Args:
        log: gets the output, after what it holds.
        verbose: whether it is shown instead.
    """
    if verbose:
        with shown_on(Console(stderr=True, highlight=False)):
            yield
        return
    with quietly(log):
        yield


@contextmanager
def quietly(log: Path) -> Iterator[None]:
    """Inside, all output goes into a log, that of worker processes too.

    Warnings of this package are shown as well, each text once, and runs show their progress.

    Args:
        log: gets the output, after what it holds.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as inside:
        # A path may have bytes that are no UTF-8: it must not end the run that prints it.
        opened = log.open("a", encoding="utf-8", errors="backslashreplace", buffering=1)
        stream = inside.enter_context(opened)
        console = Console(file=inside.enter_context(_terminal()), highlight=False)
        inside.enter_context(descriptors_into(stream))
        inside.enter_context(redirect_stdout(stream))
        inside.enter_context(redirect_stderr(stream))
        inside.enter_context(_loggers_restored())
        inside.enter_context(_warnings_of_this_package_on(console))
        inside.enter_context(data_notes_to(_log_note))
        inside.enter_context(shown_on(console, rest_in_log=True))
        yield


@contextmanager
def _terminal() -> Iterator[TextIO]:
    """The standard error of this moment, whatever it is redirected to later."""
    if not _is_of_the_process(sys.stderr, 2):
        yield sys.stderr
        return
    with os.fdopen(os.dup(2), "w", encoding=sys.stderr.encoding, errors="replace") as terminal:
        yield terminal


def _is_of_the_process(stream: TextIO, descriptor: int) -> bool:
    """Whether a stream writes to this descriptor: that of a test may not."""
    try:
        return stream.fileno() == descriptor
    except (OSError, ValueError):
        return False


@contextmanager
def descriptors_into(stream: TextIO) -> Iterator[None]:
    """Let standard output and error of this process and those that it starts go into a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [(os.dup(descriptor), descriptor) for descriptor in (1, 2)]
    for _, descriptor in saved:
        os.dup2(stream.fileno(), descriptor)
    try:
        yield
    finally:
        for copy, descriptor in saved:
            os.dup2(copy, descriptor)
            os.close(copy)


@contextmanager
def _loggers_restored() -> Iterator[None]:
    """A bundle's ``logging.conf`` replaces the handlers of the root logger: only for a while."""
    root = logging.getLogger()
    handlers = list(root.handlers)
    level = root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


@contextmanager
def _warnings_of_this_package_on(console: Console) -> Iterator[None]:
    handler = _OnConsole(console)
    logger = logging.getLogger(PACKAGE)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _log_note(text: str) -> None:
    """Log a note on a site's data as a warning of this package."""
    logger.warning("%s", text)


class _OnConsole(logging.Handler):
    """Prints each warning once."""

    def __init__(self, console: Console):
        super().__init__(logging.WARNING)
        self.console = console
        self.shown: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text in self.shown or was_shown(text):
            return
        self.shown.add(text)
        self.console.print(text, markup=False, soft_wrap=True)
