# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""How many functions of the package, in how many files, one round of FedCE enters.

::

    python benchmarks/round_functions.py [--train] [--list]

Four generated hospitals train the prostate bundle in this process. The second round is counted,
from the record of the first to its own. Nested functions and lambdas count; the package's
transforms of images (``data/``) do not. With ``--train`` all is counted from the words ``train DATA
--quick`` to the first round.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import monai_fairfl
from monai_fairfl.bundle.shipped import find_bundle
from monai_fairfl.bundle.site import bundle_client, initial_model
from monai_fairfl.cli import main as command
from monai_fairfl.data import site_folders, write_sites
from monai_fairfl.data.pelvis import write_demo
from monai_fairfl.server.federation import Federation
from monai_fairfl.server.observer import Observer
from monai_fairfl.strategies import FedCE
from monai_fairfl.transports.in_process import InProcess
from monai_fairfl.utils.terminal import quiet

PACKAGE = Path(monai_fairfl.__file__).parent
OVERRIDES = {"size": [32, 32], "channels": [4, 8, 8]}
NO_FUNCTIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")


class Watch(Observer):
    """Collects the code that is entered between the records of the first two rounds."""

    def __init__(self) -> None:
        self.entered: set[CodeType] = set()

    def record_added(self, record: Mapping[str, Any]) -> None:
        """Begin after the first round, and end after the second."""
        if record["kind"] == "round":
            sys.setprofile(self._call if record["round"] == 0 else None)

    def _call(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            self.entered.add(frame.f_code)


def entered_in_a_round(folder: Path) -> dict[Path, set[str]]:
    """File of the package -> functions of it that a round entered, with their lines."""
    write_demo(folder / "hospitals", size=(32, 32, 6))
    root = find_bundle("prostate_mri_segmentation")
    clients = {}
    for site, images in site_folders(folder / "hospitals").items():
        clients[site] = partial(
            bundle_client,
            root,
            site,
            folder / site,
            dataset_dir=images,
            overrides=OVERRIDES,
        )
    watch = Watch()
    federation = Federation(
        FedCE(),
        InProcess(clients),
        2,
        lambda: initial_model(root, OVERRIDES),
        run_dir=folder / "run",
        observer=watch,
    )
    with quiet():
        federation.run()
    found = by_file(watch.entered)
    return {file: found[file] for file in found if file.parts[0] != "data"}


class Begun(BaseException):
    """The first round begins."""


def entered_before_a_round(folder: Path) -> dict[Path, set[str]]:
    """File of the package -> functions of it that ``train DATA --quick`` entered till then."""
    write_sites(folder / "hospitals", size=(48, 48, 8))
    words = ["train", str(folder / "hospitals"), "--out", str(folder / "run")]
    entered: set[CodeType] = set()

    def call(frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code is Federation._round.__code__:
            sys.setprofile(None)
            raise Begun
        entered.add(frame.f_code)

    sys.setprofile(call)
    with suppress(Begun):
        command([*words, "--quick", "--jobs", "1"])
    return by_file(entered)


def by_file(entered: set[CodeType]) -> dict[Path, set[str]]:
    """File of the package -> names of functions, with their lines."""
    found = defaultdict(set)
    for code in entered:
        file = Path(code.co_filename)
        # The body of a class is no function.
        is_function = code.co_flags & CO_OPTIMIZED and code.co_name not in NO_FUNCTIONS
        if PACKAGE in file.parents and is_function:
            found[file.relative_to(PACKAGE)].add(f"{code.co_name}:{code.co_firstlineno}")
    return dict(sorted(found.items()))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="also print the functions of each file")
    parser.add_argument("--train", action="store_true", help="from a command to the first round")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        entered = entered_before_a_round if arguments.train else entered_in_a_round
        found = entered(Path(folder))
    rooms = defaultdict(list)
    for file, functions in found.items():
        rooms[file.parts[0]].append(len(functions))
        if arguments.list:
            print(f"{file}: {', '.join(sorted(functions))}")
    print(f"{'room':20} functions files")
    for room, counts in sorted(rooms.items(), key=lambda item: -sum(item[1])):
        print(f"{room:20} {sum(counts):9} {len(counts):5}")
    print(f"{'sum':20} {sum(map(sum, rooms.values())):9} {len(found):5}")


if __name__ == "__main__":
    main()
