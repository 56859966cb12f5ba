# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Federations of small classifiers that train in milliseconds, and whose sites write receipts.

Every number is measured: losses, accuracies and similarities of features on a site's own points.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from helpers.faulty_transports import Fault, FaultyTransport
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy

from monai_fairfl import (
    Estimate,
    Federation,
    InProcess,
    ModelSpec,
    Reply,
    Request,
    Strategy,
    read_spec,
)
from monai_fairfl.messages import Measurement, Weights
from monai_fairfl.run import digest_of

SITES = {"ash": 24, "beech": 8, "elm": 16, "oak": 20}
"""Site -> number of its points."""

CLASSES = 3
FEATURES = 4
WIDTH = 128
"""Of the layer between: with it the model is large enough for guards that compare directions."""


def network() -> nn.Sequential:
    """Two layers and a head of three classes, with BatchNorm's statistics between them."""
    body = nn.Linear(FEATURES, WIDTH)
    return nn.Sequential(body, nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))


def initial() -> tuple[dict[str, torch.Tensor], ModelSpec]:
    """The first model, built under the run's seed."""
    made = network()
    return dict(made.state_dict()), read_spec(made, torch.zeros(2, FEATURES))


class TrainingClient:
    """A site that trains the small classifier on points of its own.

    Args:
        name: of the site.
        folder: for its receipts; ``None``: it writes none.
        labelled: which classes it labels; all where empty.
    """

    def __init__(self, name: str, folder: Path | None = None, labelled: Sequence[bool] = ()):
        self.name = name
        self.labelled = tuple(labelled)
        self.receipts = None if folder is None else folder / name / "receipts.jsonl"
        number = sorted(SITES).index(name)
        generator = np.random.default_rng(number)
        points = generator.normal(size=(SITES[name], FEATURES)) + 0.2 * number
        self.points = torch.tensor(points, dtype=torch.float32)
        truth = torch.tensor(generator.normal(size=(FEATURES, CLASSES)), dtype=torch.float32)
        common = torch.eye(FEATURES, CLASSES)
        self.labels = (self.points @ (common + 0.3 * truth)).argmax(1)
        self.local: dict[str, torch.Tensor] = {}

    def answer(self, request: Request) -> Reply:
        if request.context.get("ended"):
            reply = self._reply(request)
        elif request.task == "measure":
            reply = replace(self._reply(request), measurements=self._measured(request))
        else:
            reply = self._trained(request)
        if self.receipts is not None:
            self._store_receipt(request, reply)
        return reply

    def _store_receipt(self, request: Request, reply: Reply) -> None:
        """Append the line that a site's own client writes."""
        assert self.receipts is not None
        receipt = {
            "client": request.client,
            "run": request.run,
            "round": request.round,
            "ended": bool(request.context.get("ended")),
            "head": request.ledger_head,
            "update": reply.digest or None,
        }
        self.receipts.parent.mkdir(parents=True, exist_ok=True)
        with self.receipts.open("a") as file:
            file.write(json.dumps(receipt) + "\n")

    def _reply(self, request: Request) -> Reply:
        return Reply(self.name, None, 0, id=request.id, run=request.run, round=request.round)

    def _trained(self, request: Request) -> Reply:
        model = self._loaded(request.weights)
        torch.manual_seed(request.seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        for _ in range(3):
            chosen = torch.randint(len(self.points), (6,))
            optimizer.zero_grad()
            cross_entropy(model(self.points[chosen]), self.labels[chosen]).backward()
            optimizer.step()
        self.local = {name: value.clone() for name, value in model.state_dict().items()}

        trainable = {name for name, _ in model.named_parameters()}
        update = {name: self.local[name] - request.weights[name] for name in sorted(trainable)}
        buffers = {name: self.local[name] for name in self.local if name not in trainable}
        return replace(
            self._reply(request),
            update=update,
            buffers=buffers,
            num_samples=SITES[self.name],
            num_cases=SITES[self.name],
            num_steps=3,
            labelled=self.labelled,
            measurements=self._measured(request),
            digest=digest_of({**update, **buffers}),
        )

    def _measured(self, request: Request) -> dict[str, Measurement]:
        found: dict[str, Measurement] = {}
        for name in request.measure:
            own = name.startswith(("local_", "personal_"))
            weights = self.local if own else request.weights
            if name in ("cka", "feature_cosine"):
                found[name] = self._similarities(request.weights)
            elif name == "sharpness":
                found[name] = self._sharpness(weights, request.context["sam_rho"])
            elif name.endswith("loss"):
                found[name] = self._loss(weights)
            elif name == "leave_one_out_error":
                found[name] = 1 - self._accuracy(self._without_itself(request))
            else:
                value = self._accuracy(weights)
                estimate = Estimate(value, 0.1, len(self.points))
                found[name] = {"mean": estimate, "gland": estimate}
        return found

    def _loaded(self, weights: Weights) -> nn.Sequential:
        model = network()
        model.load_state_dict(dict(weights))
        return model

    def _loss(self, weights: Weights) -> float:
        model = self._loaded(weights).eval()
        with torch.no_grad():
            return float(cross_entropy(model(self.points), self.labels))

    def _accuracy(self, weights: Weights) -> float:
        model = self._loaded(weights).eval()
        with torch.no_grad():
            return float((model(self.points).argmax(1) == self.labels).double().mean())

    def _sharpness(self, weights: Weights, radius: float) -> float:
        model = self._loaded(weights).eval()
        loss = cross_entropy(model(self.points), self.labels)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        length = torch.sqrt(sum(gradient.square().sum() for gradient in gradients))
        moved = dict(weights)
        for (name, _), gradient in zip(model.named_parameters(), gradients, strict=True):
            moved[name] = weights[name] + radius * gradient / length
        return self._loss(moved) - loss.item()

    def _without_itself(self, request: Request) -> dict[str, torch.Tensor]:
        """The received model less this site's share of it."""
        weight = request.context["previous_weight"]
        without = dict(request.weights)
        for name, value in without.items():
            if value.is_floating_point() and self.local and weight < 1:
                without[name] = (value - weight * self.local[name]) / (1 - weight)
        return without

    def _similarities(self, anchor: Weights) -> dict[str, float | Estimate]:
        """Cosine of the features of its own and of the received model, layer by layer."""
        own = self._loaded(self.local).eval()
        other = self._loaded(anchor).eval()
        found: dict[str, float | Estimate] = {}
        for layer in ("0", "3"):
            depth = int(layer) + 1
            with torch.no_grad():
                one, two = own[:depth](self.points), other[:depth](self.points)
            found[layer] = float(cosine_similarity(one.flatten(), two.flatten(), dim=0))
        return {"mean": sum(map(float, found.values())) / len(found), **found}


def federation(
    strategy: Strategy,
    folder: Path,
    fault: Fault | None = None,
    sites: Sequence[str] = tuple(SITES),
    labelled: Mapping[str, Sequence[bool]] | None = None,
    **settings: Any,
) -> Federation:
    """A federation in ``folder/run``, with the sites' folders below it.

    Args:
        strategy: that is trained.
        folder: of the run and of the sites.
        fault: what arrives in place of each reply; ``None``: the reply.
        sites: that take part.
        labelled: site -> which classes it labels, where these are not all.
        settings: of the run.
    """
    makers = {}
    for name in sites:
        classes = (labelled or {}).get(name, ())
        makers[name] = partial(TrainingClient, name, folder / "run" / "sites", classes)
    transport = InProcess(makers)
    if fault is not None:
        transport = FaultyTransport(makers, fault)
    settings = {"rounds": 3, **settings}
    return Federation(strategy, transport, initial=initial, run_dir=folder / "run", **settings)


def receipts_of(folder: Path, site: str) -> Path:
    """The file of a site's receipts."""
    return folder / "run" / "sites" / site / "receipts.jsonl"
