# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A cell of the comparison: one system, one fold, one false report or none; and its JSON."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from cells import processor
from head_to_head.systems import EXPERIMENTS, FEDBN, LOCAL_NORM, NVFLARE
from head_to_head.task import BUNDLE_ROOT, Task
from monai.fl.utils.constants import ExtraItems
from study import ROOT, write_result

from monai_fairfl.bundle.site import bundle_client
from monai_fairfl.measurements.probe import Probe
from monai_fairfl.run_folder.ledger import read_ledger
from monai_fairfl.run_folder.schedule import Schedule
from monai_fairfl.utils.saved_files import read_state_dict

if TYPE_CHECKING:
    from head_to_head.processes import Took

HONEST = ""
REPORTS = {"1": 1.0, "1e9": 1e9, "NaN": math.nan, "-1": -1.0}
"""Name of a false report -> the leave-one-out error that the liar reports in every round."""

Models = dict[str, Path]
"""Site -> file of the model that it uses in the end."""


@dataclass(frozen=True)
class Cell:
    """One training.

    Args:
        system: of :mod:`head_to_head.systems`.
        fold: whose cases are tested; its number is the seed, too.
        report: of :data:`REPORTS`; empty: everybody is honest.
        short: whether it has the few rounds of the trainings with false reports.
    """

    system: str
    fold: int
    report: str = HONEST
    short: bool = False

    @property
    def name(self) -> str:
        """The name of its result file and of its folder.

        >>> Cell("NVFlare FedCE", 1).name, Cell("FedCE", 0, report="1e9", short=True).name
        ('nvflare_fedce-fold1', 'fedce-short-reports_1e9-fold0')
        """
        words = self.system.lower().replace(",", "").replace("'", "")
        parts = ["_".join(words.split())]
        if self.short:
            parts.append("short")
        if self.report:
            parts.append(f"reports_{self.report}")
        return "-".join([*parts, f"fold{self.fold}"])


@dataclass
class Course:
    """What a system left.

    Args:
        ended: why it ended before its last round; empty: it did not.
        seconds: of every round, by the clock; empty: not known.
        weights: site -> its weight in every round; empty: the system has none.
        touched: site -> rounds in which a guard acted on it; empty: the system has no guards.
        refused: site -> rounds in which its leave-one-out error did not count; empty: every error
            counts.
        models: after the last round; empty: there is none.
        best: the models that FL-MedSegBench would test; empty: not known.
    """

    ended: str = ""
    seconds: list[float] = field(default_factory=list)
    weights: dict[str, list[float]] = field(default_factory=dict)
    touched: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    models: Models = field(default_factory=dict)
    best: Models = field(default_factory=dict)


def run_cell(cell: Cell, task: Task, liar: str, folder: Path, file: Path) -> None:
    """Train a cell in a process of its own, test its models, and write its JSON.

    Args:
        cell: which one.
        task: what is trained.
        liar: the site that reports something false.
        folder: for everything that the training leaves; what is there is deleted.
        file: its JSON.
    """
    if not cell.report:
        liar = ""
    took, course = trained(cell, task, liar, folder)
    result = {
        "strategy": cell.system,
        "fold": cell.fold,
        "seed": task.seed,
        "liar": liar,
        "report": cell.report,
        "rounds": task.rounds,
        "local_epochs": task.local_epochs,
        "overrides": dict(task.overrides),
        "minutes": round(took.processor_seconds / 60, 2),
        "seconds": round(took.seconds, 1),
        "seconds_of_rounds": course.seconds,
        "processor": processor(),
        "ended": course.ended,
        "weights": course.weights,
        "touched": course.touched,
        "refused": course.refused,
    }
    if course.models:
        result["test"] = tested(task, course.models, folder / "test")
    if course.best:
        result["test_best"] = tested(task, course.best, folder / "test")
    write_result(file, result)


def trained(cell: Cell, task: Task, liar: str, folder: Path) -> tuple[Took, Course]:
    """Train a cell in a process of its own.

    Raises:
        RuntimeError: it failed, and that is not what a false report does to it.
    """
    # It needs psutil, which comes with NVFlare; tables are made without either.
    from head_to_head.processes import run_on_one_core

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    task.write(folder / "task.json")
    command = [sys.executable, "-W", "ignore", str(EXPERIMENTS / "head_to_head" / "systems.py")]
    command += ["--folder", str(folder), "--system", cell.system]
    if liar:
        command += ["--liar", liar, f"--false-report={REPORTS[cell.report]}"]
    # One home for all cells: libraries make their caches there once, and not in each start.
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    path = os.pathsep.join([str(ROOT), str(EXPERIMENTS)])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HOME": str(home), "PYTHONPATH": path}
    took = run_on_one_core(command, folder / "printed.txt", environment, timeout=4 * 3600)

    course = course_of(cell.system, task, folder)
    complete = took.code == 0 and len(course.models) == len(task.sites)
    because_of_report = cell.report and "FedCE" in course.ended
    if not complete and not because_of_report:
        printed = (folder / "printed.txt").read_text()[-3000:]
        raise RuntimeError(f"{cell.name} ended with {took.code}: {course.ended}\n{printed}")
    return took, course


def course_of(system: str, task: Task, folder: Path) -> Course:
    """Read what a system left in its folder."""
    if system == NVFLARE:
        return _of_nvflare(task, folder)
    if system == FEDBN:
        return Course(models=_files(task, folder / "last"), best=_files(task, folder / "best"))
    return _of_ours(system, task, folder)


def _files(task: Task, folder: Path) -> Models:
    """Find the file of each site's model."""
    found = {}
    for site in task.sites:
        file = folder / f"{site}.pt"
        if file.exists():
            found[site] = file
    return found


def _of_ours(system: str, task: Task, folder: Path) -> Course:
    """Read our engine's ledger, schedule and models."""
    course = Course()
    run = folder / "run"
    rounds = []
    if (run / "ledger.jsonl").exists():
        rounds = [each for each in read_ledger(run / "ledger.jsonl") if each["kind"] == "round"]
    for site in task.sites:
        course.weights[site] = [record["aggregation"].get(site, 0.0) for record in rounds]
        course.touched[site] = sum(site in record["guards"] for record in rounds)
        notes = [record["notes"].get(site, "") for record in rounds]
        course.refused[site] = sum("leave_one_out_error" in note for note in notes)
    course.seconds = list(Schedule.read(run).seconds.values())
    for site in task.sites:
        model = run / "models" / "global.pt"
        if system == LOCAL_NORM:
            model = run / "clients" / site / "state" / "run-own.pt"
        if model.exists():
            course.models[site] = model
    return course


def _of_nvflare(task: Task, folder: Path) -> Course:
    """Read NVFlare's log and model, and what the sites' scripts received."""
    course = Course()
    server = folder / "job" / "server"
    log = server / "log.json"
    if not log.exists():
        return course
    starts = []
    finished = False
    for line in log.read_text().splitlines():
        entry = json.loads(line)
        time = datetime.strptime(entry["asctime"], "%Y-%m-%d %H:%M:%S,%f").timestamp()
        if entry["name"] == "FedAvg" and "Round " in entry["message"]:
            if entry["message"].strip(" -\n").endswith("started."):
                starts.append(time)
        if "Finished FedAvg." in entry["message"]:
            finished = True
            starts.append(time)
        if entry["levelname"] == "ERROR" and not course.ended:
            course.ended = entry["message"]
    for begin, finish in zip(starts, starts[1:]):
        course.seconds.append(round(finish - begin, 3))

    model = server / "simulate_job" / "app_server" / "FL_global_model.pt"
    if not finished or not model.exists():
        return course
    course.ended = ""
    # A script receives the weights of the round before; those of the last are in the model's file.
    lines = (folder / f"{task.sites[0]}.jsonl").read_text().splitlines()
    of_rounds = [json.loads(line)["weights"] for line in lines[1:]]
    saved = torch.load(model, weights_only=True)
    of_rounds.append(saved["meta_props"]["fedce_coef"])
    for site in task.sites:
        course.weights[site] = [weights[site] for weights in of_rounds]
    course.models = dict.fromkeys(task.sites, model)
    return course


def tested(task: Task, models: Models, folder: Path) -> dict[str, Any]:
    """Score models on their sites' test cases with the bundle's evaluation, as our engine does.

    Returns:
        ``"cases"``: site -> names, and ``"dice"``: site -> scores in that order.
    """
    found: dict[str, dict[str, list[Any]]] = {"cases": {}, "dice": {}}
    for site, file in models.items():
        client = bundle_client(
            BUNDLE_ROOT,
            site,
            folder / site,
            dataset_dir=Path(task.sites_root) / site,
            overrides=dict(task.overrides),
            config=task.config,
            device="cpu",
        )
        client.initialize({ExtraItems.CLIENT_NAME: site})
        probe = Probe(client.evaluator)
        probe.score(read_state_dict(file))
        found["cases"][site] = list(probe.cases)
        found["dice"][site] = [round(scores["dice"], 4) for scores in probe.cases.values()]
        client.finalize()
    return found
