# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Guards: what honest sites reach in every round of real trainings.

A guard may be on by default only where its threshold is beyond all of these. No number comes from a
guard's own code here: cosines with earlier rounds are of the whole updates, and not of sketches.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from reading import NOTHING, markdown, measurement
from trainings import TRAININGS

from monai_fairfl.guards import DEFAULT, Guard, Verdict
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.strategies import FedAvg, FedCE, Strategy

STUDIES = ()

QUANTITIES = {
    "length": "length / median of the others",
    "in_common": "T (random numbers: 1)",
    "nearest": "cosine with the nearest other",
    "with_others": "cosine with the mean of the others",
    "last_step": "cosine with the last step",
    "another_previous": "cosine with another's previous update",
    "own_previous": "cosine with its own previous update",
    "variances": "ratio of variances",
    "means": "shift of means",
}
"""Key -> title of a column."""


class Watching(Guard):
    """Notes where every honest update lies, and gives no verdict."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.number = 0
        self.previous: dict[str, torch.Tensor] = {}
        self.model: torch.Tensor | None = None

    def __deepcopy__(self, memo: object) -> Watching:
        """A federation copies its guards; this one is the same, so that its numbers can be read."""
        return self

    def check(self, replies: Replies) -> Mapping[int, Verdict]:
        """Note this round's numbers."""
        updates = {
            reply.client: replies.matrix.rows[row].double() for row, reply in enumerate(replies)
        }
        columns = replies.matrix.columns
        sent = replies.start(replies[0])
        model = torch.cat([sent[name].flatten() for name in columns]).double()
        for reply in replies:
            found = {"round": self.number, "site": reply.client}
            found.update(self._directions(reply.client, updates, model))
            found["in_common"] = _in_common(replies, reply.client)
            found.update(_statistics(replies, reply.client))
            self.rows.append(found)
        self.previous = {client: update.clone() for client, update in updates.items()}
        self.model = model
        self.number += 1
        return {}

    def _directions(
        self, client: str, updates: Mapping[str, torch.Tensor], model: torch.Tensor
    ) -> dict[str, float]:
        own = updates[client]
        others = [update for name, update in updates.items() if name != client]
        lengths = [float(update.norm()) for update in others]
        units = [update / update.norm() for update in others]
        found = {
            "length": float(own.norm()) / float(np.median(lengths)),
            "nearest": max(cosine(own, update) for update in others),
            "with_others": cosine(own, torch.stack(units).sum(0)),
        }
        agreements = []
        for row, first in enumerate(units):
            for second in units[row + 1 :]:
                agreements.append(float(first @ second))
        if agreements:
            found["agreement_of_others"] = float(np.median(agreements))
        if self.model is not None:
            found["last_step"] = cosine(own, model - self.model)
            found["own_previous"] = cosine(own, self.previous[client])
            earlier = [update for name, update in self.previous.items() if name != client]
            found["another_previous"] = max(cosine(own, update) for update in earlier)
        return found


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    """The cosine of two vectors; 0 where one is zero."""
    return float(a @ b / (a.norm() * b.norm()).clamp(min=1e-30))


def _in_common(replies: Replies, client: str) -> float:
    """The mean, over other sites and layers, of parameters times squared cosine."""
    clients = [reply.client for reply in replies]
    row = clients.index(client)
    layers: dict[str, list[torch.Tensor]] = {}
    for name, columns in replies.matrix.columns.items():
        layer = replies.spec.layers.get(name, name)
        layers.setdefault(layer, []).append(replies.matrix.rows[:, columns].double())
    terms = []
    for parts in layers.values():
        of_layer = torch.cat(parts, dim=1)
        for other in range(len(clients)):
            if other != row and of_layer[row].any() and of_layer[other].any():
                similarity = cosine(of_layer[row], of_layer[other])
                terms.append(of_layer.shape[1] * similarity**2)
    return float(np.mean(terms))


def _statistics(replies: Replies, client: str) -> dict[str, float]:
    """The distance of BatchNorm's statistics from those of the nearer half of the others."""
    buffers = {reply.client: reply.buffers or {} for reply in replies}
    own = buffers[client]
    ratios = []
    shifts = []
    for other, of_other in buffers.items():
        if other == client:
            continue
        ratio = 1.0
        shift = 0.0
        for name, variance in own.items():
            if not name.endswith("running_var"):
                continue
            logarithm = torch.log((variance + 1e-5) / (of_other[name] + 1e-5)).abs().max()
            ratio = max(ratio, float(logarithm.exp()))
            mean = name.replace("running_var", "running_mean")
            distance = (own[mean] - of_other[mean]).abs() / torch.sqrt(of_other[name] + 1e-5)
            shift = max(shift, float(distance.max()))
        ratios.append(ratio)
        shifts.append(shift)
    middle = (len(ratios) - 1) // 2
    return {"variances": sorted(ratios)[middle], "means": sorted(shifts)[middle]}


def strategy_of(name: str) -> Strategy:
    """FedAvg where all sites are as they are, FedCE where one is small."""
    if "small" in name:
        return FedCE("sum")
    return FedAvg()


def measure(data: Path, runs: Path) -> dict[str, Any]:
    """Train all federations with the default guards, and one before them that watches."""
    found = {}
    for name, training in TRAININGS.items():
        watching = Watching()
        run_dir = runs / "guards" / name.replace(" ", "_").replace(",", "")
        shutil.rmtree(run_dir, ignore_errors=True)
        guards = [watching, *DEFAULT]
        history = training.run(strategy_of(name), guards, data, run_dir, final=())
        verdicts = sum(len(record["verdicts"]) for record in history.rounds)
        print(name, len(watching.rows), verdicts, flush=True)
        found[name] = {**_columns(watching.rows), "verdicts": verdicts}
    return found


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Key -> its values, one per client-round; ``None`` where there is none, as in round 0."""
    columns: dict[str, list[Any]] = {}
    for key in ("round", "site", "agreement_of_others", *QUANTITIES):
        columns[key] = [_rounded(row.get(key)) for row in rows]
    return columns


def _rounded(value: Any) -> Any:
    """A number with four digits; anything else as it is."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    return value


def table() -> str:
    """A row per training: the number of client-rounds, and the extremes of each quantity."""
    found = measurement("guards_honest_ranges")
    rows = []
    for name in TRAININGS:
        of_training = found[name]
        row = [name, strategy_of(name).name, str(len(of_training["round"]))]
        row.append(str(of_training["verdicts"]))
        for key in QUANTITIES:
            row.append(extremes(of_training[key]))
        rows.append(row)
    head = ["training", "strategy", "client-rounds", "verdicts", *QUANTITIES.values()]
    return markdown(head, rows)


def extremes(values: Sequence[float | None]) -> str:
    """Write the least and the largest of the known values."""
    known = [value for value in values if value is not None]
    if not known:
        return NOTHING
    return f"{min(known):.3g} to {max(known):.3g}"
