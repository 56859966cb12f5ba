# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Train candidates for a bundle's recipe, and score them on validation cases alone.

``searches/NAME.json`` is a study whose settings are the candidates. Two keys more: ``changes``,
an overlay of its own, and ``looks``, further ways to score the same models: name -> overlay. The
key ``queue`` lists what is trained, in order: ``[candidate, fold, strategy]``; ``chosen`` names
what the bundle ships. Every way of scoring is a row of ``results/search.csv``. ::

    python experiments/search.py volumes --data DATA

What has its rows is not trained again. The file is read again before each training, so the queue
may change while it is worked off. A training that is stopped goes on after its last whole round. No
test case is scored: the cases are those of the data list's ``validation``, with the evaluation that
a test has.
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from cells import CellOfStudy, processor
from ignite.engine import Events
from monai.bundle import ConfigParser
from monai.engines import SupervisedEvaluator
from run import real_images
from study import ALONE, HERE, ROOT, Cell, Study

from monai_fairfl.bundle.configuration import train_config
from monai_fairfl.bundle.trainings import run_logged
from monai_fairfl.data.layouts import site_folders
from monai_fairfl.messages import Weights
from monai_fairfl.run_folder.checkpoint import Checkpoints, read_checkpoint
from monai_fairfl.transports.workers import Turn
from monai_fairfl.utils.files import write_atomically
from monai_fairfl.utils.saved_files import read_state_dict

RESULTS = HERE / "results" / "search.csv"
EVALUATE = "configs/evaluate.json"
Mask = npt.NDArray[np.bool_]
COLUMNS = (
    *("search", "candidate", "look", "fold", "strategy", "rounds", "epochs", "mean"),
    *("sites", "structures", "missed", "cases", "minutes", "precision", "processor"),
)
MISSED = 0.5
"""Dice of the first structure, the disc, below which it counts as missed."""
AVERAGE = "average"
"""Begins the name of a look that scores the mean of the last global models."""
LAST = 10
"""Global models of which it is the mean; a search keeps as many checkpoints."""
NO_TEST: Mapping[str, Any] = {"evaluate": [], "final": ["score"], "score_global": False}


class Search:
    """``searches/NAME.json`` as it is now.

    Args:
        name: of the file.
        runs: folder of all runs, which also gets the overlays.
    """

    def __init__(self, name: str, runs: Path):
        found = json.loads((HERE / "searches" / f"{name}.json").read_text())
        self.queue = [tuple(each) for each in found.pop("queue")]
        found.pop("chosen", None)
        settings = found["settings"]
        self.looks = {candidate: each.pop("looks", {}) for candidate, each in settings.items()}
        for candidate, setting in settings.items():
            arguments = {**found.get("arguments", {}), **setting.pop("arguments", {}), **NO_TEST}
            changes = setting.pop("changes", None)
            if changes:
                overlay = _written(runs / name / f"{candidate}.json", changes)
                arguments["config"] = [*arguments["config"], overlay]
            setting["arguments"] = arguments
        self.study = Study(name=name, seeds=[0], **found)
        self.runs = runs

    def missing(self) -> Iterator[tuple[Cell, list[str]]]:
        """Yield what is in the queue, with the looks that have no row."""
        keys = ("search", "candidate", "fold", "strategy", "look")
        done = {tuple(row[key] for key in keys) for row in rows()}
        for candidate, fold, strategy in self.queue:
            about = (self.study.name, candidate, str(fold), strategy)
            todo = []
            for look in ["", *self.looks[candidate]]:
                # A site that trains alone has no global models to average.
                possible = strategy != ALONE or not look.startswith(AVERAGE)
                if possible and (*about, look) not in done:
                    todo.append(look)
            if todo:
                yield Cell(candidate, strategy, fold, 0), todo

    def scored(self, cell: Cell, look: str) -> Study:
        """Return the study with which the models of a cell are scored in a look."""
        changes = self.looks[cell.setting].get(look)
        if not changes:
            return self.study
        overlay = _written(self.runs / self.study.name / f"{cell.setting}-{look}.json", changes)
        arguments = dict(self.study.arguments_of(cell))
        arguments["config"] = [*arguments["config"], overlay]
        setting = {**self.study.settings[cell.setting], "arguments": arguments}
        fields = {**vars(self.study), "settings": {cell.setting: setting}}
        return Study(**fields)


def _written(path: Path, overlay: Mapping[str, Any]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(overlay).encode())
    return str(path.absolute())


def rows() -> list[dict[str, str]]:
    """Read the rows that exist."""
    if not RESULTS.exists():
        return []
    with RESULTS.open(newline="") as file:
        return list(csv.DictReader(file))


def train(at_work: CellOfStudy) -> float:
    """Train a cell, or go on with it, and return the minutes of the processor that it took."""
    minutes = at_work.folder / "minutes.txt"
    spent = float(minutes.read_text()) if minutes.exists() else 0.0
    if not (at_work.folder / "done").exists():
        started = time.process_time()
        try:
            finished = run_logged(at_work.folder, at_work.federation, Turn())
        finally:
            spent += (time.process_time() - started) / 60
            write_atomically(minutes, str(spent).encode())
        if not finished:
            raise SystemExit("stopped; the same command goes on")
        write_atomically(at_work.folder / "done", b"")
    return spent


def folders(study: Study, data: Path) -> dict[str, Path]:
    """Site -> the folder of its images."""
    return dict(sorted(site_folders(study.sites_root(data, Path())).items()))


def training_configuration(study: Study, cell: Cell) -> ConfigParser:
    """Return the training configuration of a cell, with the values that all sites share."""
    bundle = ROOT / "bundles" / study.bundle
    files = study.arguments_of(cell)["config"]
    parser = train_config(bundle, study.overrides_of(cell), files)
    parser["bundle_root"] = str(bundle)
    parser["device"] = "$torch.device('cpu')"
    return parser


def test_engine(
    study: Study, cell: Cell, cases: list[dict[str, Any]], **values: Any
) -> SupervisedEvaluator:
    """Return what tests a network of the cell on these cases, without any saved file.

    Args:
        study: of the cell.
        cell: whose network and settings are tested.
        cases: of one site.
        values: of the configuration, other than in the study.
    """
    bundle = ROOT / "bundles" / study.bundle
    files = [*study.arguments_of(cell)["config"], EVALUATE]
    deciding = training_configuration(study, cell).get_parsed_content("deciding")
    parser = ConfigParser()
    parser.read_config([str(bundle / file) for file in files])
    parser.update({**deciding, **study.overrides_of(cell), **values})
    parser["bundle_root"] = str(bundle)
    parser["device"] = "$torch.device('cpu')"
    parser["network"] = "$@network_def.to(@device)"
    parser["datalist"] = {"training": [], "validation": [], "testing": cases}
    # They save numbers, and read weights that are not in a file here.
    parser["validate#handlers"] = []
    # Only masks are taken from it: distances of surfaces would take longer than all the rest.
    parser["validate#additional_metrics"] = None
    engine: SupervisedEvaluator = parser.get_parsed_content("validate#evaluator")
    return engine


def dice(mask: Mask, label: Mask) -> float:
    """Compute Dice; 1 where both are empty.

    >>> dice(np.array([True, True, False]), np.array([True, False, False]))
    0.6666666666666666
    """
    size = int(mask.sum()) + int(label.sum())
    if not size:
        return 1.0
    return 2 * int((mask & label).sum()) / size


def weights_of(study: Study, cell: Cell, look: str, site: str, runs: Path) -> Weights:
    """Return the model that a site is scored with."""
    if not look.startswith(AVERAGE):
        return read_state_dict(study.model(cell, runs, site))
    newest = Checkpoints(runs / study.name / cell.name / "checkpoints").newest_first()[:LAST]
    models = [read_checkpoint(folder).weights for folder in newest]
    averaged = {}
    for name, last in models[0].items():
        values = torch.stack([model[name].double() for model in models])
        averaged[name] = values.mean(0).to(last.dtype)
    return averaged


def scores(
    study: Study, cell: Cell, cases: list[dict[str, Any]], weights: Weights
) -> list[list[float | None]]:
    """Score cases of a site: of each the Dice of all structures, ``None`` for one without label."""
    engine = test_engine(study, cell, cases)
    # A checkpoint has a tensor of two names once.
    missing = engine.network.load_state_dict(dict(weights), strict=False).missing_keys
    state = engine.network.state_dict()
    loaded = {state[name].data_ptr() for name in weights}
    if any(state[name].data_ptr() not in loaded for name in missing):
        raise SystemExit(f"the model lacks {missing}")
    found = []

    def note(running: Any) -> None:
        for case in running.state.output:
            of_case: list[float | None] = []
            for predicted, label in zip(case["pred"].cpu(), case["label"].cpu(), strict=True):
                masks = (predicted.numpy() > 0.5, label.numpy() > 0.5)
                of_case.append(None if label.min() < 0 else dice(*masks))
            found.append(of_case)

    with engine.add_event_handler(Events.ITERATION_COMPLETED, note):
        engine.run()
    return found


def row(search: Search, cell: Cell, look: str, data: Path) -> dict[str, Any]:
    """Score the models of a cell in one look."""
    study = search.scored(cell, look)
    sites: dict[str, str] = {}
    structures: dict[str, str] = {}
    missed: dict[str, int] = {}
    cases: dict[str, str] = {}
    means = []
    for site, folder in folders(study, data).items():
        weights = weights_of(study, cell, look, site, search.runs)
        parser = training_configuration(study, cell)
        parser["dataset_dir"] = str(folder)
        # As the training read it: no case of another part gets here.
        file = search.runs / study.name / cell.name / "datalists" / f"{site}.json"
        parser["datalist_file"] = str(file)
        found = scores(study, cell, parser.get_parsed_content("datalist")["validation"], weights)
        of_cases = [mean(each for each in case if each is not None) for case in found]
        of_structures = []
        for values in zip(*found, strict=True):
            labelled = [value for value in values if value is not None]
            if labelled:
                of_structures.append(f"{mean(labelled):.3f}")
        means.append(mean(of_cases))
        sites[site] = f"{means[-1]:.4f}"
        structures[site] = "/".join(of_structures)
        missed[site] = sum(case[0] is not None and case[0] < MISSED for case in found)
        cases[site] = "/".join(f"{value:.3f}" for value in of_cases)
    arguments = study.arguments_of(cell)
    return {
        "search": study.name,
        "candidate": cell.setting,
        "look": look,
        "fold": cell.fold,
        "strategy": cell.strategy,
        "rounds": study.rounds_of(cell),
        "epochs": arguments.get("local_epochs", study.local_epochs),
        "mean": f"{mean(means):.4f}",
        "sites": _in_words(sites),
        "structures": _in_words(structures),
        "missed": _in_words(missed),
        "cases": _in_words(cases),
    }


def _in_words(of_sites: Mapping[str, Any]) -> str:
    return " ".join(f"{site}={value}" for site, value in of_sites.items())


def precision(study: Study, cell: Cell) -> str:
    """Return in what the training computes."""
    inferer = training_configuration(study, cell).get("train#inferer")["_target_"]
    return "bfloat16" if inferer.endswith("BFloat16Inferer") else "float32"


def append(found: Mapping[str, Any]) -> None:
    """Append a row; two searches may do so at a time."""
    with RESULTS.open("a+", newline="") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if not file.tell():
            writer.writeheader()
        writer.writerow(found)


def main(words: Sequence[str] | None = None) -> None:
    """Work off the queue of a search."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("search", help="name of a file in searches/")
    parser.add_argument("--data", type=Path, help="folder with prostate/ and fundus/")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="default: runs")
    arguments = parser.parse_args(words)
    data = arguments.data or real_images()
    runs = arguments.runs.absolute()
    search = Search(arguments.search, runs)
    cell, looks = next(search.missing(), (None, []))
    if cell is None:
        return
    study = search.study
    root = study.sites_root(data, runs)
    print(time.strftime("%H:%M"), study.name, cell.name, looks, flush=True)
    minutes = train(CellOfStudy(study, cell, root, data, runs, study.table))
    for look in looks:
        found = row(search, cell, look, data)
        found["minutes"] = f"{minutes:.1f}"
        found["precision"] = precision(study, cell)
        found["processor"] = processor()
        append(found)
        print(found["mean"], found["sites"], found["missed"], look, found["minutes"], flush=True)
    # The next one in a new process, which holds no images of this one.
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


if __name__ == "__main__":
    main()
