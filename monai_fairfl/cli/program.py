# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The command ``monai-fairfl``: everything around a training. Training itself is
``python -m monai.bundle run``.

Each command is a function from its arguments to an :class:`~monai_fairfl.cli.command.Answer`; it
imports what it needs, so ``--help`` is quick.
"""

from __future__ import annotations

import argparse
import inspect
import io
import json
import os
import sys
from collections.abc import Callable, Sequence

from monai_fairfl import __version__
from monai_fairfl.cli import data, flare, models, runs
from monai_fairfl.cli.command import Answer
from monai_fairfl.errors import FairFLError

EXAMPLES = """
a first look at your own hospitals, one folder each:
  monai-fairfl try hospitals

a first federation, from nothing:
  monai-fairfl demo-data --out hospitals
  monai-fairfl bundle prostate_mri_segmentation prostate
  python -m monai.bundle run --config_file prostate/configs/federate.json --bundle_root prostate \\
      --sites_root hospitals --run_dir runs/first --rounds 12 --local_epochs 4 \\
      --strategy#_target_ monai_fairfl.strategies.FedCE
  monai-fairfl report runs/first

With --json a command prints one JSON object and nothing else, {"error": "..."} when it fails. Exit code 2: it failed,
an argument is wrong (told as text), or what was checked (datalist --check, flare-policy --check, verify) is not right.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Characters that standard output cannot show are replaced. When its reader has left (``| head``),
    the command ends without a word.

    Args:
        argv: the words after ``monai-fairfl``; those of this process by default.

    Returns:
        Exit code: 0, or 2 after an error that the user can mend, told in one line.

    >>> main(["bundle", "prostate_mri_segmentation", "/dev/null", "--json"])
    {"error": "/dev/null is there already and not an empty folder; name a new one, or delete it first"}
    2
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    code = 0
    try:
        try:
            args = _parser().parse_args(argv)
            code = 2
            answer = _answer(args)
            code = answer.code
            failed = not args.json and "error" in answer.data
            print(
                json.dumps(answer.data) if args.json else answer.text,
                file=sys.stderr if failed else None,
            )
        finally:
            print(end="", flush=True)
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # takes what Python itself writes at its end
    return code


def _answer(args: argparse.Namespace) -> Answer:
    try:
        answer: Answer = args.command(args)
    except BrokenPipeError:
        raise
    except (FairFLError, OSError) as error:
        text = _about_file(error) if isinstance(error, OSError) else str(error)
        line = " ".join(text.split("\n"))
        return Answer({"error": line}, f"monai-fairfl: {line}", 2)
    return answer


FILE_FAULTS: dict[type[OSError], str] = {
    NotADirectoryError: "a part of this path is a file, where a folder is needed; name another folder",
    FileExistsError: "a file lies where a folder is needed; name another folder",
    IsADirectoryError: "this is a folder, where a file is needed; name a file",
    PermissionError: "you may not read or write here; name another place, or change the permissions",
    FileNotFoundError: "there is no such file or folder, and none can be made here; check the path",
}
"""What an error of the file system means for whoever named the path."""


def _about_file(error: OSError) -> str:
    """An error of the file system: the path first, then what is wrong with it.

    >>> _about_file(IsADirectoryError(21, "Is a directory", "lists"))
    'lists: this is a folder, where a file is needed; name a file'
    >>> _about_file(OSError(28, "No space left on device", "run/a.pt"))
    'run/a.pt: No space left on device'
    """
    if not error.filename:
        return str(error)
    return f"{error.filename}: {FILE_FAULTS.get(type(error), error.strerror)}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="monai-fairfl",
        description="Fair federated medical image segmentation with MONAI bundles.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str, command: Callable[[argparse.Namespace], Answer], example: str
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name,
            help=inspect.getdoc(command),
            description=inspect.getdoc(command),
            epilog="examples:\n"
            + "\n".join(f"  monai-fairfl {line}" for line in example.splitlines()),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.add_argument("--json", action="store_true", help="print one JSON object")
        sub.set_defaults(command=command)
        return sub

    for commands_of in (data, runs, models, flare):
        commands_of.add_commands(add)
    return parser
