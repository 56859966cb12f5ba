# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""How far towards the adapted model a site should go: not at all, half of the way, or all of it.

No training: models of ``uneven_others`` that took ``adapted``, and the models between them and the
received ones, are scored on the site's validation and test cases.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from cells import processor
from reading import NotFinished, interval_of, markdown, words
from study import HERE, Cell, Study, write_result
from yardsticks import dice, folders, masks, require_recorded, split_of, test_engine

from monai_fairfl.model_files.recipe import state_of_file
from monai_fairfl.protocol.values import Weights
from monai_fairfl.utils.files import read_state_dict

OfModel = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Site -> case -> share of the way -> Dice."""
STUDIES = ()
MODELS = "uneven_others"
CASES = {"validation": "validation", "testing": "test"}
"""Part of a data list -> its name in the table."""
SHARES = {"0": 0.0, "half": 0.5, "1": 1.0}
"""Name in the JSON -> share of the way from the received to the adapted model."""


def cells() -> list[Cell]:
    """List all federations whose sites adapted their models."""
    return list(Study.read(MODELS).cells())


def result_file(cell: Cell) -> Path:
    """Return the JSON of a federation."""
    return HERE / "results" / "last_mile_share" / f"{cell.name}.json"


def result_files() -> list[Path]:
    """List the JSON files of all federations, also of those that are not done."""
    return [result_file(cell) for cell in cells()]


def measure_cells(data: Path, runs: Path) -> None:
    """Score the models of every federation that is in the folder of runs and has no JSON yet."""
    study = Study.read(MODELS)
    absent = []
    for cell in cells():
        if result_file(cell).exists():
            continue
        trained = runs / MODELS / cell.name / "models" / "global.pt"
        # A run that is not finished has a model, too, and no JSON.
        if not study.path(cell).exists() or not trained.exists():
            absent.append(cell.name)
            continue
        print(cell.name, flush=True)
        write_result(result_file(cell), measured(study, cell, data, runs))
    if absent:
        names = ", ".join(absent)
        print(f"not in {runs}, or not trained yet: {names}; `run.py {MODELS}`", file=sys.stderr)


def measured(study: Study, cell: Cell, data: Path, runs: Path) -> dict[str, Any]:
    """Kind of cases -> site that took ``adapted`` -> case -> share of the way -> Dice."""
    started = time.process_time()
    result = json.loads(study.path(cell).read_text())
    received = read_state_dict(study.model(cell, runs))
    found: dict[str, dict[str, dict[str, dict[str, float]]]] = {kind: {} for kind in CASES}
    for site, folder in folders(study, data).items():
        if result["last_mile"][site]["taken"] != "adapted":
            continue
        state = runs / MODELS / cell.name / "sites" / site / "state"
        adapted = state_of_file(state / f"{cell.name}-own.pt")
        split = split_of(study, cell, site, folder)
        for kind in CASES:
            engine = test_engine(study, cell, split[kind])
            of_cases = {Path(case["image"]).name: {} for case in split[kind]}
            for name, share in SHARES.items():
                predicted, labels = masks(engine, between(received, adapted, share))
                if (kind, share) == ("testing", 0.0):
                    require_recorded(result, site, predicted, labels)
                for case, mask, label in zip(of_cases, predicted, labels, strict=True):
                    of_cases[case][name] = round(dice(mask, label), 4)
            found[kind][site] = of_cases
    return {
        "cell": cell.name,
        "seed": result["seed"],
        "minutes": round((time.process_time() - started) / 60, 2),
        "processor": processor(),
        **found,
    }


def between(begin: Weights, end: Weights, share: float) -> Weights:
    """Return the model at a share of the way; counters, which have no mean, are those of the end.

    >>> between({"w": torch.zeros(2)}, {"w": torch.ones(2)}, 0.5)
    {'w': tensor([0.5000, 0.5000])}
    """
    found = {}
    for name, tensor in end.items():
        found[name] = tensor
        if tensor.is_floating_point():
            found[name] = torch.lerp(begin[name].to(tensor), tensor, share)
    return found


def table() -> str:
    """A row per kind of cases: Dice at each share of the way, and what half of it gains."""
    found = [json.loads(path.read_text()) for path in result_files() if path.exists()]
    if not found:
        raise NotFinished("a federation")
    rows = []
    for kind, name in CASES.items():
        of_models = [result[kind] for result in found]
        row = [name, sum(len(model) for model in of_models)]
        for share in SHARES:
            row.append(f"{mean(scores(of_models, share)):.3f}")
        for other in ("0", "1"):
            row.append(words(interval_of(gains(of_models, other)), signed=True))
        rows.append(row)
    head = ["cases", "models", "received", "half of the way", "`adapted`"]
    return markdown([*head, "half − received", "half − `adapted`"], rows)


def scores(of_models: Iterable[OfModel], share: str) -> list[float]:
    """List the mean Dice over its cases of each site's model at a share of the way.

    >>> scores([{"A": {"c1": {"half": 0.5}, "c2": {"half": 1.0}}}, {}], "half")
    [0.75]
    """
    found = []
    for model in of_models:
        for of_cases in model.values():
            found.append(mean(of_shares[share] for of_shares in of_cases.values()))
    return found


def gains(of_models: Iterable[OfModel], other: str) -> dict[str, dict[str, float]]:
    """Site -> case -> Dice half of the way, minus that at another share; mean over models.

    >>> gains([{"A": {"c1": {"0": 0.2, "half": 0.6}}}, {}], "0")
    {'A': {'c1': 0.39999999999999997}}
    """
    found: dict[str, dict[str, list[float]]] = {}
    for model in of_models:
        for site, of_cases in model.items():
            of_site = found.setdefault(site, {})
            for case, of_shares in of_cases.items():
                of_site.setdefault(case, []).append(of_shares["half"] - of_shares[other])
    means = {}
    for site, of_site in found.items():
        means[site] = {case: mean(values) for case, values in of_site.items()}
    return means
