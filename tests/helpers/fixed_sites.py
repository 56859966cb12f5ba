# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A federation whose sites compute nothing: every update and every measurement is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from helpers.driving import SPEC, vector

from monai_fairfl import Federation, InProcess, ModelSpec, Reply, Request, Strategy

Tensors = Mapping[str, torch.Tensor]
Fault = Callable[[Request, Reply], Reply]


@dataclass
class Played:
    """What a federation left.

    Args:
        strategy: with the last models.
        rounds: the records of the ledger.
        asked: every request that a site received.
    """

    strategy: Strategy
    rounds: list[Mapping[str, Any]] = field(default_factory=list)
    asked: list[Request] = field(default_factory=list)

    def measured_in(self, number: int) -> dict[str, tuple[str, ...]]:
        """client -> what it was asked to measure when it trained in this round."""
        found = [one for one in self.asked if (one.round, one.task) == (number, "train")]
        return {request.client: request.measure for request in found}


@dataclass
class Site:
    """Answers with what is given for each round; it is away where nothing is."""

    name: str
    updates: Sequence[Mapping[str, Tensors]]
    measured: Sequence[Mapping[str, Mapping[str, Any]]]
    fields: Mapping[str, Mapping[str, Any]]
    fault: Fault | None
    asked: list[Request]

    def answer(self, request: Request) -> Reply:
        self.asked.append(request)
        if self.name not in self.updates[request.round]:
            raise ConnectionError("away")
        numbers = {}
        if self.measured:
            numbers = dict(self.measured[request.round].get(self.name, {}))
        known = {name: numbers[name] for name in request.measure if name in numbers}
        if request.task == "measure":
            reply = request.reply(measurements=known)
        else:
            sent = {"num_samples": 10, "num_cases": 2, "num_steps": 1}
            sent.update(self.fields.get(self.name, {}))
            update = dict(self.updates[request.round][self.name])
            reply = request.reply(update, measurements=known, **sent)
        return reply if self.fault is None else self.fault(request, reply)


def federate(
    strategy: Strategy,
    folder: Path,
    updates: Sequence[Mapping[str, Tensors]],
    measured: Sequence[Mapping[str, Mapping[str, Any]]] = (),
    *,
    start: Tensors | None = None,
    spec: ModelSpec = SPEC,
    fields: Mapping[str, Mapping[str, Any]] | None = None,
    faults: Mapping[str, Fault] | None = None,
    **settings: Any,
) -> Played:
    """Run as many rounds as there are updates, or go on with the run in the folder.

    Args:
        strategy: of the federation.
        folder: of the run.
        updates: of each round, client -> update; who is not in it is away.
        measured: of each round, client -> what it measures if it is asked.
        start: the initial model; zeros where it is not given.
        spec: the model's tensors.
        fields: client -> further fields of its replies, such as ``num_samples`` or ``labelled``.
        faults: client -> what changes its replies.
        settings: of the run.
    """
    names = sorted({name for of_round in updates for name in of_round})
    if start is None:
        start = {name: torch.zeros_like(one) for name, one in updates[0][names[0]].items()}
    initial = dict(start)
    played = Played(strategy)
    makers = {}
    for name in names:
        fault = (faults or {}).get(name)
        makers[name] = partial(Site, name, updates, measured, fields or {}, fault, played.asked)
    given = {"guards": (), "evaluate": (), "final": (), "min_clients": 1, **settings}
    federation = Federation(
        strategy,
        InProcess(makers),
        len(updates),
        lambda: (dict(initial), spec),
        run_dir=folder / "run",
        **given,
    )
    played.rounds = list(federation.run(resume=True).rounds)
    return played


def vectors(updates: Mapping[str, Sequence[float]]) -> dict[str, dict[str, torch.Tensor]]:
    """client -> update, of a model that is the one vector ``w``."""
    return {client: {"w": vector(numbers)} for client, numbers in updates.items()}
