# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Rewards: a client's next model, better the more it contributed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from monai_fairfl.protocol.replies import Replies
from monai_fairfl.protocol.values import Estimate, Weights
from monai_fairfl.strategies.parts import Details, Reward, check_choice


class Sparsified(Reward):
    r"""CGSV's reward: the global step less its smallest entries (Xu et al., NeurIPS 2021, Eq. 4-5).

    Client i continues from what it had before training plus the :math:`q_i` entries of largest
    magnitude of the global step, :math:`q_i = D \, \tanh(\beta c_i) / \max_j \tanh(\beta c_j)`. It
    keeps its own buffers. The greatest contributor receives the whole step. The global model grows
    by the mean of the updates, whatever models they began from, so that what is withheld from one
    client is not taken from the others.

    Args:
        beta: altruism, above 0: the larger, the more equal the rewards; ``math.inf``: the whole
            step for everybody.
        ratio: ``"tanh"`` as above, or ``"share"``: :math:`\max(c_i, 0) / \max_j c_j`.
        mask_scope: ``"layer"``: the share is kept of every tensor; ``"global"``: of the model as
            one vector.
        rounding: of D times the share: ``"ceil"`` or ``"floor"``.
        leave_one: the authors' code: at most all entries but one of a tensor, even for the greatest
            contributor.
        rest: what stands in the other entries: ``"before"``, what the client had before training
            (CGSV), or ``"own"``, what it trained itself, so that a client that is given nothing
            trains alone (CFFL).

    Details: ``kept``, the share of the step's entries that each client received.
    """

    of_step = True

    def __init__(
        self,
        beta: float = 1.0,
        ratio: str = "tanh",
        mask_scope: str = "layer",
        rounding: str = "ceil",
        leave_one: bool = False,
        rest: str = "before",
    ):
        if not beta > 0:
            raise ValueError(f"Sparsified: beta must be above 0, got {beta!r}")
        check_choice(self, "ratio", ratio, ("tanh", "share"))
        check_choice(self, "mask_scope", mask_scope, ("layer", "global"))
        check_choice(self, "rounding", rounding, ("ceil", "floor"))
        check_choice(self, "rest", rest, ("before", "own"))
        self.beta, self.ratio, self.mask_scope, self.leave_one = beta, ratio, mask_scope, leave_one
        self.rounding, self.rest = rounding, rest

    def __call__(
        self,
        replies: Replies,
        old: Weights,
        new: Weights,
        contributions: Mapping[str, float | Estimate],
    ) -> tuple[dict[str, Weights], Details]:
        return self.share_out(
            replies, old, new, self.ratios({c: float(contributions[c]) for c in replies.clients})
        )

    def ratios(self, contributions: Mapping[str, float]) -> dict[str, float]:
        """Client -> share of the step, in [0, 1]; the largest is 1.

        >>> Sparsified(ratio="share").ratios({"A": 0.2, "B": 0.1, "C": -0.3})
        {'A': 1.0, 'B': 0.5, 'C': 0.0}
        """
        rule = (
            (lambda c: math.tanh(self.beta * c))
            if self.ratio == "tanh" and self.beta < math.inf
            else float
        )
        worth = {client: max(rule(c), 0.0) for client, c in contributions.items()}
        most = max(worth.values())
        if most == 0 or (self.ratio == "tanh" and self.beta == math.inf):
            return dict.fromkeys(worth, 1.0)
        return {client: value / most for client, value in worth.items()}

    def share_out(
        self, replies: Replies, old: Weights, new: Weights, ratios: Mapping[str, float]
    ) -> tuple[dict[str, Weights], Details]:
        """Each client's model for given ``ratios``."""
        names = replies.spec.parameters
        steps = {name: new[name] - old[name] for name in names}
        whole = (
            {"": torch.cat([steps[name].flatten() for name in names])}
            if self.mask_scope == "global"
            else steps
        )
        before = {reply.client: replies.start(reply) for reply in replies}
        models: dict[str, dict[str, torch.Tensor]] = {
            r.client: (
                replies.local(r)
                if self.rest == "own"
                else {**before[r.client], **(r.buffers or {})}
            )
            for r in replies
        }
        kept, total = dict.fromkeys(replies.clients, 0), sum(
            step.numel() for step in steps.values()
        )
        for key, step in whole.items():
            masks = keep_largest(
                step, [self._count(ratios[client], step.numel()) for client in replies.clients]
            )
            for client, mask in zip(replies.clients, masks, strict=True):
                kept[client] += int(mask.sum())
                parts = [key] if key else list(names)
                split = [mask] if key else mask.split([steps[name].numel() for name in parts])
                for name, part in zip(parts, split, strict=True):
                    grown = before[client][name] + steps[name]
                    models[client][name] = torch.where(
                        part.view(grown.shape), grown, models[client][name]
                    )
        return dict(models), {"kept": {client: count / total for client, count in kept.items()}}

    def _count(self, ratio: float, size: int) -> int:
        exact = round(ratio * size, 9)  # 0.3 * 10 is a little above 3 in floating point
        count = math.ceil(exact) if self.rounding == "ceil" else math.floor(exact)
        return min(max(count, 0), size - self.leave_one)


class Mixed(Reward):
    r"""ShapFed's reward: :math:`\gamma_i w_s + (1 - \gamma_i) w_i` (Tastan et al., IJCAI 2024, Eq.
    10).

    The more a client contributed, the closer it comes to the global model :math:`w_s`; the rest is
    its own.

    Args:
        scale: ``"none"``: the contribution itself, in [0, 1]; ``"max"``: divided by the largest, so
            that the greatest contributor receives the global model.

    Details: ``mixing``, the coefficient of each client.
    """

    def __init__(self, scale: str = "none"):
        check_choice(self, "scale", scale, ("none", "max"))
        self.scale = scale

    def __call__(
        self,
        replies: Replies,
        old: Weights,
        new: Weights,
        contributions: Mapping[str, float | Estimate],
    ) -> tuple[dict[str, Weights], Details]:
        gamma = {
            client: min(max(float(contributions[client]), 0.0), 1.0) for client in replies.clients
        }
        most = max(gamma.values())
        if self.scale == "max" and most > 0:
            gamma = {client: value / most for client, value in gamma.items()}
        models: dict[str, Weights] = {}
        for reply in replies:
            local, share = replies.local(reply), gamma[reply.client]
            models[reply.client] = {
                name: (
                    torch.lerp(local[name], tensor, share)
                    if tensor.is_floating_point()
                    else local[name]
                )
                for name, tensor in new.items()
                if name in local  # else it never leaves the client
            }
        return models, {"mixing": gamma}


def keep_largest(values: torch.Tensor, counts: Sequence[int]) -> list[torch.Tensor]:
    """Masks of the ``counts[i]`` entries of largest magnitude, all from one partition; ties go to
    the lower index.

    Args:
        values: any shape.
        counts: entries to keep, each in 0..size.

    >>> keep_largest(torch.tensor([1.0, -3.0, 2.0]), [2, 0])
    [tensor([False,  True,  True]), tensor([False, False, False])]
    """
    magnitude = values.detach().abs().cpu().numpy().reshape(-1)
    size = magnitude.size
    inner = sorted({size - count for count in counts if 0 < count < size})
    ordered = np.partition(magnitude, inner) if inner else magnitude
    masks = []
    for count in counts:
        if not 0 < count < size:
            mask = np.full(size, count >= size)
        else:
            threshold = ordered[size - count]
            mask = magnitude > threshold
            mask[np.flatnonzero(magnitude == threshold)[: count - int(mask.sum())]] = True
        masks.append(torch.from_numpy(mask).view(values.shape))
    return masks
