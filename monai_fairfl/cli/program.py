# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The command ``monai-fairfl``: everything around a training.

A training itself is ``python -m monai.bundle run``: commands that train or use a model run such a
line, which ``log.txt`` has, and the terminal with ``--verbose``. A command is a function from its
arguments to an :class:`~monai_fairfl.cli.options.Answer`, and one that adds its options. It imports
what it needs, so ``--help`` is quick.
"""

from __future__ import annotations

import argparse
import inspect
import io
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TextIO

from monai_fairfl.cli import bundles, doctoring, finished, models, training
from monai_fairfl.cli.options import Answer
from monai_fairfl.errors import FairFLError, closest
from monai_fairfl.utils.terminal import data_notes_to

Options = Callable[[argparse.ArgumentParser], None]
Command = Callable[[argparse.Namespace], Answer]

COMMANDS: dict[str, tuple[Command, Options]] = {
    "demo": (training.demo, training.demo_options),
    "doctor": (doctoring.doctor, doctoring.doctor_options),
    "try": (training.try_, training.try_options),
    "train": (training.train, training.train_options),
    "compare": (training.compare, training.compare_options),
    "value": (finished.value, finished.value_options),
    "infer": (models.infer, models.infer_options),
    "evaluate": (models.evaluate, models.evaluate_options),
    "adapt": (models.adapt, models.adapt_options),
    "report": (finished.report, finished.report_options),
    "verify": (finished.verify, finished.verify_options),
    "bundle": (bundles.bundle, bundles.bundle_options),
    "export": (models.export, models.export_options),
    "strategies": (bundles.strategies, bundles.strategies_options),
}
"""Name -> the function, whose docstring is the help, and what adds its options."""

NOTES = """
With --json a command prints one JSON object and nothing else; if it fails, {"error": "..."}. Exit
code 2: the command failed, an argument is wrong (then the message is plain text), or a check
(doctor, verify) found a problem. Exit code 3: infer could not segment some of the images, or lacks
an output of some.
"""

COLOURS = {
    r"^monai-fairfl: |\b(WRONG|NOT RIGHT|NO REPLAY|problem:|left behind|worse than alone)": "red",
    r"\b(note:|cannot tell)": "yellow",
    r"\b(\d+ fine|better than alone|Taken)\b": "green",
}
"""What a terminal shows in which colour."""

EXIT_FAILED = 2
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Characters that standard output cannot show are replaced. When its reader has left (``| head``),
    the command ends without a word. Where it goes to a full disk, that is an error in one line.

    Args:
        argv: the words after ``monai-fairfl``; those of this process by default.

    Returns:
        Exit code: 0, or 2 after an error that the user can mend, printed in one line.

    >>> words = ["bundle", "copy", "prostate_mri_segmentation", "--out", "/dev/null"]
    >>> main([*words, "--json"])  # doctest: +ELLIPSIS
    {"error": "/dev/null is there already and not an empty folder; name a new one..."}
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
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            print(f"monai-fairfl: standard output: {error.strerror}", file=sys.stderr)
            code = EXIT_FAILED
        # Python writes to standard output once more at its end: that goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _answer(args: argparse.Namespace) -> Answer:
    """Run the command; an error that the user can mend becomes its answer."""
    code = EXIT_FAILED
    try:
        with data_notes_to(lambda note: print(f"note: {note}", file=sys.stderr)):
            answer: Answer = args.command(args)
            return answer
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        line = "stopped; run the same command to continue a training"
        code = EXIT_INTERRUPTED
    except FairFLError as error:
        # One line: its own lines may end without a full stop, or be items of a list.
        line = re.sub(r"(?<=[.:;,])\s*\n\s*(- )?", " ", str(error).strip())
        line = re.sub(r"\s*\n\s*(- )?", "; ", line)
    except OSError as error:
        line = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return Answer({"error": line}, f"monai-fairfl: {line}", code)


def coloured(text: str, stream: TextIO) -> str:
    """The text with the codes of its colours, where the stream is a terminal that has some.

    >>> coloured("27 fine", io.StringIO())
    '27 fine'
    """
    if not stream.isatty():
        return text
    from rich.console import Console
    from rich.text import Text

    styled = Text(text)
    for pattern, style in COLOURS.items():
        styled.highlight_regex(pattern, style)
    console = Console(file=stream)
    with console.capture() as captured:
        console.print(styled, soft_wrap=True, end="")
    return captured.get()


# --- arguments


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command, with its function as ``command``.

    Only the parser of this command is made. It ends the process where an argument is wrong.

    Args:
        words: after ``monai-fairfl``; a key may have its underscores.

    >>> parsed(["verify", "runs/first", "--replay"]).replay
    True
    """
    name = words[0] if words else "--help"
    if name in COMMANDS:
        command, add_options = COMMANDS[name]
        parser = _Parser(f"monai-fairfl {name}", description=inspect.getdoc(command))
        add_options(parser)
        parser.add_argument("--json", action="store_true", help="print one JSON object")
        parser.set_defaults(command=command)
        with_hyphens = [
            re.sub("^--[^=]+", lambda name: name[0].replace("_", "-"), word) for word in words[1:]
        ]
        return parser.parse_args(with_hyphens)

    lines = []
    for known, (command, _) in COMMANDS.items():
        lines.append(f"  {known:<12}{(inspect.getdoc(command) or '').splitlines()[0]}")
    parser = _Parser(
        "monai-fairfl",
        usage="monai-fairfl COMMAND ...\n       monai-fairfl COMMAND --help",
        description="Fair federated medical image segmentation with MONAI bundles.",
        epilog="\n".join(["commands:", *lines, NOTES]),
    )
    parser.add_argument("--version", action="store_true", help="show the version, and the commit")
    if not name.startswith("-"):
        meant = closest(name, COMMANDS)
        known = f"did you mean {meant}?" if meant else f"there are {', '.join(COMMANDS)}"
        parser.error(f"no command {name!r}; {known}")
    if parser.parse_args([name]).version:
        from monai_fairfl.cli.doctoring import build_of

        # Git is asked for the commit only here.
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
