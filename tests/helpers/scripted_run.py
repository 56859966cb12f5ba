# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Real federations of hospitals that compute nothing: scores, updates and absences are given."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from helpers.driving import SPEC, Listening, vector
from helpers.faults_of_folders import forge

from monai_fairfl import (
    Estimate,
    Federation,
    InProcess,
    Reply,
    Request,
    Strategy,
    read_ledger,
    strategies,
    write_report,
)
from monai_fairfl.errors import FederationError

Score = float | tuple[float, float | None, int]
"""A number, or (value, standard error, cases)."""


@dataclass
class Hospital:
    """Answers with what is given; what is not given it makes up, the same every time.

    Args:
        name: of the hospital.
        closing: measurement -> score of the end.
        measured: measurement -> number of every round, or a list with one for each.
        updates: its update of every round, or a list with one for each.
        images: of an epoch.
        away: rounds in which it cannot be reached.
        size: of the model; an update is repeated to this length.
    """

    name: str
    closing: Mapping[str, Score]
    measured: Mapping[str, Any] = field(default_factory=dict)
    updates: Sequence[Any] = ()
    images: int = 10
    away: Sequence[int] = ()
    size: int = 3

    def answer(self, request: Request) -> Reply:
        number = request.round
        if request.task == "measure":
            known = {name: self.closing[name] for name in request.measure if name in self.closing}
            return request.reply(measurements={name: number_of(known[name]) for name in known})
        if number in self.away:
            raise ConnectionError("the line is down")
        measured = {name: self._measure(name, number) for name in request.measure}
        own = np.random.default_rng(list(self.name.encode()))
        update = self.updates or own.normal(size=self.size)
        if np.ndim(update) == 2:
            update = update[number]
        update = np.resize(update, self.size)
        sent = {"num_samples": self.images, "num_cases": self.images // 5, "num_steps": 1}
        return request.reply({"w": vector(update.tolist())}, measurements=measured, **sent)

    def _measure(self, name: str, number: int) -> Any:
        given = self.measured.get(name)
        if isinstance(given, list):
            given = given[number]
        if given is not None:
            return number_of(given)
        return 0.3 if name.endswith("error") else 0.6


def number_of(score: Any) -> Any:
    """A score as a hospital sends it: a number, an estimate, or one of these for each class."""
    if isinstance(score, Mapping):
        return {label: number_of(found) for label, found in score.items()}
    return Estimate(*score) if isinstance(score, tuple) else score


def train(
    folder: Path,
    strategy: Strategy,
    scores: Mapping[str, Score | Mapping[str, Score]],
    rounds: int = 1,
    *,
    stop: int | None = None,
    conclude: int | None = None,
    size: int = 3,
    config: Mapping[str, Any] | None = None,
    about: Mapping[str, Mapping[str, Any]] | None = None,
    **settings: Any,
) -> Path:
    """Run a federation in ``folder``, or go on with the one that is there.

    Args:
        folder: of the run.
        strategy: that is trained.
        scores: hospital -> score on test cases at the end, or each measurement's.
        rounds: as many are planned.
        stop: the round in which nobody can be reached, which ends an unfinished run.
        conclude: the round after which the run is closed before its time.
        size: numbers of the model.
        config: changes to ``settings.json``, which is that of its bundle's full run.
        about: hospital -> further arguments of :class:`Hospital`.
        settings: of the federation.
    """
    makers = {}
    for name, score in scores.items():
        closing = score if isinstance(score, Mapping) else {"test_score": score}
        given: dict[str, Any] = {"size": size, **(about or {}).get(name, {})}
        if stop is not None:
            given["away"] = [*given.get("away", ()), stop]
        makers[name] = partial(Hospital, name, closing, **given)
    start = {"w": torch.zeros(size, dtype=torch.float64)}
    settings = {"final": ("score", "test_score"), "min_clients": 1, "guards": (), **settings}

    def added(record: Any) -> None:
        if conclude is not None and record.get("round") == conclude:
            federation.conclude()

    federation = Federation(
        strategy,
        InProcess(makers),
        rounds,
        lambda: (start, SPEC),
        run_dir=folder,
        observer=Listening(added),
        **settings,
    )
    try:
        federation.run(resume=folder.exists())
    except FederationError:
        if stop is None:
            raise
    settings = {**full_run(scores, rounds), **(config or {})}
    (folder / "settings.json").write_text(json.dumps(settings))
    return folder


def report_of(
    folder: Path, scores: Mapping[str, Mapping[str, Any]], rounds: int = 1, **given: Any
) -> dict[str, Any]:
    """The report of runs that differ in nothing but their strategies and scores.

    Args:
        folder: gets a folder for each run, and the report.
        scores: class of a strategy -> hospital -> score, see :func:`train`.
        rounds: of each run.
        given: to :func:`train`.
    """
    runs = []
    for name, of_run in scores.items():
        runs.append(train(folder / name, getattr(strategies, name)(), of_run, rounds, **given))
    return write_report(runs, folder)


def full_run(sites: Mapping[str, Any], rounds: int) -> dict[str, Any]:
    """The ``settings.json`` of a run that is its bundle's full one, whatever its mean Dice."""
    return {
        "bundle": "b",
        "files": {"configs/train.json": "1"},
        "config": ["configs/train.json"],
        "data": {site: f"/data/{site}" for site in sites},
        "rounds": rounds,
        "local_epochs": 1,
        "full_run": {"rounds": rounds, "local_epochs": 1, "mean_dice": 0.0},
    }


def contributions_of(run: Path) -> list[dict[str, float]]:
    """Hospital -> contribution of each round in the ledger: numbers, or estimates."""
    found = []
    for record in read_ledger(run / "ledger.jsonl"):
        if record["kind"] == "round":
            of_round = record["contributions"].items()
            found.append({s: v["value"] if isinstance(v, dict) else v for s, v in of_round})
    return found


def with_cases(run: Path, site: str, dice: Mapping[str, float], score: str = "test_score") -> Path:
    """Add the table of cases behind a closing score, as the site's own client leaves it."""
    rounds = len(contributions_of(run))
    table = run / "sites" / site / "state" / f"{run.name}-{score}-{rounds}-0.csv"
    table.parent.mkdir(parents=True, exist_ok=True)
    rows = ["case,dice", *[f"{case},{value}" for case, value in dice.items()]]
    table.write_text("\n".join(rows) + "\n")
    return table


def with_lists(
    run: Path, site: str = "oak", training: str = "a", testing: str = "c", digests: str = ""
) -> Path:
    """Add the data list of a hospital and digests of its cases, as a run in one process does."""
    lists = {"training": [{"image": training}], "validation": [], "testing": [{"image": testing}]}
    (run / "datalists").mkdir()
    (run / "datalists" / f"{site}.json").write_text(json.dumps(lists))
    if digests:
        (run / "datalists" / f"{site}.digests").write_text(digests)
    return run


def valued(run: Path, name: str, **about: Any) -> None:
    """Add a valuation of elm and oak, as ``monai-fairfl value`` writes it."""
    values = {"elm": {"value": -0.1, "stderr": None}, "oak": {"value": 0.3, "stderr": 0.01}}
    found = {"name": name, "strategy": "FedAvg", "method": "exact", "utility": "mean"}
    found |= {"data": "test", "values": values, "evaluations": 4}
    found |= {"total": 0.2, "shares": {"elm": 0.0, "oak": 1.0}, **about}
    (run / "valuations").mkdir(exist_ok=True)
    (run / "valuations" / f"{name}.json").write_text(json.dumps(found))


def mean_of(values: Sequence[float]) -> Score:
    """Mean of some cases, with its standard error; of one case it has none."""
    if len(values) == 1:
        return values[0], None, 1
    return float(np.mean(values)), float(np.std(values, ddof=1) / len(values) ** 0.5), len(values)


def call_sites(run: Path, names: Mapping[str, str]) -> Path:
    """Give hospitals names that no federation takes, but a ledger of others may have."""

    def renamed(text: str) -> str:
        for name, other in names.items():
            text = text.replace(json.dumps(name), json.dumps(other))
        return text

    def rename(records: list[Any]) -> None:
        records[:] = json.loads(renamed(json.dumps(records)))

    config = run / "settings.json"
    config.write_text(renamed(config.read_text()))
    forge(run, rename)
    return run
