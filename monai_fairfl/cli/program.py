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
import re
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from monai_fairfl import __version__
from monai_fairfl.cli import options
from monai_fairfl.cli.answers import Answer
from monai_fairfl.errors import DataWarning, FairFLError, closest, did_you_mean

COMMANDS = {
    "demo": "training",
    "doctor": "doctoring",
    "try": "training",
    "train": "training",
    "compare": "training",
    "value": "finished",
    "infer": "models",
    "evaluate": "models",
    "adapt": "models",
    "report": "finished",
    "verify": "finished",
    "bundle": "bundles",
    "export": "models",
    "strategies": "bundles",
}
"""Name -> module that carries it out, by a function of that name; the one in
:mod:`~monai_fairfl.cli.options` adds its options, and has its help."""

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
    """Run one command. Characters that standard output cannot show are replaced.

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
    args = parsed(sys.argv[1:] if argv is None else argv)
    show = warnings.showwarning
    notes: set[str] = set()

    def note(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
        """Show each note on data once, without the line of code that warns."""
        text = f"note: {message}"
        if not issubclass(category, DataWarning):
            show(message, category, *where, **more)
        elif text not in notes:
            from monai_fairfl.bundle.trainings import show_text

            notes.add(text)
            print(text, file=sys.stderr)
            show_text(text)

    code = EXIT_FAILED
    error: str | None = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", DataWarning)
            warnings.showwarning = note
            answer: Answer = getattr(import_module(args.module), args.command)(args)
    except KeyboardInterrupt:
        error = "stopped; run the same command to continue a training"
        code = 130  # as a shell has it
    except FairFLError as raised:
        # One line, of which some may be items of a list.
        error = re.sub(r"\s*\n\s*(- )?", "; ", str(raised).strip())
    except OSError as raised:
        error = f"{raised.filename}: {raised.strerror}" if raised.filename else str(raised)
    if error is not None:
        answer = Answer({"error": error}, f"monai-fairfl: {error}", code)
    if args.json:
        print(json.dumps(answer.data))
    else:
        from rich.console import Console
        from rich.text import Text

        styled = Text(answer.text)
        for pattern, style in COLOURS.items():
            styled.highlight_regex(pattern, style)
        # An error as text goes to standard error.
        Console(stderr=error is not None).print(styled, soft_wrap=True)
    return answer.code


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
    adding = {known: vars(options)["try_" if known == "try" else known] for known in COMMANDS}
    if name in adding:
        parser = _Parser(
            f"monai-fairfl {name}",
            description=inspect.getdoc(adding[name]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        adding[name](parser)
        options.add(parser, json="print one JSON object")
        module = f"monai_fairfl.cli.{COMMANDS[name]}"
        parser.set_defaults(command=adding[name].__name__, module=module)
        return parser.parse_args(words[1:])

    lines = []
    for known, add_options in adding.items():
        first = str(inspect.getdoc(add_options)).splitlines()[0]
        lines.append(f"  {known:<12}{first}")
    parser = _Parser(
        "monai-fairfl",
        usage="monai-fairfl COMMAND ...\n       monai-fairfl COMMAND --help",
        description="Fair federated medical image segmentation with MONAI bundles.",
        epilog="\n".join(["commands:", *lines, NOTES]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"monai-fairfl {__version__}")
    if not name.startswith("-"):
        parser.error(f"no command {name!r}{did_you_mean(name, COMMANDS)}")
    return parser.parse_args([name])


class _Parser(argparse.ArgumentParser):
    """Refuses an option that it does not know with the one that was probably meant."""

    def error(self, message: str) -> NoReturn:
        """End the program with one sentence, and not with all options."""
        more = f"; {self.prog} --help shows all"
        if unknown := re.search(r"^unrecognized arguments:.*?(--[\w-]+)", message):
            if meant := closest(unknown[1], self._option_string_actions):
                more = f"; did you mean {meant}?"
        self.exit(EXIT_FAILED, f"{self.prog}: {message}{'' if message[-1] == '?' else more}\n")
