# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Rewards: a client's next model, better the more it contributed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from monai_fairfl.messages import Weights
from monai_fairfl.replies import Replies
from monai_fairfl.strategies.parts import Details, Reward
from monai_fairfl.utils.arguments import argument


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

    beta: float = argument(1.0, "(0, inf]")
    ratio: str = argument("tanh", ("tanh", "share"))
    mask_scope: str = argument("layer", ("layer", "global"))
    rounding: str = argument("ceil", ("ceil", "floor"))
    leave_one: bool = False
    rest: str = argument("before", ("before", "own"))

    gives = frozenset({"kept"})
    shares_global_step = True

    def __call__(
        self, replies: Replies, old: Weights, new: Weights, contributions: np.ndarray
    ) -> tuple[dict[str, Weights], Details]:
        names = replies.spec.parameters
        step = {name: new[name] - old[name] for name in names}
        # Each client's next model where it receives no entry of the step.
        models: list[dict[str, torch.Tensor]] = []
        for reply in replies:
            if self.rest == "own":
                models.append(replies.local(reply))
            else:
                models.append({**replies.start(reply), **(reply.buffers or {})})

        # The masks choose in each tensor by itself, or in all tensors as one vector.
        ratios = self.ratios(contributions)
        scopes = [list(names)] if self.mask_scope == "global" else [[name] for name in names]
        received = np.zeros(len(replies))
        for scope in scopes:
            vector = torch.cat([step[name].flatten() for name in scope])
            sizes = [step[name].numel() for name in scope]
            counts = [self._count(ratio, vector.numel()) for ratio in ratios]
            received += counts
            masks = keep_largest(vector, counts)
            for reply, model, mask in zip(replies, models, masks, strict=True):
                start = replies.start(reply)
                for name, part in zip(scope, mask.split(sizes), strict=True):
                    # In the chosen entries, the client continues from its start plus the step.
                    moved = start[name] + step[name]
                    model[name] = torch.where(part.view(moved.shape), moved, model[name])

        size = sum(tensor.numel() for tensor in step.values())
        return dict(zip(replies.clients, models, strict=True)), {"kept": received / size}

    def ratios(self, contributions: np.ndarray) -> np.ndarray:
        r"""Each client's ratio :math:`q_i / D` before rounding, in [0, 1]; the largest is 1.

        Where no contribution is above 0, every ratio is 1.

        >>> import numpy as np
        >>> Sparsified(ratio="share").ratios(np.array([0.2, 0.1, -0.3])).tolist()
        [1.0, 0.5, 0.0]
        """
        if self.ratio == "tanh" and self.beta == math.inf:
            return np.ones(len(contributions))
        # The numerators of the formula, where a contribution below 0 counts as 0.
        numerators = np.maximum(contributions, 0.0)
        if self.ratio == "tanh":
            numerators = np.tanh(self.beta * numerators)
        largest = numerators.max()
        return numerators / largest if largest > 0 else np.ones(len(numerators))

    def _count(self, ratio: float, size: int) -> int:
        """q_i: how many of ``size`` entries a client receives (Eq. 4-5)."""
        # Rounded first, as 0.3 * 10 is a little above 3 in floating point.
        exact = round(float(ratio) * size, 9)
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

    >>> import numpy as np
    >>> import torch
    >>> from monai_fairfl.messages import ModelSpec, Reply, Request
    >>> from monai_fairfl.replies import Replies
    >>> old, new = {"w": torch.zeros(1)}, {"w": torch.tensor([5.0])}
    >>> asked = [Request("A", "train", old, id=0), Request("B", "train", old, id=1)]
    >>> update = {"w": torch.tensor([2.0])}
    >>> sent = [Reply("A", update, 10, id=0), Reply("B", update, 10, id=1)]
    >>> replies = Replies(sent, asked, ModelSpec(("w",)))
    >>> models, details = Mixed()(replies, old, new, np.array([1.0, 0.25]))
    >>> models["A"]["w"].item(), models["B"]["w"].item(), details["mixing"].tolist()
    (5.0, 2.75, [1.0, 0.25])
    """

    scale: str = argument("none", ("none", "max"))

    gives = frozenset({"mixing"})

    def __call__(
        self, replies: Replies, old: Weights, new: Weights, contributions: np.ndarray
    ) -> tuple[dict[str, Weights], Details]:
        # The coefficients gamma_i, in [0, 1].
        mixing = np.clip(contributions, 0.0, 1.0)
        if self.scale == "max" and mixing.max() > 0:
            mixing = mixing / mixing.max()
        models: dict[str, Weights] = {}
        for reply, gamma in zip(replies, mixing.tolist(), strict=True):
            local = replies.local(reply)
            model: dict[str, torch.Tensor] = {}
            for name, tensor in new.items():
                # A tensor that the client does not send stays with it, and a counter is its own.
                if name not in local:
                    continue
                model[name] = local[name]
                if tensor.is_floating_point():
                    mixed = torch.lerp(local[name], tensor, gamma)
                    # A constant of -inf, such as an attention mask, stays what it is.
                    model[name] = torch.where(tensor.isfinite(), mixed, tensor)
            models[reply.client] = model
        return models, {"mixing": mixing}


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
