# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Loads weights into a network, for good or for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from monai.engines import SupervisedEvaluator
from torch import nn

from monai_fairfl.messages import Weights
from monai_fairfl.model_files.fused import network_for
from monai_fairfl.utils.tensors import CPU, moved


def device_of(network: nn.Module) -> torch.device:
    """Where ``network`` computes: the device of its first parameter; the CPU where it has none.

    >>> device_of(nn.Linear(1, 1))
    device(type='cpu')
    """
    first = next(network.parameters(), None)
    return CPU if first is None else first.device


def load_weights(network: nn.Module, weights: Weights) -> None:
    """Load ``weights`` into ``network``; tensors that ``weights`` lacks stay as they are.

    Raises:
        KeyError: when ``weights`` holds a name that the network does not have.
    """
    there = moved(weights, device_of(network))
    unexpected = network.load_state_dict(dict(there), strict=False).unexpected_keys
    if unexpected:
        raise KeyError(
            f"the network has no tensor {unexpected[0]!r} ({len(unexpected)} unknown names)"
        )


@contextmanager
def loaded(network: nn.Module, weights: Weights) -> Iterator[None]:
    """Inside, ``network`` has ``weights``; afterwards it has its own again, to the bit."""
    own_weights = {}
    for name, tensor in network.state_dict().items():
        own_weights[name] = tensor.detach().clone()
    try:
        load_weights(network, weights)
        yield
    finally:
        network.load_state_dict(own_weights)


@contextmanager
def runs_with(evaluator: SupervisedEvaluator, weights: Weights) -> Iterator[None]:
    """Inside, ``evaluator`` runs the model ``weights``; afterwards it is as before, to the bit.

    A fused model runs in a network of its own, made of copies of the evaluator's.
    """
    own_network = evaluator.network
    network = network_for(own_network, weights)
    evaluator.network = network
    try:
        with loaded(network, weights):
            yield
    finally:
        evaluator.network = own_network
