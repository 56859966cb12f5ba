# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Calls of a ``MonaiAlgo``'s methods as an engine makes them, and faults in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from ignite.engine import Events
from monai.fl.client import MonaiAlgo
from monai.fl.utils.constants import FlStatistics
from monai.fl.utils.exchange_object import ExchangeObject

from monai_fairfl.client.algo import FairMonaiAlgo

KINDS = (MonaiAlgo, FairMonaiAlgo)
both = pytest.mark.parametrize("kind", KINDS)


def seed_everything(client: Any, seed: int) -> None:
    """Let the random numbers of the next training follow from ``seed``."""
    torch.manual_seed(seed)
    client.trainer.data_loader.dataset.transform.set_random_state(seed)


def train(client: Any, weights: Mapping[str, Any], seed: int = 3) -> None:
    """One training whose random numbers follow from ``seed``."""
    seed_everything(client, seed)
    client.train(ExchangeObject(weights=dict(weights)))


def evaluate(client: Any, weights: Mapping[str, Any]) -> dict[str, float]:
    metrics: dict[str, float] = client.evaluate(ExchangeObject(weights=weights)).metrics
    return dict(metrics)


def steps(client: Any) -> int:
    """Steps of the last training, as ``get_weights`` reports them."""
    count: int = client.get_weights().statistics[FlStatistics.NUM_EXECUTED_ITERATIONS]
    return count


def copies(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in weights.items()}


def network(client: Any) -> dict[str, torch.Tensor]:
    """A copy of the trainer's network."""
    return copies(client.trainer.network.state_dict())


def parameters_of(client: Any, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights without the network's buffers."""
    return {name: weights[name] for name, _ in client.trainer.network.named_parameters()}


def any_change(weights: Mapping[str, torch.Tensor]) -> bool:
    """Whether a difference of weights is anywhere other than zero."""
    return any(bool(tensor.any()) for tensor in weights.values())


class Abort:
    """Calls ``client.abort()`` after a step, once."""

    def __init__(self, client: Any, engine: Any):
        self.client = client
        self.handle = engine.add_event_handler(Events.ITERATION_COMPLETED, self.act)

    def act(self) -> None:
        self.handle.remove()
        self.client.abort()


class FailOnce:
    """Stands for a function, and raises at its first call."""

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls == 1:
            raise MemoryError("out of memory")
        return self.function(*args, **kwargs)
