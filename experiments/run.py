# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Run a study, two cells at a time, each on one thread; what is done is not done again.

python experiments/run.py                                    # the plan: what is done, what is left, how long it takes
python experiments/run.py prostate --data DATA               # DATA/prostate/SITE/..., as in docs/data.md
python experiments/run.py prostate --data DATA --only 'FedCE-*'   # some of its cells
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import timedelta
from fnmatch import fnmatch
from pathlib import Path

from study import ROOT, Cell, Study, studies, write_result
from summary import summary

import monai_fairfl
from monai_fairfl.run_folder.ledger import read_ledger


def plan(names: Sequence[str]) -> str:
    """Markdown: a row for every study, with the minutes of one thread that a cell is thought to
    take and took.
    """
    lines = [
        "| study | what | cells | minutes each | hours in all | done | took, minutes each |",
        "| --- " * 7 + "|",
    ]
    planned = spent = 0.0
    for study in map(Study.read, names):
        cells, done = list(study.cells()), [result["minutes"] for result in study.committed()]
        planned, spent = planned + len(cells) * study.minutes / 60, spent + sum(done) / 60
        took = f"{sum(done) / len(done):.1f}" if done else "–"
        row = [
            study.name,
            study.what,
            len(cells),
            f"{study.minutes:g}",
            f"{len(cells) * study.minutes / 60:.1f}",
            len(done),
            took,
        ]
        lines.append(f"| {' | '.join(map(str, row))} |")
    return "\n".join([*lines, f"| all | | | | {planned:.1f} | | {spent:.1f} h in all |"])


def run_cell(study: Study, cell: Cell, root: Path, data: Path, runs: Path) -> float:
    """Train and test one cell, write its JSON, and remove what only a resumed run would need;
    returns the minutes.

    Raises:
        RuntimeError: the run failed; it says where its log is.
    """
    folder = runs / study.name / cell.name
    folder.mkdir(parents=True, exist_ok=True)
    command = study.command(
        cell, str(root.absolute()), str(folder.absolute()), str(data.absolute())
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    started = time.monotonic()
    if not (
        folder / "done"
    ).exists():  # else only the JSON is made anew, of a run whose checkpoints are gone
        with (folder / "log.txt").open("a") as log:
            code = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT
            ).returncode
        _add_minutes(folder / "minutes.txt", (time.monotonic() - started) / 60)
        if code or read_ledger(folder / "ledger.jsonl")[-1]["kind"] != "end":
            raise RuntimeError(
                f"{study.name} {cell.name} ended before its last round; see {folder / 'log.txt'}"
            )
        (folder / "done").touch()
    spent = float((folder / "minutes.txt").read_text())
    result = {
        "study": study.name,
        "setting": cell.setting,
        "strategy": cell.strategy,
        "fold": cell.fold,
        "seed": study.seed_of(cell),
        "command": study.recorded_command(cell),
        "version": monai_fairfl.__version__,
        "minutes": round(spent, 1),
        **summary(folder, study.keep),
    }
    write_result(study.path(cell), result)
    for spare in (folder / "checkpoints", folder / "updates", *folder.glob("sites/*/state/*.pt")):
        shutil.rmtree(spare) if spare.is_dir() else spare.unlink(missing_ok=True)
    return spent


def _add_minutes(file: Path, minutes: float) -> None:
    """All minutes that went into a cell, those of runs that were stopped included."""
    file.write_text(f"{minutes + (float(file.read_text()) if file.exists() else 0.0):.3f}")


def real_images() -> Path:
    """The folder of real images, where it was not named."""
    return Path(os.environ.get("MONAI_FAIRFL_REALDATA", "realdata"))


def main(words: Sequence[str] | None = None) -> None:
    """The command line, or these words in its place."""
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
    todo = [(study, cell) for study in map(Study.read, arguments.study) for cell in study.missing()]
    todo = [
        (study, cell)
        for study, cell in todo
        if any(fnmatch(cell.name, only) for only in arguments.only)
    ]
    roots: dict[str, Path] = {}
    for study, _ in todo:
        for folder in study.folders_of_data():
            if not (data / folder).is_dir():
                sys.exit(
                    f"{study.name} needs real images in {data / folder}; name their folder with --data"
                )
        if study.name not in roots:
            roots[study.name] = study.sites_root(data, arguments.runs)
    left = sum(study.minutes for study, _ in todo)
    pool = ThreadPoolExecutor(arguments.jobs)
    jobs = {
        pool.submit(run_cell, study, cell, roots[study.name], data, arguments.runs): (study, cell)
        for study, cell in todo
    }
    thought = spent = 0.0  # minutes of the cells that are done: as planned, and as they took
    try:
        for number, job in enumerate(as_completed(jobs), start=1):
            study, cell = jobs[job]
            left -= study.minutes
            if not job.exception():
                thought, spent = thought + study.minutes, spent + job.result()
            eta = timedelta(
                minutes=round(left / arguments.jobs * (spent / thought if thought else 1))
            )
            outcome = job.exception() or f"{study.name} {cell.name}, {job.result():.1f} min"
            print(f"{number}/{len(jobs)} {outcome}; about {eta} left", flush=True)
    finally:  # Ctrl-C reaches the runs too, which end after their round; nothing new is begun
        pool.shutdown(cancel_futures=True)
    failed = sum(job.exception() is not None for job in jobs)
    if failed:
        sys.exit(f"{failed} of {len(jobs)} cells are not done; the same command goes on with them")


if __name__ == "__main__":
    main()
