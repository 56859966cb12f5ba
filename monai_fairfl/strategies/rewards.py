# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Rewards: a client's next model, better the more it contributed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from monai_fairfl.messages import Estimate, Reply, Weights
from monai_fairfl.replies import Replies
from monai_fairfl.strategies.arguments import check_choice, check_numbers
from monai_fairfl.strategies.parts import Details, Reward, contributions_of_present
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
        ratio: the formula of a client's ratio :math:`q_i / D`: ``"tanh"`` as above, or ``"share"``:
            :math:`\max(c_i, 0) / \max_j c_j`.
        mask_scope: what the mask, and so D, extends over: ``"layer"``: each tensor by itself;
            ``"global"``: the model as one vector.
        rounding: of :math:`q_i` to a whole number: ``"ceil"`` or ``"floor"``.
        leave_one: the authors' code: :math:`q_i` is at most D - 1, even for the greatest
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
        check_numbers(self, beta=beta)
        if not beta > 0:
            raise ValueError(f"Sparsified: beta must be above 0, got {beta!r}")
        check_choice(self, "ratio", ratio, ("tanh", "share"))
        check_choice(self, "mask_scope", mask_scope, ("layer", "global"))
        check_choice(self, "rounding", rounding, ("ceil", "floor"))
        check_choice(self, "rest", rest, ("before", "own"))
        check_choice(self, "leave_one", leave_one, (True, False))
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
        present = contributions_of_present(self, replies, contributions)
        return self.share_out(replies, old, new, self.ratios(present))

    def ratios(self, contributions: Mapping[str, float]) -> dict[str, float]:
        r"""Client -> ratio :math:`q_i / D` before rounding, in [0, 1]; the largest is 1.

        Where no contribution is above 0, every ratio is 1.

        >>> Sparsified(ratio="share").ratios({"A": 0.2, "B": 0.1, "C": -0.3})
        {'A': 1.0, 'B': 0.5, 'C': 0.0}
        """
        if self.ratio == "tanh" and self.beta == math.inf:
            return dict.fromkeys(contributions, 1.0)
        # The numerators of the formula, where a contribution below 0 counts as 0.
        numerators = {}
        for client, contribution in contributions.items():
            numerator = float(contribution)
            if self.ratio == "tanh":
                numerator = math.tanh(self.beta * contribution)
            numerators[client] = max(numerator, 0.0)

        largest = max(numerators.values())
        if largest == 0:
            return dict.fromkeys(numerators, 1.0)
        return {client: numerator / largest for client, numerator in numerators.items()}

    def share_out(
        self, replies: Replies, old: Weights, new: Weights, ratios: Mapping[str, float]
    ) -> tuple[dict[str, Weights], Details]:
        """Each client's model for given ``ratios``, and its share of the step's entries.

        Args:
            replies: of the exchange that trained.
            old: the previous global model.
            new: the next global model; ``new - old`` is the step that is shared out.
            ratios: client -> :math:`q_i / D` before rounding, in [0, 1].
        """
        names = replies.spec.parameters
        step = {name: new[name] - old[name] for name in names}
        models = {reply.client: self._without_step(replies, reply) for reply in replies}

        # The masks choose in each tensor by itself, or in all tensors as one vector.
        if self.mask_scope == "global":
            scopes = [list(names)]
        else:
            scopes = [[name] for name in names]

        received = dict.fromkeys(replies.clients, 0)
        for scope in scopes:
            masks = self._masks({name: step[name] for name in scope}, ratios, replies.clients)
            scope_size = sum(step[name].numel() for name in scope)
            for reply in replies:
                received[reply.client] += self._count(ratios[reply.client], scope_size)
                start = replies.start(reply)
                model = models[reply.client]
                for name, mask in masks[reply.client].items():
                    # In the chosen entries, the client continues from its start plus the step.
                    model[name] = torch.where(mask, start[name] + step[name], model[name])

        size = sum(tensor.numel() for tensor in step.values())
        shares = {client: count / size for client, count in received.items()}
        return dict(models), {"kept": shares}

    def _without_step(self, replies: Replies, reply: Reply) -> dict[str, torch.Tensor]:
        """The client's next model where it receives no entry of the step: what `rest` names."""
        if self.rest == "own":
            return replies.local(reply)
        return {**replies.start(reply), **(reply.buffers or {})}

    def _masks(
        self, step: Weights, ratios: Mapping[str, float], clients: Sequence[str]
    ) -> dict[str, dict[str, torch.Tensor]]:
        """Client -> tensor's name -> mask of its entries that the client receives (Eq. 4-5).

        Args:
            step: the tensors of one scope; D is the number of their entries.
            ratios: client -> :math:`q_i / D` before rounding.
            clients: those to make masks for.
        """
        vector = torch.cat([tensor.flatten() for tensor in step.values()])
        sizes = [tensor.numel() for tensor in step.values()]

        # q_i, and the mask of the q_i entries of largest magnitude.
        counts = [self._count(ratios[client], vector.numel()) for client in clients]
        vector_masks = keep_largest(vector, counts)

        # Each mask is cut back into the shapes of the tensors.
        masks: dict[str, dict[str, torch.Tensor]] = {}
        for client, vector_mask in zip(clients, vector_masks, strict=True):
            masks[client] = {}
            for name, part in zip(step, vector_mask.split(sizes), strict=True):
                masks[client][name] = part.view(step[name].shape)
        return masks

    def _count(self, ratio: float, size: int) -> int:
        """q_i: how many of ``size`` entries a client receives (Eq. 4-5)."""
        # Rounded first, as 0.3 * 10 is a little above 3 in floating point.
        exact = round(ratio * size, 9)
        count = math.ceil(exact) if self.rounding == "ceil" else math.floor(exact)
        most = size - 1 if self.leave_one else size
        return max(min(count, most), 0)


class Mixed(Reward):
    r"""ShapFed's reward, a mixture of two models (Tastan et al., IJCAI 2024, Eq. 10).

    .. math:: \bar w_i = \gamma_i w_s + (1 - \gamma_i) w_i

    The more a client contributed, the closer it comes to the global model :math:`w_s`; the rest is
    its own.

    Args:
        scale: ``"none"``: the contribution itself, in [0, 1]; ``"max"``: divided by the largest, so
            that the greatest contributor receives the global model.

    Details: ``mixing``, the coefficient of each client.

    >>> import torch
    >>> from monai_fairfl.messages import ModelSpec, Reply, Request
    >>> from monai_fairfl.replies import Replies
    >>> old, new = {"w": torch.zeros(1)}, {"w": torch.tensor([5.0])}
    >>> asked = [Request("A", "train", old, id=0), Request("B", "train", old, id=1)]
    >>> update = {"w": torch.tensor([2.0])}
    >>> sent = [Reply("A", update, 10, id=0), Reply("B", update, 10, id=1)]
    >>> replies = Replies(sent, asked, ModelSpec(("w",)))
    >>> models, details = Mixed()(replies, old, new, {"A": 1.0, "B": 0.25})
    >>> models["A"]["w"].item(), models["B"]["w"].item(), details["mixing"]
    (5.0, 2.75, {'A': 1.0, 'B': 0.25})
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
                    mixed = torch.lerp(local[name], tensor, mixing[reply.client])
                    # A constant of -inf, such as an attention mask, stays what it is.
                    model[name] = torch.where(tensor.isfinite(), mixed, tensor)
                else:
                    model[name] = local[name]
            models[reply.client] = model
        return models, {"mixing": mixing}

    def _mixing(
        self, replies: Replies, contributions: Mapping[str, float | Estimate]
    ) -> dict[str, float]:
        """The coefficient gamma_i of each client, in [0, 1]."""
        gamma = {}
        for client, value in contributions_of_present(self, replies, contributions).items():
            gamma[client] = min(max(value, 0.0), 1.0)
        largest = max(gamma.values())
        if self.scale == "max" and largest > 0:
            return {client: value / largest for client, value in gamma.items()}
        return gamma


def keep_largest(values: torch.Tensor, counts: Sequence[int]) -> list[torch.Tensor]:
    """Masks of the ``counts[i]`` entries of largest magnitude; ties go to the lower index.

    One sort of the values serves all masks. NumPy sorts by a processor's vectors, in less time than
    it takes to find several places of the order.

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

    # In ascending order, the smallest of the `count` largest has the index size - count.
    ordered = magnitudes
    if any(0 < count < size for count in counts):
        ordered = np.sort(magnitudes)

    masks = []
    for count in counts:
        if count <= 0:
            mask = np.zeros(size, dtype=bool)
        elif count >= size:
            mask = np.ones(size, dtype=bool)
        else:
            smallest = ordered[size - count]
            mask = magnitudes >= smallest
            # Of the entries equal to the smallest, those too many; higher indices first.
            surplus = np.count_nonzero(mask) - count
            if surplus > 0:
                ties = np.flatnonzero(magnitudes == smallest)
                mask[ties[-surplus:]] = False
        masks.append(torch.from_numpy(mask).view(values.shape))
    return masks
