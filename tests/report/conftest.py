# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Runs to report on, without images.

Either the real federation makes them over tiny hospitals of pure torch, whose model is three
numbers and whose cases are points, or they are written by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.values import Estimate
from monai_fairfl.run_folder.ledger import Ledger
from monai_fairfl.run_folder.records import model_round
from monai_fairfl.server.federation import Federation
from monai_fairfl.strategies import FedAvg, FedCE, Standalone, Strategy
from monai_fairfl.transports.in_process import InProcess

SPEC = ModelSpec(("w",), layers={"w": "fc"})
SITES = {"elm": (4, 0.0), "hazel": (6, 0.02), "oak": (9, 0.05), "rowan": (16, 0.25)}
"""site -> its number of cases, and where their mean lies."""


class Hospital:
    """Trains towards the mean of its cases; a case's Dice is exp(-distance), on two classes.

    Args:
        name: of the hospital, which decides its cases.
        cases: how many it has.
        shift: where their mean lies.
        absent: rounds in which it cannot be reached.
        broken: rounds in which its update is not finite.
    """

    def __init__(
        self,
        name: str,
        cases: int,
        shift: float,
        absent: Sequence[int] = (),
        broken: Sequence[int] = (),
    ):
        generator = np.random.default_rng(sum(name.encode()))
        self.cases = torch.tensor(generator.normal(shift, 0.1, (cases, 3)))
        self.absent = absent
        self.broken = broken

    def answer(self, request: Request) -> Reply:
        if request.task == "train" and request.round in self.absent:
            raise ConnectionError("the hospital's line is down")
        weights = request.weights["w"]
        measured = {name: self.measure(name, weights) for name in request.measure}
        echo: dict[str, Any] = {"id": request.id, "run": request.run, "round": request.round}
        if request.task == "measure":
            return Reply(request.client, None, 0, measured, **echo)
        update = 0.3 * (self.cases.mean(0) - weights)
        if request.round in self.broken:
            update[0] = torch.nan
        return Reply(
            request.client,
            {"w": update},
            8 * len(self.cases),
            measured,
            num_cases=len(self.cases),
            num_steps=1,
            **echo,
        )

    def measure(self, name: str, weights: torch.Tensor) -> Any:
        cases = self.cases[1::2]
        if name == "test_score":
            cases = self.cases[::2]
        dice = torch.exp(-torch.linalg.vector_norm(cases - weights, dim=1))
        mean = Estimate(float(dice.mean()), float(dice.std() / len(dice) ** 0.5), len(dice))
        if name == "leave_one_out_error":
            return 1 - mean.value
        return {"mean": mean, "gland": mean.value}


def federate(
    strategy: Strategy,
    folder: Path,
    rounds: int = 4,
    final: Sequence[str] = ("score", "test_score"),
) -> Path:
    """One run of :data:`SITES` under ``folder``.

    elm is absent in round 1, and rowan sends NaN in round 2.
    """
    trouble = {"elm": {"absent": [1]}, "rowan": {"broken": [2]}}
    makers = {}
    for name, (cases, shift) in SITES.items():
        makers[name] = partial(Hospital, name, cases, shift, **trouble.get(name, {}))
    start = {"w": torch.full((3,), -0.5, dtype=torch.float64)}
    federation = Federation(
        strategy, InProcess(makers), rounds, lambda: (start, SPEC), run_dir=folder, final=final
    )
    federation.run()
    return folder


@pytest.fixture(scope="session")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Standalone, FedAvg and FedCE side by side, each in a folder of its name; read only."""
    root = tmp_path_factory.mktemp("comparison")
    strategies = [FedAvg(), FedCE(), Standalone()]
    for strategy in strategies:
        federate(strategy, root / strategy.name)
    names = [strategy.name for strategy in strategies]
    config = {**full_config(SITES, 4), "strategies": names}
    (root / "config.json").write_text(json.dumps(config))
    return root


def full_config(sites: Iterable[str], rounds: int) -> dict[str, Any]:
    """A ``config.json`` of a run that is its bundle's full one, whatever its mean Dice."""
    return {
        "bundle": "b",
        "files": {"train.json": "1"},
        "config": ["configs/train.json"],
        "data": {site: f"/data/{site}" for site in sites},
        "rounds": rounds,
        "local_epochs": 1,
        "full_run": {"rounds": max(rounds, 1), "local_epochs": 1, "mean_dice": 0.0},
    }


@pytest.fixture
def write_run(tmp_path: Path) -> Callable[..., Path]:
    """Writes hand-made runs: ``write_run("FedCE", {"elm": 0.8, "oak": (0.9, 0.01, 4)})``; see
    :func:`hand_made`.
    """
    return partial(hand_made, tmp_path / "runs")


def hand_made(
    root: Path,
    strategy: str,
    scores: Mapping[str, float | tuple[float, float | None, int]],
    *,
    rounds: Sequence[Mapping[str, Any]] = ({},),
    finished: bool = True,
    config: Mapping[str, Any] | None = None,
    planned: Sequence[int] | None = None,
    **start: Any,
) -> Path:
    """A run whose sites close with these test scores: each a number, or (value, standard error, n).

    Args:
        root: the run is written to ``root / strategy``.
        strategy: its class and name.
        scores: site -> closing test score.
        rounds: what each round's record holds besides the usual.
        finished: write the closing record.
        config: changes to its ``config.json``, which is that of a full run.
        planned: rounds that it was begun with, and of each resumption; by default as many as it
            has.
        start: changes to the opening record.
    """
    folder = root / start.pop("folder", strategy)
    folder.mkdir(parents=True)
    all_config = {**full_config(scores, len(rounds)), **(config or {})}
    (folder / "config.json").write_text(json.dumps(all_config))
    schedule = {"planned": list(planned or [len(rounds)]), "seconds": {}}
    (folder / "schedule.json").write_text(json.dumps(schedule))

    sites = sorted(scores)
    opening = {"kind": "start", "strategy": strategy, "name": strategy, "clients": sites, "seed": 0}
    ledger = Ledger(folder / "ledger.jsonl")
    ledger.append({**opening, **start})
    for number, record in enumerate(rounds):
        of_round = {}
        for measured in record.get("measurements", {}).values():
            of_round.update({name: model_round(name, number) for name in measured})
        usual = {
            "kind": "round",
            "round": number,
            "clients": sites,
            "aggregation": {},
            "contributions": {},
            "measurements": {},
            "of_round": of_round,
            "verdicts": {},
            "notes": {},
            "details": {},
            "facts": {},
            "samples": {},
            "cases": {},
            "gram": None,
        }
        ledger.append({**usual, **record})
    if finished:
        closing = {}
        for site, score in scores.items():
            closing[site] = {"own": {"test_score": measurement_json(score)}}
        ledger.append({"kind": "end", "scores": closing})
    return folder


def measurement_json(score: float | tuple[float, float | None, int]) -> Any:
    """A score as the ledger holds it."""
    if not isinstance(score, tuple):
        return score
    value, stderr, n = score
    return {"mean": {"value": value, "stderr": stderr, "n": n}}
