# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""How many functions of the package, in how many files, one round of FedCE enters.

::

    python benchmarks/round_functions.py [--list]

Four generated hospitals train the prostate bundle in this process. The second round is counted,
from the record of the first to its own. Nested functions and lambdas count; the package's
transforms of images (``data/``) do not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import monai_fairfl
from monai_fairfl.bundle.initial import initial_model
from monai_fairfl.bundle.shipped import find_bundle
from monai_fairfl.bundle.site import bundle_client
from monai_fairfl.data import site_folders
from monai_fairfl.data.pelvis import write_demo
from monai_fairfl.server.federation import Federation
from monai_fairfl.server.observer import Observer
from monai_fairfl.strategies import FedCE
from monai_fairfl.transports.in_process import InProcess
from monai_fairfl.utils.terminal import quiet

PACKAGE = Path(monai_fairfl.__file__).parent
OVERRIDES = {"size": [32, 32], "channels": [4, 8, 8]}
NO_FUNCTIONS = ("<module>", "<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")


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
    found = defaultdict(set)
    for code in watch.entered:
        file = Path(code.co_filename)
        if PACKAGE in file.parents and code.co_name not in NO_FUNCTIONS:
            found[file.relative_to(PACKAGE)].add(f"{code.co_name}:{code.co_firstlineno}")
    return {file: found[file] for file in sorted(found) if file.parts[0] != "data"}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="also print the functions of each file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = entered_in_a_round(Path(folder))
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
