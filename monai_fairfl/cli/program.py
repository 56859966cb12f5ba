# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The command ``monai-fairfl``: everything around a training.

A training itself is ``python -m monai.bundle run``: commands that train or use a model print that
line and run it. Each command is a function from its arguments to
an :class:`~monai_fairfl.cli.command.Answer`; it imports what it needs, so ``--help`` is quick.
"""

from __future__ import annotations

import argparse
import inspect
import io
import json
import os
import sys
from collections.abc import Sequence

from monai_fairfl.cli import (
    adapting,
    adopting,
    comparing,
    data,
    doctoring,
    flare,
    flower,
    ledgers,
    models,
    runs,
    training,
    using,
)
from monai_fairfl.cli.command import Answer, Command
from monai_fairfl.errors import FairFLError, closest
from monai_fairfl.utils.terminal import data_notes_shown_once

EXAMPLES = """
check the environment and your data:
  monai-fairfl doctor hospitals

a first look at your own hospitals, one folder each:
  monai-fairfl try hospitals

a federation, and its model on new images:
  monai-fairfl train hospitals --strategy FedCE --out runs/fedce
  monai-fairfl infer runs/fedce scans --out masks
  monai-fairfl adapt runs/fedce hospitals/elm

a first federation, from nothing:
  monai-fairfl demo-data --out hospitals
  monai-fairfl train hospitals --quick --out runs/first
  monai-fairfl report runs/first

somebody else's bundle, such as one of MONAI's model zoo:
  monai-fairfl adopt spleen_ct_segmentation --data hospitals
  monai-fairfl train hospitals --bundle spleen_ct_segmentation

strategies over seeds and folds, for a paper:
  monai-fairfl compare hospitals --strategies FedAvg FedCE --seeds 0 1 2 --folds 4

With --json a command prints one JSON object and nothing else; if it fails, {"error": "..."}. Exit
code 2: the command failed, an argument is wrong (then the message is plain text), or a check
(doctor, datalist --check, flare-policy --check, verify) found a problem. Exit code 3: infer could
not segment some of the images, or lacks an output of some.
"""

MODULES = (
    data,
    adopting,
    training,
    using,
    adapting,
    comparing,
    runs,
    ledgers,
    models,
    flare,
    flower,
    doctoring,
)
"""Each adds its commands, in the order of the help."""

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

    >>> main(["bundle", "prostate_mri_segmentation", "/dev/null", "--json"])  # doctest: +ELLIPSIS
    {"error": "/dev/null is there already and not an empty folder; name a new one..."}
    2
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    code = 0  # of --help and --version, which print while the arguments are parsed
    try:
        try:
            args = _parser().parse_args(argv)
            code = EXIT_FAILED  # until the command has ended
            answer = _answer(args)
            code = answer.code
            _print(answer, as_json=args.json)
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
    try:
        with data_notes_shown_once():
            answer: Answer = args.command(args)
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        line = "stopped; run the same command to continue a training"
        return Answer({"error": line}, f"monai-fairfl: {line}", EXIT_INTERRUPTED)
    except FairFLError as error:
        return _answer_of_error(str(error))
    except OSError as error:
        return _answer_of_error(_text_of_file_error(error))
    return answer


def _answer_of_error(text: str) -> Answer:
    line = _in_one_line(text)
    return Answer({"error": line}, f"monai-fairfl: {line}", EXIT_FAILED)


def _in_one_line(text: str) -> str:
    """Join the lines of an error, which may end without a full stop or be items of a list.

    >>> _in_one_line("an image was changed\\nPut it back")
    'an image was changed. Put it back'
    >>> _in_one_line("2 problems\\n- no mask of a\\n- no mask of b")
    '2 problems: no mask of a; no mask of b'
    """
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    joined = ""
    before = ""
    for line in lines:
        joined += _separator(before, line) + line.removeprefix("- ")
        before = line
    return joined


def _separator(before: str, line: str) -> str:
    """What stands between a line of an error, if there is one, and the next in the same line."""
    if not before:
        return ""
    if before.endswith((".", ":", ";", ",")):
        return " "
    if line.startswith("- ") and not before.startswith("- "):
        return ": "
    if line.removeprefix("- ")[:1].isupper():
        return ". "
    return "; "


def _text_of_file_error(error: OSError) -> str:
    """Describe an error of the file system: the path first, then what is wrong with it.

    >>> _text_of_file_error(IsADirectoryError(21, "Is a directory", "lists"))
    'lists: this is a folder, where a file is needed; name a file'
    >>> _text_of_file_error(OSError(28, "No space left on device", "run/a.pt"))
    'run/a.pt: No space left on device'
    """
    if not error.filename:
        return str(error)
    fault = FILE_FAULTS.get(type(error), error.strerror)
    return f"{error.filename}: {fault}"


def _print(answer: Answer, as_json: bool) -> None:
    """Print the answer; an error as text goes to standard error."""
    if as_json:
        print(json.dumps(answer.data))
    elif "error" in answer.data:
        print(answer.text, file=sys.stderr)
    else:
        print(answer.text)


class _Parser(argparse.ArgumentParser):
    """Refuses an option that it does not know with the one that was probably meant.

    The options of a command are refused by the parser of the command, which alone knows them.
    """

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse all arguments, or end the program."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._meant(unknown)}")
        return known, unknown

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


def _parser() -> argparse.ArgumentParser:
    """Build the parser of the whole program from the modules of its commands."""
    parser = _Parser(
        prog="monai-fairfl",
        description="Fair federated medical image segmentation with MONAI bundles.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, help="show the version, and the commit")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Command, examples: str) -> argparse.ArgumentParser:
        description = inspect.getdoc(command) or ""
        example_lines = [f"  monai-fairfl {line}" for line in examples.splitlines()]
        subparser = subparsers.add_parser(
            name,
            help=description.partition("\n\n")[0],
            description=description,
            epilog="\n".join(["examples:", *example_lines]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        subparser.add_argument("--json", action="store_true", help="print one JSON object")
        subparser.set_defaults(command=command)
        return subparser

    for module in MODULES:
        module.add_commands(add)
    return parser
