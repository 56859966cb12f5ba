# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Run a study, two cells at a time, each on one thread; finished cells are not run again.

::

    # the plan: what is done, what is left, how long it takes
    python experiments/run.py

    # all cells of a study, or some; DATA/prostate/SITE/... as in docs/data.md
    python experiments/run.py prostate --data DATA
    python experiments/run.py prostate --data DATA --only 'FedCE-*'
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from cells import CellOfStudy
from reading import NOTHING, markdown
from study import Study, studies

from monai_fairfl.bundle.trainings import Training, run_trainings
from monai_fairfl.errors import FairFLError


def plan(names: Sequence[str]) -> str:
    """Write Markdown with a row for every study: its cells, and planned and spent minutes."""
    head = ["study", "what", "cells", "minutes each", "hours in all", "done", "took, minutes each"]
    rows = []
    planned_hours = 0.0
    spent_hours = 0.0
    for name in names:
        study = Study.read(name)
        number = len(list(study.cells()))
        minutes = [result["minutes"] for result in study.committed()]
        hours = number * study.minutes / 60
        planned_hours += hours
        spent_hours += sum(minutes) / 60
        took = NOTHING
        if minutes:
            took = f"{sum(minutes) / len(minutes):.1f}"
        each = f"{study.minutes:g}"
        rows.append([name, study.what, number, each, f"{hours:.1f}", len(minutes), took])
    lines = [markdown(head, rows)]
    lines.append(f"| all | | | | {planned_hours:.1f} | | {spent_hours:.1f} h in all |")
    return "\n".join(lines)


def real_images() -> Path:
    """Return the folder of real images, where the user names none."""
    return Path(os.environ.get("MONAI_FAIRFL_REALDATA", "realdata"))


def main(words: Sequence[str] | None = None) -> None:
    """Run what the command line asks for, or these words in its place."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "study", nargs="*", help=f"any of: {', '.join(studies())}; none: show the plan"
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="folder with prostate/ and fundus/; MONAI_FAIRFL_REALDATA by default",
    )
    parser.add_argument(
        "--runs",
        type=Path,
        default=Path("runs"),
        help="folder of the runs themselves; default: runs",
    )
    parser.add_argument(
        "--jobs", type=int, default=2, help="cells at a time, one thread each; default: 2"
    )
    parser.add_argument("--device", default="cpu", help="that trains, such as cuda:0; default: cpu")
    parser.add_argument(
        "--only", nargs="*", default=["*"], help="patterns of names, such as '*FedCE-fold0'"
    )
    arguments = parser.parse_args(words)
    if not arguments.study:
        print(plan(studies()))
        return
    data = arguments.data or real_images()
    chosen = [Study.read(name) for name in arguments.study]
    _require_cells(chosen, arguments.only)
    trainings = []
    for study in chosen:
        trainings += _trainings(study, arguments.only, data, arguments.runs, arguments.device)
    try:
        # Sites take turns in the process of their cell: its minutes are those of one thread.
        failed = run_trainings(trainings, jobs=arguments.jobs, most=1)
    except FairFLError as error:
        sys.exit(str(error))
    if failed:
        sys.exit(
            f"{len(failed)} of {len(trainings)} cells are not done; the same command goes on with "
            "them"
        )


def _require_cells(chosen: Sequence[Study], patterns: Sequence[str]) -> None:
    """Refuse a pattern that no cell of the studies has, as of a misspelt name."""
    names = [cell.name for study in chosen for cell in study.cells()]
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in names):
            sys.exit(f"--only {pattern!r}: there is no such cell; the first one is {names[0]!r}")


def _trainings(
    study: Study, patterns: Sequence[str], data: Path, runs: Path, device: str
) -> list[Training]:
    """List the trainings of the cells without result whose names match one of the patterns.

    Real images must exist, others are generated.
    """
    todo = []
    for cell in study.missing():
        if any(fnmatch(cell.name, pattern) for pattern in patterns):
            todo.append(cell)
    if not todo:
        return []
    for folder in study.folders_of_data():
        if not (data / folder).is_dir():
            sys.exit(
                f"{study.name} needs real images in {data / folder}; name their folder with --data"
            )
    root = study.sites_root(data, runs)
    return [
        CellOfStudy(study, cell, root, data, runs, study.path(cell), device).training()
        for cell in todo
    ]


if __name__ == "__main__":
    main()
