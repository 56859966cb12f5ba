# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""How far towards the adapted model a site should go: not at all, half of the way, or all of it.

No training: models of ``uneven_others`` that took ``adapted``, and the models between them and the
received ones, are scored on the site's validation and test cases.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from reading import NotFinished, interval_of, markdown, words
from scored_again import CASES, OfModel, mean_gains, score_cells
from study import HERE, Cell, Study
from yardsticks import dice, folders, masks, require_recorded, split_of, test_engine

from monai_fairfl.model_files.recipe import state_of_file
from monai_fairfl.protocol.values import Weights

STUDIES = ()
MODELS = "uneven_others"
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

    def score(
        study: Study, cell: Cell, result: dict[str, Any], received: Weights
    ) -> dict[str, dict[str, Any]]:
        own = runs / MODELS / cell.name / "sites"
        return on_the_way(study, cell, result, received, own, data)

    score_cells(Study.read(MODELS), cells(), result_file, score, runs)


def on_the_way(
    study: Study, cell: Cell, result: dict[str, Any], received: Weights, own: Path, data: Path
) -> dict[str, dict[str, Any]]:
    """Kind of cases -> site that took ``adapted`` -> case -> share of the way -> Dice.

    ``own`` is the folder of the sites' states, in which the adapted models are.
    """
    found: dict[str, dict[str, Any]] = {kind: {} for kind in CASES}
    for site, folder in folders(study, data).items():
        if result["last_mile"][site]["taken"] != "adapted":
            continue
        adapted = state_of_file(own / site / "state" / f"{cell.name}-own.pt")
        split = split_of(study, cell, site, folder)
        for kind in CASES:
            engine = test_engine(study, cell, split[kind])
            of_cases: dict[str, dict[str, float]]
            of_cases = {Path(case["image"]).name: {} for case in split[kind]}
            for name, share in SHARES.items():
                predicted, labels = masks(engine, between(received, adapted, share))
                if (kind, share) == ("testing", 0.0):
                    require_recorded(result, site, predicted, labels)
                for case, mask, label in zip(of_cases, predicted, labels, strict=True):
                    of_cases[case][name] = round(dice(mask, label), 4)
            found[kind][site] = of_cases
    return found


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
            row.append(words(interval_of(mean_gains(of_models, "half", other)), signed=True))
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
