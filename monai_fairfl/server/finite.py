# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A round's models are checked before they replace the previous ones."""

from __future__ import annotations

import math

from monai_fairfl.errors import FederationError
from monai_fairfl.messages import Weights, is_finite_or_unchanged
from monai_fairfl.replies import Replies
from monai_fairfl.strategies.base import RoundResult


def require_finite(result: RoundResult, previous: Weights, local: Replies) -> None:
    """Refuse a round whose global model or rewards are not finite.

    Every update may be finite, and their average not: a sum or a scale overflows, above all in half
    precision. A constant buffer, such as a mask of -inf, may stay what it was.

    Args:
        result: of the strategy.
        previous: the global model before the round.
        local: the replies that trained.

    Raises:
        FederationError: naming the model, the tensor and the client that most likely caused it.

    >>> import torch
    >>> bad = RoundResult({"w": torch.tensor([float("inf")])}, {}, {})
    >>> require_finite(bad, {"w": torch.zeros(1)}, Replies([], [], None))
    Traceback (most recent call last):
    ...
    monai_fairfl.errors.FederationError: the new global model is not finite in 'w'
    """
    models = {"the new global model": result.weights}
    for client, model in (result.rewards or {}).items():
        models[f"the new model of {client}"] = model

    # Rewards share tensors with each other and with the global model.
    seen: set[int] = set()
    for title, model in models.items():
        for name, tensor in model.items():
            if id(tensor) in seen:
                continue
            seen.add(id(tensor))
            if not is_finite_or_unchanged(tensor, previous.get(name)):
                raise FederationError(f"{title} is not finite in {name!r}{_suspect(name, local)}")


def _suspect(name: str, local: Replies) -> str:
    """The client whose update, or buffer, has the largest entry of this tensor; as an ending."""
    largest: dict[str, float] = {}
    for reply in local:
        sent = (reply.update or {}).get(name)
        if sent is None:
            sent = (reply.buffers or {}).get(name)
        if sent is not None and sent.numel():
            entry = float(sent.double().abs().max())
            largest[reply.client] = math.inf if math.isnan(entry) else entry
    if not largest:
        return ""
    client = max(largest, key=lambda name: largest[name])
    return (
        f"; client {client!r} most likely caused it, whose largest entry there is "
        f"{largest[client]:.3g}"
    )
