# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The command ``monai-fairfl``: everything around a training.

A training itself is ``python -m monai.bundle run``: commands that train or use a model run such a
line, which ``log.txt`` has, and the terminal with ``--verbose``. A command is a function from its
arguments to an :class:`~monai_fairfl.cli.command.Answer`, and one that adds its options. It imports
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
from typing import NoReturn, TextIO

from monai_fairfl.cli import (
    adapting,
    bundles,
    demos,
    doctoring,
    exporting,
    ledgers,
    runs,
    training,
    using,
    valuing,
)
from monai_fairfl.cli.command import Answer
from monai_fairfl.errors import FairFLError, closest
from monai_fairfl.utils.terminal import data_notes_shown_once

Options = Callable[[argparse.ArgumentParser], None]
Command = Callable[[argparse.Namespace], Answer]

COMMANDS: dict[str, tuple[Command, Options]] = {
    "demo": (demos.demo, demos.demo_options),
    "doctor": (doctoring.doctor, doctoring.doctor_options),
    "try": (training.try_, training.try_options),
    "train": (training.train, training.train_options),
    "compare": (training.compare, training.compare_options),
    "value": (valuing.value, valuing.value_options),
    "infer": (using.infer, using.infer_options),
    "evaluate": (using.evaluate, using.evaluate_options),
    "adapt": (adapting.adapt, adapting.adapt_options),
    "report": (runs.report, runs.report_options),
    "verify": (ledgers.verify, ledgers.verify_options),
    "bundle": (bundles.bundle, bundles.bundle_options),
    "export": (exporting.export, exporting.export_options),
    "strategies": (runs.strategies, runs.strategies_options),
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

FILE_FAULTS: dict[type[OSError], str] = {
    NotADirectoryError: "a part of this path is a file, where a folder is needed; name another "
    "folder",
    FileExistsError: "a file lies where a folder is needed; name another folder",
    IsADirectoryError: "this is a folder, where a file is needed; name a file",
    PermissionError: "you may not read or write here; name another place, or change the "
    "permissions",
    FileNotFoundError: "there is no such file or folder, and none can be made here; check the path",
}
"""What an error of the file system means for the user who named the path."""


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
            _print(answer, args.json)
        finally:
            # What is still buffered must not fail later, when Python ends.
            print(end="", flush=True)
    except BrokenPipeError:
        _discard_output()
    except OSError as error:
        print(f"monai-fairfl: standard output: {error.strerror}", file=sys.stderr)
        _discard_output()
        code = EXIT_FAILED
    return code


def _discard_output() -> None:
    """Python writes to standard output once more at its end: that goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _answer(args: argparse.Namespace) -> Answer:
    """Run the command; an error that the user can mend becomes its answer."""
    code = EXIT_FAILED
    try:
        with data_notes_shown_once():
            answer: Answer = args.command(args)
            return answer
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        line = "stopped; run the same command to continue a training"
        code = EXIT_INTERRUPTED
    except FairFLError as error:
        line = _in_one_line(str(error))
    except OSError as error:
        line = str(error)
        if error.filename:
            line = f"{error.filename}: {FILE_FAULTS.get(type(error), error.strerror)}"
    return Answer({"error": line}, f"monai-fairfl: {line}", code)


def _in_one_line(text: str) -> str:
    """Join the lines of an error, which may end without a full stop or be items of a list.

    >>> _in_one_line("an image was changed\\nPut it back")
    'an image was changed. Put it back'
    >>> _in_one_line("2 problems\\n- no mask of a\\n- no mask of b")
    '2 problems: no mask of a; no mask of b'
    """
    joined = ""
    before = ""
    for line in filter(None, map(str.strip, text.split("\n"))):
        item = line.removeprefix("- ")
        if not before or before.endswith((".", ":", ";", ",")):
            between = " " if before else ""
        elif item != line and not before.startswith("- "):
            between = ": "
        else:
            between = ". " if item[:1].isupper() else "; "
        joined += between + item
        before = line
    return joined


def _print(answer: Answer, as_json: bool) -> None:
    """Print the answer, in colour on a terminal; an error as text goes to standard error."""
    if as_json:
        print(json.dumps(answer.data))
    elif "error" in answer.data:
        print(coloured(answer.text, sys.stderr), file=sys.stderr)
    else:
        print(coloured(answer.text, sys.stdout))


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
        words: after ``monai-fairfl``.

    >>> parsed(["verify", "runs/first", "--replay"]).replay
    True
    """
    name = words[0] if words else "--help"
    if name in COMMANDS:
        return _parser_of(name).parse_args(words[1:])
    lines = [f"  {name:<12}{_help_of(name)[0]}" for name in COMMANDS]
    parser = _Parser(
        prog="monai-fairfl",
        usage="monai-fairfl COMMAND ...\n       monai-fairfl COMMAND --help",
        description="Fair federated medical image segmentation with MONAI bundles.",
        epilog="\n".join(["commands:", *lines, NOTES]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, help="show the version, and the commit")
    if not name.startswith("-"):
        meant = closest(name, COMMANDS)
        known = f"did you mean {meant}?" if meant else f"there are {', '.join(COMMANDS)}"
        parser.error(f"no command {name!r}; {known}")
    parser.parse_args([*words[:1]])
    return parser.exit()  # of --version and --help, which have printed


def _help_of(name: str) -> tuple[str, str]:
    """The first line of a command's help, and all of it."""
    text = inspect.getdoc(COMMANDS[name][0]) or ""
    return text.partition("\n\n")[0], text


def _parser_of(name: str) -> argparse.ArgumentParser:
    """The parser of one command."""
    command, add_options = COMMANDS[name]
    parser = _Parser(
        prog=f"monai-fairfl {name}",
        description=_help_of(name)[1],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(command=command)
    return parser


class _Parser(argparse.ArgumentParser):
    """Refuses an option that it does not know with the one that was probably meant."""

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse all arguments, or end the program; a key may have its underscores."""
        words = [
            re.sub("^--[^=]+", lambda name: name[0].replace("_", "-"), word) for word in args or ()
        ]
        known, unknown = self.parse_known_args(words, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._meant(unknown)}")
        return known

    def error(self, message: str) -> NoReturn:
        """End the program with one sentence, and not with all options."""
        more = "" if message.endswith("?") else f"; {self.prog} --help shows all"
        self.exit(EXIT_FAILED, f"{self.prog}: {message}{more}\n")

    def _meant(self, unknown: Sequence[str]) -> str:
        """End of the error: the option that looks most like the first unknown one, if one does."""
        names = {option.lstrip("-"): option for option in self._option_string_actions}
        for word in unknown:
            if word.startswith("--"):
                name, _, _ = word.removeprefix("--").partition("=")
                meant = closest(name, names)
                return f"; did you mean {names[meant]}?" if meant else ""
        return ""


class _Version(argparse.Action):
    """Prints the build, which git is asked for only then."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None):
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print, and end the program as ``--help`` does."""
        from monai_fairfl.cli.build import build_of

        print(f"{parser.prog} {build_of()}")
        parser.exit()
