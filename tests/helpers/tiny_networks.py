# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Federations of sites that train nothing, answer in milliseconds, and write receipts.

Updates and measurements follow from the site's name, the round and the received model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from helpers.faulty_transports import Fault, FaultyTransport
from torch import nn

from monai_fairfl import Estimate, Federation, ModelSpec, Reply, Request, Strategy, read_spec
from monai_fairfl.run import digest_of

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
SITES = {"ash": 24, "beech": 8, "elm": 16, "oak": 20}
"""Site -> number of its images."""


def initial() -> tuple[dict[str, torch.Tensor], ModelSpec]:
    """The first model, built under the run's seed, with BatchNorm's statistics and three classes.

    It is large enough for guards that compare directions.
    """
    network = nn.Sequential(nn.Linear(4, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 3))
    return dict(network.state_dict()), read_spec(network, torch.zeros(2, 4))


def generator_of(*keys: str | int) -> np.random.Generator:
    """Random numbers that these texts and numbers decide."""
    return np.random.default_rng(list("/".join(map(str, keys)).encode()))


OF_LAYERS = ("cka", "feature_cosine")
"""Measurements that have a number for each layer."""


def by_layer(request: Request, value: float) -> dict[str, float]:
    """The same number for every layer of a model, and in the mean."""
    layers = {tensor.rpartition(".")[0] for tensor in request.weights}
    return {"mean": value, **dict.fromkeys(layers, value)}


class Site:
    """Answers whatever it is asked.

    Args:
        name: of the site.
        folder: for its receipts; ``None``: it writes none.
    """

    def __init__(self, name: str, folder: Path | None = None):
        self.name = name
        self.receipts = None if folder is None else folder / name / "receipts.jsonl"

    def answer(self, request: Request) -> Reply:
        measured = {name: self._measured(name, request) for name in request.measure}
        reply = request.reply(measurements=measured)
        if request.task == "train":
            reply = self._trained(request, reply)
        if self.receipts is not None:
            # As a site's own client writes it.
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
        return reply

    def _measured(self, name: str, request: Request) -> Any:
        level = math.tanh(sum(float(tensor.double().sum()) for tensor in request.weights.values()))
        value = 0.3 + 0.1 * level + 0.5 * generator_of(self.name, name, request.round).random()
        if name in OF_LAYERS:
            return by_layer(request, value)
        if name.endswith("score"):
            estimate = Estimate(value, 0.1, SITES[self.name])
            return {"mean": estimate, "gland": estimate}
        return value

    def _trained(self, request: Request, reply: Reply) -> Reply:
        common, own = generator_of(request.round), generator_of(self.name, request.round)
        update, buffers = {}, {}
        for name, tensor in sorted(request.weights.items()):
            change = common.normal(size=tensor.shape) + own.normal(size=tensor.shape)
            change = torch.as_tensor(0.1 * change).to(tensor.dtype)
            if name.endswith("num_batches_tracked"):
                buffers[name] = tensor + 5
            elif name.endswith(STATISTICS):
                buffers[name] = (tensor + change).abs()
            else:
                update[name] = change
        images = SITES[self.name]
        counts = {"num_samples": images, "num_cases": images, "num_steps": 3}
        digest = digest_of({**update, **buffers})
        return replace(reply, update=update, buffers=buffers, digest=digest, **counts)


def federation(
    strategy: Strategy,
    folder: Path,
    fault: Fault | None = None,
    sites: Sequence[str] = tuple(SITES),
    **settings: Any,
) -> Federation:
    """A federation in ``folder/run``, with the sites' folders below it.

    Args:
        strategy: that is trained.
        folder: of the run and of the sites.
        fault: what arrives in place of each reply; ``None``: the reply.
        sites: that take part.
        settings: of the run.
    """
    makers = {name: partial(Site, name, folder / "run" / "sites") for name in sites}
    transport = FaultyTransport(makers, fault or (lambda request, reply: reply))
    settings = {"rounds": 3, "initial": initial, "run_dir": folder / "run", **settings}
    return Federation(strategy, transport, **settings)


def receipts_of(folder: Path, site: str) -> Path:
    """The file of a site's receipts."""
    return folder / "run" / "sites" / site / "receipts.jsonl"
