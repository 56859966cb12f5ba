# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A round's models are checked before they replace the previous ones."""

from __future__ import annotations

import math

from monai_fairfl.errors import FederationError
from monai_fairfl.messages import Reply, Weights, is_finite_or_unchanged
from monai_fairfl.replies import Replies
from monai_fairfl.strategies.base import RoundResult


class NotFinite(FederationError):
    """A round's model is not finite; the text names it, the tensor and the client."""


def require_finite(result: RoundResult, previous: Weights, local: Replies) -> None:
    """Refuse a round whose global model or rewards are not finite.

    Every update may be finite, and their average not: a sum or a scale overflows, above all in half
    precision. A constant buffer, such as a mask of -inf, may stay what it was.

    Args:
        result: of the strategy.
        previous: the global model before the round.
        local: the replies that trained.

    Raises:
        NotFinite: naming the model, the tensor and the client that most likely caused it.

    >>> import torch
    >>> bad = RoundResult({"w": torch.tensor([float("inf")])}, {}, {})
    >>> require_finite(bad, {"w": torch.zeros(1)}, Replies([], [], None))
    Traceback (most recent call last):
    ...
    monai_fairfl.server.finite.NotFinite: the new global model is not finite in 'w'; ...
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
                largest = {reply.client: _largest(reply, name) for reply in local}
                suspect = max(largest, key=lambda client: largest[client], default=None)
                raise NotFinite(
                    f"{title} is not finite in {name!r}; the largest entry there is of client "
                    f"{suspect!r}: look at that site's training"
                )


def _largest(reply: Reply, name: str) -> float:
    """The largest entry of one tensor of a client's update or buffers."""
    sent = {**(reply.buffers or {}), **(reply.update or {})}.get(name)
    if sent is None or not sent.numel():
        return 0.0
    entry = float(sent.double().abs().max())
    return math.inf if math.isnan(entry) else entry
