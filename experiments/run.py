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
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from datetime import timedelta
from fnmatch import fnmatch
from pathlib import Path

from study import ROOT, Cell, Study, studies, write_result
from summary import summary

import monai_fairfl
from monai_fairfl.run_folder.ledger import read_ledger

Jobs = Mapping["Future[float]", tuple[Study, Cell]]


def plan(names: Sequence[str]) -> str:
    """Write Markdown with a row for every study: its cells, and planned and spent minutes."""
    lines = [
        "| study | what | cells | minutes each | hours in all | done | took, minutes each |",
        "| --- " * 7 + "|",
    ]
    planned_hours = 0.0
    spent_hours = 0.0
    for name in names:
        study = Study.read(name)
        number = len(list(study.cells()))
        minutes = [result["minutes"] for result in study.committed()]
        planned_hours += number * study.minutes / 60
        spent_hours += sum(minutes) / 60
        took = "–"
        if minutes:
            took = f"{sum(minutes) / len(minutes):.1f}"
        row = [
            study.name,
            study.what,
            str(number),
            f"{study.minutes:g}",
            f"{number * study.minutes / 60:.1f}",
            str(len(minutes)),
            took,
        ]
        lines.append(f"| {' | '.join(row)} |")
    lines.append(f"| all | | | | {planned_hours:.1f} | | {spent_hours:.1f} h in all |")
    return "\n".join(lines)


def run_cell(study: Study, cell: Cell, root: Path, data: Path, runs: Path) -> float:
    """Train and test one cell, write its JSON, and remove what only a resumed run would need.

    Returns:
        The minutes that it took.

    Raises:
        RuntimeError: the run failed; the text names its log.
    """
    folder = runs / study.name / cell.name
    folder.mkdir(parents=True, exist_ok=True)
    # A finished run has no checkpoints any more: only its JSON is written again.
    if not (folder / "done").exists():
        _train(study, cell, root, data, folder)
    minutes = float((folder / "minutes.txt").read_text())
    result = {
        "study": study.name,
        "setting": cell.setting,
        "strategy": cell.strategy,
        "fold": cell.fold,
        "seed": study.seed_of(cell),
        "command": study.recorded_command(cell),
        "version": monai_fairfl.__version__,
        "minutes": round(minutes, 1),
        **summary(folder, study.keep),
    }
    write_result(study.path(cell), result)
    _remove_spare(folder)
    return minutes


def _train(study: Study, cell: Cell, root: Path, data: Path, folder: Path) -> None:
    """Run a cell's command to its end, or go on with the run that the folder holds."""
    command = study.command(
        cell, str(root.absolute()), str(folder.absolute()), str(data.absolute())
    )
    # Cells run at a time; the sites of each take turns.
    command += ["--jobs", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    log = folder / "log.txt"
    started = time.monotonic()
    with log.open("a") as output:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    _add_minutes(folder / "minutes.txt", (time.monotonic() - started) / 60)
    if done.returncode or read_ledger(folder / "ledger.jsonl")[-1]["kind"] != "end":
        raise RuntimeError(f"{study.name} {cell.name} ended before its last round; see {log}")
    (folder / "done").touch()


def _add_minutes(file: Path, minutes: float) -> None:
    """Add to the minutes that went into a cell, those of runs that were stopped included."""
    before = 0.0
    if file.exists():
        before = float(file.read_text())
    file.write_text(f"{minutes + before:.3f}")


def _remove_spare(folder: Path) -> None:
    """Remove what only a run that is resumed would need."""
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    shutil.rmtree(folder / "updates", ignore_errors=True)
    for state in folder.glob("sites/*/state/*.pt"):
        state.unlink()


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
    parser.add_argument(
        "--only", nargs="*", default=["*"], help="patterns of names, such as '*FedCE-fold0'"
    )
    arguments = parser.parse_args(words)
    if not arguments.study:
        print(plan(studies()))
        return
    data = arguments.data or real_images()
    todo = _cells_to_run(arguments.study, arguments.only)
    roots = _prepare_sites([study for study, _ in todo], data, arguments.runs)
    pool = ThreadPoolExecutor(arguments.jobs)
    jobs = {}
    for study, cell in todo:
        job = pool.submit(run_cell, study, cell, roots[study.name], data, arguments.runs)
        jobs[job] = (study, cell)
    # Ctrl-C reaches the runs too, which end after their round; nothing new is begun.
    try:
        _report(jobs, arguments.jobs)
    finally:
        pool.shutdown(cancel_futures=True)
    failed = sum(job.exception() is not None for job in jobs)
    if failed:
        sys.exit(f"{failed} of {len(jobs)} cells are not done; the same command goes on with them")


def _cells_to_run(names: Sequence[str], patterns: Sequence[str]) -> list[tuple[Study, Cell]]:
    """List the cells without result whose names match one of the patterns."""
    todo = []
    for name in names:
        study = Study.read(name)
        for cell in study.missing():
            if any(fnmatch(cell.name, pattern) for pattern in patterns):
                todo.append((study, cell))
    return todo


def _prepare_sites(todo: Sequence[Study], data: Path, runs: Path) -> dict[str, Path]:
    """Return the folder of sites of every study; real images must exist, others are generated."""
    roots: dict[str, Path] = {}
    for study in todo:
        for folder in study.folders_of_data():
            if not (data / folder).is_dir():
                sys.exit(
                    f"{study.name} needs real images in {data / folder}; name their folder with "
                    "--data"
                )
        if study.name not in roots:
            roots[study.name] = study.sites_root(data, runs)
    return roots


def _report(jobs: Jobs, at_a_time: int) -> None:
    """Print a line for each cell that ends, with the time left by what cells took so far."""
    planned_left = sum(study.minutes for study, _ in jobs.values())
    # Minutes of the cells that are done: as planned, and as they took.
    planned = 0.0
    spent = 0.0
    for number, job in enumerate(as_completed(jobs), start=1):
        study, cell = jobs[job]
        planned_left -= study.minutes
        error = job.exception()
        if error is None:
            planned += study.minutes
            spent += job.result()
            outcome = f"{study.name} {cell.name}, {job.result():.1f} min"
        else:
            outcome = str(error)
        slower = 1.0
        if planned:
            slower = spent / planned
        left = timedelta(minutes=round(planned_left / at_a_time * slower))
        print(f"{number}/{len(jobs)} {outcome}; about {left} left", flush=True)


if __name__ == "__main__":
    main()
