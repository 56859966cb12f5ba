# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The command ``monai-fairfl``: everything around a training.

A training itself is ``python -m monai.bundle run``: commands that train or use a model run such a
line, which ``log.txt`` has, and the terminal with ``--verbose``. A command is a function from its
arguments to an :class:`~monai_fairfl.cli.answers.Answer`, and one that adds its options. Its module
is imported when it is carried out, so ``--help`` is quick.
"""

from __future__ import annotations

import argparse
import inspect
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NoReturn, TextIO

import monai_fairfl
from monai_fairfl.cli import options
from monai_fairfl.cli.answers import Answer
from monai_fairfl.errors import FairFLError, closest, did_you_mean
from monai_fairfl.utils.terminal import data_notes_to

COMMANDS: dict[str, tuple[Callable[[argparse.ArgumentParser], None], str]] = {
    "demo": (options.demo, "training"),
    "doctor": (options.doctor, "doctoring"),
    "try": (options.try_, "training"),
    "train": (options.train, "training"),
    "compare": (options.compare, "training"),
    "value": (options.value, "finished"),
    "infer": (options.infer, "models"),
    "evaluate": (options.evaluate, "evaluating"),
    "adapt": (options.adapt, "models"),
    "report": (options.report, "finished"),
    "verify": (options.verify, "finished"),
    "bundle": (options.bundle, "bundles"),
    "export": (options.export, "models"),
    "strategies": (options.strategies, "bundles"),
}
"""Name -> what adds its options, whose docstring is its help; and the module that carries it out,
by a function of the same name."""

NOTES = """
With --json a command prints one JSON object; if it fails, {"error": "..."}. Exit code 2: it failed,
or a check found a problem. Exit code 3: infer could not segment some of the images.
"""

COLOURS = {
    r"^monai-fairfl: |\b(WRONG|NOT RIGHT|NO REPLAY|problem:|left behind|worse than alone)": "red",
    r"\b(note:|cannot tell)": "yellow",
    r"\b(\d+ fine|better than alone|Taken)\b": "green",
}
"""What a terminal shows in which colour."""

EXIT_FAILED = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Characters that standard output cannot show are replaced. When its reader has left (``| head``),
    the command ends without a word.

    Args:
        argv: the words after ``monai-fairfl``; those of this process by default.

    Returns:
        Exit code: 0, or 2 after an error that the user can mend, printed in one line.

    >>> words = ["bundle", "copy", "prostate_mri_segmentation", "--out", "/dev/null"]
    >>> main([*words, "--json"])  # doctest: +ELLIPSIS
    {"error": "/dev/null is there already...
    2
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    code = 0  # of --help and --version, which print while the arguments are parsed
    try:
        try:
            args = parsed(sys.argv[1:] if argv is None else argv)
            code = EXIT_FAILED  # until the command has ended
            answer = _answer(args)
            code = answer.code
            if args.json:
                print(json.dumps(answer.data))
            else:
                # An error as text goes to standard error.
                stream = sys.stderr if "error" in answer.data else sys.stdout
                print(coloured(answer.text, stream), file=stream)
        finally:
            # What is still buffered must not fail later, when Python ends.
            print(end="", flush=True)
    except BrokenPipeError:
        # Python writes to standard output once more at its end: that goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _answer(args: argparse.Namespace) -> Answer:
    """Run the command; an error that the user can mend becomes its answer."""
    code = EXIT_FAILED
    try:
        with data_notes_to(lambda note: print(f"note: {note}", file=sys.stderr)):
            answer: Answer = getattr(import_module(args.module), args.command)(args)
            return answer
    except KeyboardInterrupt:
        line = "stopped; run the same command to continue a training"
        code = 130  # as a shell has it
    except FairFLError as error:
        # One line, of which some may be items of a list.
        line = re.sub(r"\s*\n\s*(- )?", "; ", str(error).strip())
    except OSError as error:
        line = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    except ImportError as error:  # of an installation that is broken
        line = f"{error}: pip install --force-reinstall monai-fairfl"
    return Answer({"error": line}, f"monai-fairfl: {line}", code)


def coloured(text: str, stream: TextIO) -> str:
    """The text with the codes of its colours, where the stream is a terminal that has some.

    >>> coloured("27 fine", io.StringIO())
    '27 fine'
    """
    from rich.console import Console
    from rich.text import Text

    styled = Text(text)
    for pattern, style in COLOURS.items():
        styled.highlight_regex(pattern, style)
    console = Console(file=stream)
    with console.capture() as captured:
        console.print(styled, soft_wrap=True, end="")
    return captured.get()


def build_of() -> str:
    """The version, with the git commit where the package runs from a checkout.

    >>> build_of().startswith(monai_fairfl.__version__)
    True
    """
    checkout = os.path.dirname(os.path.dirname(os.path.abspath(monai_fairfl.__file__)))
    if not os.path.exists(f"{checkout}/.git") or shutil.which("git") is None:
        return str(monai_fairfl.__version__)
    git = ["git", "-C", checkout, "rev-parse", "--short", "HEAD"]
    done = subprocess.run(git, capture_output=True, text=True)
    return f"{monai_fairfl.__version__} (commit {done.stdout.strip() or 'unknown'})"


# --- arguments


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command, with its function's name as ``command``, in ``module``.

    Only the parser of this command is made. It ends the process where an argument is wrong.

    Args:
        words: after ``monai-fairfl``.

    >>> parsed(["verify", "runs/first", "--replay"]).replay
    True
    """
    name = words[0] if words else "--help"
    if name in COMMANDS:
        add_options, module = COMMANDS[name]
        parser = _Parser(f"monai-fairfl {name}", description=inspect.getdoc(add_options))
        add_options(parser)
        options.flag(parser, "--json", "print one JSON object")
        parser.set_defaults(command=add_options.__name__, module=f"monai_fairfl.cli.{module}")
        return parser.parse_args(words[1:])

    lines = []
    for known, (add_options, _) in COMMANDS.items():
        lines.append(f"  {known:<12}{(inspect.getdoc(add_options) or '').splitlines()[0]}")
    parser = _Parser(
        "monai-fairfl",
        usage="monai-fairfl COMMAND ...\n       monai-fairfl COMMAND --help",
        description="Fair federated medical image segmentation with MONAI bundles.",
        epilog="\n".join(["commands:", *lines, NOTES]),
    )
    parser.add_argument("--version", action="store_true", help="show the version, and the commit")
    if not name.startswith("-"):
        parser.error(f"no command {name!r}{did_you_mean(name, COMMANDS)}")
    if parser.parse_args([name]).version:
        print(f"monai-fairfl {build_of()}")
    return parser.exit()


class _Parser(argparse.ArgumentParser):
    """Refuses an option that it does not know with the one that was probably meant."""

    def __init__(self, prog: str, **texts: Any):
        super().__init__(prog, formatter_class=argparse.RawDescriptionHelpFormatter, **texts)

    def error(self, message: str) -> NoReturn:
        """End the program with one sentence, and not with all options."""
        more = f"; {self.prog} --help shows all"
        if unknown := re.search(r"^unrecognized arguments:.*?(--[\w-]+)", message):
            if meant := closest(unknown[1], self._option_string_actions):
                more = f"; did you mean {meant}?"
        self.exit(EXIT_FAILED, f"{self.prog}: {message}{'' if message[-1] == '?' else more}\n")
