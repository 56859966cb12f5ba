# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Rewards on disk: one client's model whole, each other as what differs from one like it.

Rewards that share a step, such as CGSV's, differ where a client lacks entries of it: least from
those of a client that contributed about as much. No bit is lost. Models that have nothing in common
are stored whole.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from monai_fairfl.protocol.values import Weights
from monai_fairfl.utils.tensors import INTEGERS

WHOLE = "whole/"
"""Before the name of a tensor: the tensor itself."""

WHERE = "where/"
"""Before the name of a tensor: one bit for each of its values, set where it differs."""

VALUES = "values/"
"""Before the name of a tensor: its values where it differs, in their order."""

SAMPLED = 64
"""Values of each tensor by which models are compared, to choose the one that is stored whole."""


def stored_from(models: Mapping[str, Weights]) -> tuple[str, dict[str, str]]:
    """Which model is stored whole, and from which other one each of the rest differs.

    The whole one has most in common with all others. The rest are a spanning tree of neighbours
    that have most in common (Prim, 1957), by a sample of values.

    Args:
        models: client -> model, at least one.

    Returns:
        The client of the whole model, and client -> another one, which all lead to it.

    >>> models = {"A": {"w": torch.tensor([1.0, 2.0, 3.0])}}
    >>> models["B"] = {"w": torch.tensor([1.0, 2.0, 0.0])}
    >>> models["C"] = {"w": torch.tensor([1.0, 0.0, 0.0])}
    >>> stored_from(models)
    ('B', {'A': 'B', 'C': 'B'})
    """
    agreements = _agreements(models)
    totals = {client: sum(of_client.values()) for client, of_client in agreements.items()}
    whole = max(totals, key=lambda client: totals[client])

    nearest = {client: whole for client in models if client != whole}
    found: dict[str, str] = {}
    while nearest:
        added = max(nearest, key=lambda client: agreements[client][nearest[client]])
        found[added] = nearest.pop(added)
        for client, neighbour in nearest.items():
            if agreements[client][added] > agreements[client][neighbour]:
                nearest[client] = added
    return whole, found


def _agreements(models: Mapping[str, Weights]) -> dict[str, dict[str, int]]:
    """client -> client -> how many of the sampled values both models have in common."""
    samples = {client: _sample(model) for client, model in models.items()}
    found: dict[str, dict[str, int]] = {}
    for client, sample in samples.items():
        found[client] = {}
        for other, of_other in samples.items():
            found[client][other] = 0
            if len(of_other) == len(sample):
                found[client][other] = int(np.count_nonzero(sample == of_other))
    return found


def differences(model: Weights, reference: Weights) -> dict[str, torch.Tensor]:
    """The tensors of a file that holds ``model`` for somebody who has ``reference``.

    >>> reference = {"w": torch.tensor([1.0, 2.0, 0.0])}
    >>> model = {"w": torch.tensor([1.0, 2.0, 3.0])}
    >>> found = differences(model, reference)
    >>> found["values/w"], found["where/w"]
    (tensor([3.]), tensor([32], dtype=torch.uint8))
    """
    found: dict[str, torch.Tensor] = {}
    for name, tensor in model.items():
        tensor = tensor.detach().cpu()
        other = reference.get(name)
        if other is None or other.shape != tensor.shape or other.dtype != tensor.dtype:
            found[WHOLE + name] = tensor
            continue
        bits = _bits(tensor)
        differs = bits != _bits(other)
        count = np.count_nonzero(differs)
        if count * tensor.itemsize + len(differs) / 8 >= tensor.nbytes:
            found[WHOLE + name] = tensor
            continue
        found[WHERE + name] = torch.from_numpy(np.packbits(differs))
        # Faster than by a mask, where the processor guesses wrong at every other value.
        values = np.compress(differs, bits)
        found[VALUES + name] = torch.from_numpy(values).view(tensor.dtype)
    return found


def restored(found: Weights, reference: Weights) -> dict[str, torch.Tensor]:
    """The inverse of :func:`differences`.

    Raises:
        KeyError, TypeError, ValueError: when the tensors are not those of such a file.
    """
    model: dict[str, torch.Tensor] = {}
    for key, tensor in found.items():
        if key.startswith(WHOLE):
            model[key.removeprefix(WHOLE)] = tensor
        elif key.startswith(WHERE):
            name = key.removeprefix(WHERE)
            model[name] = _with_values(name, reference[name], tensor, found[VALUES + name])
        elif not key.startswith(VALUES):
            raise ValueError(f"{key!r} is no part of a reward's differences")
    return model


def _with_values(
    name: str, reference: torch.Tensor, where: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """``reference`` with other values in the places whose bits are set."""
    bits = _bits(reference).copy()
    differs = np.unpackbits(where.numpy(), count=len(bits)).astype(bool)
    if values.dtype != reference.dtype or values.numel() != np.count_nonzero(differs):
        raise ValueError(f"{name!r} does not have a value for each place that differs")
    # As integers: a copy of what is no number may lose bits.
    bits[differs] = _bits(values)
    return torch.from_numpy(bits).view(reference.dtype).view(reference.shape)


def _bits(tensor: torch.Tensor) -> np.ndarray:
    """The bits of each value, as a vector of integers: they also compare what is no number."""
    return tensor.detach().cpu().reshape(-1).view(INTEGERS[tensor.itemsize]).numpy()


def _sample(model: Weights) -> np.ndarray:
    """Bits of some values of every tensor, in the order of names."""
    found = []
    for name in sorted(model):
        bits = _bits(model[name])
        step = max(1, len(bits) // SAMPLED)
        found.append(bits[::step].astype(np.int64))
    return np.concatenate([np.zeros(0, dtype=np.int64), *found])
