# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Guards: what honest sites reach with the methods that give each site a model of its own.

The last step that a site knows is then the difference of the two models that it was sent itself,
much of it its own update. A guard that looks for repeated steps may not take that for a repetition.
No number comes from a guard's own code here: all cosines are of the whole updates.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from papers.guards_honest_ranges import cosine, extremes
from reading import markdown, measurement
from trainings import SMALL_PHOTOGRAPHS, SMALL_VOLUMES, TRAININGS

from monai_fairfl.guards import DEFAULT, Guard, Verdict
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.strategies import CGSV, Ditto, ShapFed, Standalone, Strategy

STUDIES = ()
ROUNDS = 14
SMALL_IMAGES: dict[str, Mapping[str, Any]] = {
    "four hospitals, BIDMC small": SMALL_VOLUMES,
    "six generated hospitals, elm small": SMALL_VOLUMES,
    "three clinics, DrishtiGS1 small": SMALL_PHOTOGRAPHS,
}
"""Training -> its overrides, at 64 x 64."""

LEAST_REST = 0.1
"""Of a step's length: where less is left of it, all of it was the site's own."""


def strategies() -> tuple[Strategy, ...]:
    """The methods that send each site a model of its own, and two that train one beside it."""
    return (CGSV(), ShapFed(personalised=True), Ditto(), Standalone())


QUANTITIES = {
    "last_step": "cosine with the last step",
    "own_previous": "cosine with its own previous update",
    "left": "length of the step that its own previous update does not explain",
    "rest": "cosine of update and step, with the direction of the own previous update removed",
}
"""Key -> title of a column."""


class Watching(Guard):
    """Notes how every honest update lies to the site's own last step, and gives no verdict."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.models: dict[str, torch.Tensor] = {}
        self.previous: dict[str, torch.Tensor] = {}

    def __deepcopy__(self, memo: object) -> Watching:
        """A federation copies its guards; this one is the same, so that its numbers can be read."""
        return self

    def check(self, replies: Replies) -> Mapping[int, Verdict]:
        """Note this round's numbers."""
        for row, reply in enumerate(replies):
            sent = replies.start(reply)
            model = torch.cat([sent[name].flatten() for name in replies.matrix.columns]).double()
            update = replies.matrix.rows[row].double()
            if reply.client in self.models:
                step = model - self.models[reply.client]
                self.rows.append(_directions(update, step, self.previous[reply.client]))
            self.models[reply.client] = model
            self.previous[reply.client] = update.clone()
        return {}


def _directions(
    update: torch.Tensor, step: torch.Tensor, previous: torch.Tensor
) -> dict[str, float]:
    """The quantities of one update."""
    found = {
        "last_step": cosine(update, step),
        "own_previous": cosine(update, previous),
    }
    rest_of_step = _without(step, previous)
    found["left"] = float(rest_of_step.norm() / step.norm())
    if found["left"] >= LEAST_REST:
        found["rest"] = cosine(_without(update, previous), rest_of_step)
    return found


def _without(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The part of a vector at a right angle to another."""
    return a - b * (a @ b) / (b @ b)


def measure(data: Path, runs: Path) -> dict[str, Any]:
    """Train each method on each federation, with the default guards and one that watches."""
    found: dict[str, Any] = {}
    for name, overrides in SMALL_IMAGES.items():
        training = replace(TRAININGS[name], rounds=ROUNDS, overrides=overrides)
        for strategy in strategies():
            watching = Watching()
            run_dir = runs / "guards" / "own_models"
            shutil.rmtree(run_dir, ignore_errors=True)
            guards = [watching, *DEFAULT]
            history = training.run(strategy, guards, data, run_dir, final=())
            verdicts = sum(len(record["verdicts"]) for record in history.rounds)
            print(name, strategy.name, len(watching.rows), verdicts, flush=True)
            of_method: dict[str, Any] = {"verdicts": verdicts}
            for key in QUANTITIES:
                of_method[key] = [_rounded(row.get(key)) for row in watching.rows]
            found.setdefault(name, {})[strategy.name] = of_method
    return found


def _rounded(value: float | None) -> float | None:
    if value is None:
        return None
    return round(value, 4)


def table() -> str:
    """A row per federation and method: the range of each quantity."""
    found = measurement("guards_own_models")
    rows = []
    for name in SMALL_IMAGES:
        for strategy in strategies():
            of_method = found[name][strategy.name]
            row = [name, strategy.name, str(len(of_method["last_step"]))]
            row.append(str(of_method["verdicts"]))
            for key in QUANTITIES:
                row.append(extremes(of_method[key]))
            rows.append(row)
    head = ["training", "strategy", "client-rounds", "verdicts", *QUANTITIES.values()]
    return markdown(head, rows)
