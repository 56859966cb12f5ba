# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Run studies, two cells at a time, each on one thread; finished cells are not run again.

::

    # all cells of a study, or some; DATA/prostate/SITE/... as in docs/data.md
    python experiments/run.py prostate --data DATA
    python experiments/run.py prostate --data DATA --only 'FedCE-*'

A finished cell is added to ``results/STUDY.csv``. Several runners may work on one study at a time:
none trains what another one trains or has finished. A run that is stopped goes on after its last
whole round when the same command is entered again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

import tables
from cells import CellOfStudy
from study import Cell, Study, studies

from monai_fairfl.bundle.trainings import Jobs, run_trainings
from monai_fairfl.errors import FairFLError
from monai_fairfl.transports.workers import Turn


def main(words: Sequence[str] | None = None) -> None:
    """Run what the command line asks for, or these words in its place."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", nargs="+", help=f"any of: {', '.join(studies())}")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(os.environ.get("MONAI_FAIRFL_REALDATA", "realdata")),
        help="folder with prostate/ and fundus/; default: MONAI_FAIRFL_REALDATA",
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="default: runs")
    parser.add_argument("--jobs", type=int, default=2, help="cells at a time; default: 2")
    parser.add_argument("--device", default="cpu", help="that trains, such as cuda:0; default: cpu")
    parser.add_argument("--only", nargs="*", default=["*"], help="patterns, as '*FedCE-fold0'")
    parser.add_argument("--again", action="store_true", help="delete their results and runs first")
    parser.add_argument("--commands", action="store_true", help="only print the command of each")
    arguments = parser.parse_args(words)
    chosen = [Study.read(name) for name in arguments.study]
    _require_cells(chosen, arguments.only)
    trainings = []
    for study in chosen:
        cells = [cell for cell in study.cells() if _matches(cell, arguments.only)]
        if arguments.commands:
            for cell in cells:
                print(f"{cell.name}: {study.recorded_command(cell, arguments.device)}")
            continue
        if arguments.again:
            if arguments.only == ["*"]:
                parser.error("--again deletes results: name the cells with --only")
            tables.remove(study.table, [cell.name for cell in cells])
            for cell in cells:
                shutil.rmtree(arguments.runs / study.name / cell.name, ignore_errors=True)
        missing = set(study.missing())
        todo = [cell for cell in cells if cell in missing]
        trainings += _trainings(study, todo, arguments.data, arguments.runs, arguments.device)
    try:
        for first in trainings[:1]:
            # A misspelt key of the study is refused before anything is trained.
            first.federation(Turn()).read_settings()
        # Sites take turns in the process of their cell: its minutes are those of one thread.
        failed = run_trainings(
            [each.training() for each in trainings], Jobs(arguments.jobs, [arguments.device])
        )
    except FairFLError as error:
        sys.exit(str(error))
    if failed:
        sys.exit(
            f"{len(failed)} of {len(trainings)} cells are not done; the same command goes on with "
            "them"
        )


def _matches(cell: Cell, patterns: Sequence[str]) -> bool:
    return any(fnmatch(cell.name, pattern) for pattern in patterns)


def _require_cells(chosen: Sequence[Study], patterns: Sequence[str]) -> None:
    """Refuse a pattern that no cell of the studies has, as of a misspelt name."""
    names = [cell.name for study in chosen for cell in study.cells()]
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in names):
            sys.exit(f"--only {pattern!r}: there is no such cell; the first one is {names[0]!r}")


def _trainings(
    study: Study, todo: Sequence[Cell], data: Path, runs: Path, device: str
) -> list[CellOfStudy]:
    """Make the trainings of these cells; real images must exist, others are generated."""
    if not todo:
        return []
    for folder in study.folders_of_data():
        if not (data / folder).is_dir():
            sys.exit(
                f"{study.name} needs real images in {data / folder}; name their folder with --data"
            )
    # Another runner may be generating the same hospitals.
    with tables.alone(runs / "sites"):
        root = study.sites_root(data, runs)
    return [CellOfStudy(study, cell, root, data, runs, study.table, device) for cell in todo]


if __name__ == "__main__":
    main()
