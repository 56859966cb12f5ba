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
from monai_fairfl.strategies.arguments import check_choice
from monai_fairfl.strategies.parts import Details, Reward
from monai_fairfl.strategies.quantities import Quantity


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
        mask_scope: ``"layer"``: a share of every tensor; ``"global"``: of the model as one vector.
        rounding: of D times the share: ``"ceil"`` or ``"floor"``.
        leave_one: the authors' code: at most all entries but one of a tensor, even for the greatest
            contributor.
        rest: the other entries: ``"before"``, what the client had before training (CGSV), or
            ``"own"``, what it trained itself, so that a client that receives nothing trains alone
            (CFFL).

    Details: ``kept``, the share of the step's entries that each client received.
    """

    shares_global_step = True
    quantities = {
        "kept": Quantity(
            "Share of the step received",
            "Share",
            "How much of the global step each site's reward holds, from 0 to 1: all.",
        ),
    }

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
        self.beta = beta
        self.ratio = ratio
        self.mask_scope = mask_scope
        self.rounding = rounding
        self.leave_one = leave_one
        self.rest = rest

    def __call__(
        self,
        replies: Replies,
        old: Weights,
        new: Weights,
        contributions: Mapping[str, float | Estimate],
    ) -> tuple[dict[str, Weights], Details]:
        present = {client: float(contributions[client]) for client in replies.clients}
        return self.share_out(replies, old, new, self.ratios(present))

    def ratios(self, contributions: Mapping[str, float]) -> dict[str, float]:
        """Client -> share of the step, in [0, 1]; the largest is 1.

        >>> Sparsified(ratio="share").ratios({"A": 0.2, "B": 0.1, "C": -0.3})
        {'A': 1.0, 'B': 0.5, 'C': 0.0}
        """
        if self.ratio == "tanh" and self.beta == math.inf:
            return dict.fromkeys(contributions, 1.0)
        worth = {}
        for client, contribution in contributions.items():
            value = float(contribution)
            if self.ratio == "tanh":
                value = math.tanh(self.beta * contribution)
            worth[client] = max(value, 0.0)
        largest = max(worth.values())
        if largest == 0:
            return dict.fromkeys(worth, 1.0)
        return {client: value / largest for client, value in worth.items()}

    def share_out(
        self, replies: Replies, old: Weights, new: Weights, ratios: Mapping[str, float]
    ) -> tuple[dict[str, Weights], Details]:
        """Each client's model for given ``ratios``, and its share of the step's entries.

        Args:
            replies: of the exchange that trained.
            old: the previous global model.
            new: the next global model; ``new - old`` is the step that is shared out.
            ratios: client -> share of the step's entries that it receives, in [0, 1].
        """
        names = replies.spec.parameters
        steps = {name: new[name] - old[name] for name in names}
        starts = {reply.client: replies.start(reply) for reply in replies}

        # Without any entry of the step, a client has what `rest` names.
        models: dict[str, dict[str, torch.Tensor]] = {}
        for reply in replies:
            if self.rest == "own":
                models[reply.client] = replies.local(reply)
            else:
                models[reply.client] = {**starts[reply.client], **(reply.buffers or {})}

        # The largest entries are chosen in each tensor, or in all as one vector.
        if self.mask_scope == "global":
            groups = [list(names)]
        else:
            groups = [[name] for name in names]

        received = dict.fromkeys(replies.clients, 0)
        for group in groups:
            step = torch.cat([steps[name].flatten() for name in group])
            sizes = [steps[name].numel() for name in group]
            counts = [self._count(ratios[client], step.numel()) for client in replies.clients]
            masks = keep_largest(step, counts)
            for client, mask in zip(replies.clients, masks, strict=True):
                received[client] += int(mask.sum())
                # In the chosen entries the client's start moves by the step.
                for name, part in zip(group, mask.split(sizes), strict=True):
                    moved = starts[client][name] + steps[name]
                    chosen = part.view(moved.shape)
                    models[client][name] = torch.where(chosen, moved, models[client][name])

        total = sum(step.numel() for step in steps.values())
        shares = {client: count / total for client, count in received.items()}
        return dict(models), {"kept": shares}

    def _count(self, ratio: float, size: int) -> int:
        """q_i: how many of ``size`` entries a client receives (Eq. 4-5)."""
        # Rounded, as 0.3 * 10 is a little above 3 in floating point.
        exact = round(ratio * size, 9)
        count = math.ceil(exact) if self.rounding == "ceil" else math.floor(exact)
        most = size - 1 if self.leave_one else size
        return min(max(count, 0), most)


class Mixed(Reward):
    r"""ShapFed's reward, a mixture of two models (Tastan et al., IJCAI 2024, Eq. 10).

    .. math:: \bar w_i = \gamma_i w_s + (1 - \gamma_i) w_i

    The more a client contributed, the closer it comes to the global model :math:`w_s`; the rest is
    its own.

    Args:
        scale: ``"none"``: the contribution itself, in [0, 1]; ``"max"``: divided by the largest, so
            that the greatest contributor receives the global model.

    Details: ``mixing``, the coefficient of each client.
    """

    quantities = {
        "mixing": Quantity(
            "Share of the global model",
            "Share",
            "Each site's next model: 1 is the global model, 0 the one it trained.",
        ),
    }

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
        mixing = self._mixing(replies, contributions)
        models: dict[str, Weights] = {}
        for reply in replies:
            local = replies.local(reply)
            model: dict[str, torch.Tensor] = {}
            for name, tensor in new.items():
                # A tensor that the client does not send stays with it, and a counter is its own.
                if name not in local:
                    continue
                if tensor.is_floating_point():
                    model[name] = torch.lerp(local[name], tensor, mixing[reply.client])
                else:
                    model[name] = local[name]
            models[reply.client] = model
        return models, {"mixing": mixing}

    def _mixing(
        self, replies: Replies, contributions: Mapping[str, float | Estimate]
    ) -> dict[str, float]:
        """The coefficient gamma_i of each client, in [0, 1]."""
        gamma = {}
        for client in replies.clients:
            gamma[client] = min(max(float(contributions[client]), 0.0), 1.0)
        largest = max(gamma.values())
        if self.scale == "max" and largest > 0:
            return {client: value / largest for client, value in gamma.items()}
        return gamma


def keep_largest(values: torch.Tensor, counts: Sequence[int]) -> list[torch.Tensor]:
    """Masks of the ``counts[i]`` entries of largest magnitude; ties go to the lower index.

    One partition of the values serves all masks.

    Args:
        values: any shape.
        counts: entries that each mask chooses, 0..size.

    >>> keep_largest(torch.tensor([1.0, -3.0, 2.0]), [2, 0])
    [tensor([False,  True,  True]), tensor([False, False, False])]
    """
    # NumPy has no bfloat16. Float32 holds every half-precision number exactly.
    if values.dtype in (torch.bfloat16, torch.float16):
        values = values.float()
    magnitudes = values.detach().abs().cpu().numpy().reshape(-1)
    size = magnitudes.size

    # After the partition, the smallest chosen entry of each mask is at its place in the order.
    places = sorted({size - count for count in counts if 0 < count < size})
    ordered = np.partition(magnitudes, places) if places else magnitudes

    masks = []
    for count in counts:
        if count <= 0:
            mask = np.zeros(size, dtype=bool)
        elif count >= size:
            mask = np.ones(size, dtype=bool)
        else:
            smallest = ordered[size - count]
            mask = magnitudes > smallest
            ties = np.flatnonzero(magnitudes == smallest)
            mask[ties[: count - int(mask.sum())]] = True
        masks.append(torch.from_numpy(mask).view(values.shape))
    return masks
