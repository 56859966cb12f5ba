# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Three hospitals whose client is plain PyTorch, without a bundle."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from monai_fairfl import (
    Client,
    Estimate,
    Federation,
    InProcess,
    ModelSpec,
    Reply,
    Request,
    read_spec,
)
from monai_fairfl.measurements import estimate, leave_one_out_model
from monai_fairfl.messages import Weights
from monai_fairfl.strategies import FedCE

MEASURES = {"global_score", "score", "leave_one_out_error"}
READS = {"previous_weight", "closing", "ended"}


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 1, 1)
    )


def initial() -> tuple[Weights, ModelSpec]:
    """The model of round 0, and what each of its tensors is."""
    first = network()
    spec = read_spec(first, torch.zeros(1, 1, 24, 24))
    return spec.tensors_of(first), spec


def images(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy squares and their masks, each of shape (count, 1, 24, 24)."""
    random = torch.Generator().manual_seed(seed)
    masks = torch.zeros(count, 1, 24, 24)
    for mask in masks:
        top, left = torch.randint(2, 12, (2,), generator=random)
        mask[0, top : top + 10, left : left + 10] = 1
    return masks + 0.5 * torch.randn(masks.shape, generator=random), masks


class Hospital:
    """Answers the server's requests."""

    def __init__(self, number: int, private: Path):
        self.images, self.masks = images(12, seed=number)
        self.validation = images(6, seed=100 + number)
        self.network = network()
        self.spec = read_spec(self.network)
        self.private = private
        private.mkdir(parents=True, exist_ok=True)

    def answer(self, request: Request) -> Reply:
        # Every reply repeats these three fields of its request.
        reply = Reply(request.client, None, 0, id=request.id, run=request.run, round=request.round)
        if "ended" in request.context:  # the last request brings no weights
            return reply

        unknown = {*request.measure} - MEASURES | {*request.context} - READS
        if unknown:
            raise ValueError(f"this client does not know {sorted(unknown)}")

        measurements = {name: self.measure(name, request) for name in request.measure}
        if request.task == "measure":
            return replace(reply, measurements=measurements)

        self.train(request)
        trained = self.spec.tensors_of(self.network)
        torch.save(trained, self.file_of(request, request.round))
        return replace(
            reply,
            update={name: trained[name] - request.weights[name] for name in self.spec.parameters},
            buffers={name: trained[name] for name in self.spec.buffers},
            num_samples=len(self.images),
            measurements=measurements,
        )

    def measure(self, name: str, request: Request) -> Estimate:
        """The Dice of the received model, or FedCE's error of that model without this client."""
        if name != "leave_one_out_error":
            return self.dice(request.weights)
        weights, own_weight = request.weights, request.context["previous_weight"]
        if own_weight > 0:  # this client's last update is in the received model
            own = torch.load(self.file_of(request, request.round - 1), weights_only=True)
            weights = leave_one_out_model(weights, own, own_weight)
        dice = self.dice(weights)
        return Estimate(1 - dice.value, dice.stderr, dice.n)

    def dice(self, weights: Weights) -> Estimate:
        self.load(weights)
        inputs, masks = self.validation
        with torch.no_grad():
            predicted = (self.network.eval()(inputs) > 0).float()
        overlap = (predicted * masks).sum((1, 2, 3))
        return estimate(2 * overlap / (predicted + masks).sum((1, 2, 3)))

    def train(self, request: Request) -> None:
        torch.manual_seed(request.seed)
        self.load(request.weights)
        self.network.train()
        optimizer = torch.optim.Adam(self.network.parameters(), 0.01)
        for batch in torch.randperm(len(self.images)).split(4):
            loss = binary_cross_entropy_with_logits(
                self.network(self.images[batch]), self.masks[batch]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def load(self, weights: Weights) -> None:
        self.network.load_state_dict(self.spec.with_aliases(weights))

    def file_of(self, request: Request, number: int) -> Path:
        """The model that this client trained in round ``number``; a file survives a restart."""
        return self.private / f"{request.run_id}-{number}.pt"


def hospitals(private: Path) -> dict[str, Callable[[], Client]]:
    sites = ("alder", "birch", "cedar")
    return {site: partial(Hospital, number, private / site) for number, site in enumerate(sites)}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    transport = InProcess(hospitals(folder / "private"))
    federation = Federation(FedCE(), transport, 4, initial, run_dir=folder / "run", min_clients=3)
    for record in federation.run().rounds:
        print(record["aggregation"])
