# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Computes SAM's perturbation and GSAM's step direction: arithmetic on gradients, nothing else.

Operations on lists of tensors (``torch._foreach_...``, as torch's optimizers use them) start a few
kernels on a GPU for the whole model, in place of some for each parameter.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.utils import get_total_norm

SMALL = 1e-12
"""Added to a norm, so that a zero gradient is not divided by zero."""


def perturbation(
    gradients: Sequence[torch.Tensor], rho: float, scale: float = 1.0
) -> list[torch.Tensor]:
    r"""SAM's step uphill, :math:`\epsilon = \rho\, g / (\lVert g \rVert + 10^{-12})`.

    Source: Foret et al., ICLR 2021, Eq. 2.

    Args:
        gradients: one tensor per parameter; the norm is over all of them.
        rho: radius, in the unit of the weights.
        scale: factor by which the gradients are too large (loss scaling of mixed precision).

    >>> [round(e, 6) for e in perturbation([torch.tensor([3.0, 4.0])], 0.05)[0].tolist()]
    [0.03, 0.04]
    """
    factor = rho / (get_total_norm(gradients) + SMALL * scale)
    return list(torch._foreach_mul(list(gradients), factor))


def gsam_direction(
    clean: Sequence[torch.Tensor], perturbed: Sequence[torch.Tensor], alpha: float
) -> list[torch.Tensor]:
    r"""GSAM's step direction, :math:`g_p - \alpha g_\perp` (Zhuang et al., ICLR 2022, Algorithm 1).

    :math:`g_\perp = g - \frac{g \cdot g_p}{\lVert g_p \rVert^2} g_p` is the part of the clean
    gradient that is orthogonal to the perturbed one; ``alpha`` 0 is SAM.

    Args:
        clean: g, the gradient at the weights.
        perturbed: g_p, the gradient at the perturbed weights; products are over all tensors as one
            vector.
        alpha: share of the orthogonal part, at least 0.

    >>> clean, perturbed = torch.tensor([3.0, 4.0]), torch.tensor([3.2, 4.6])
    >>> [direction] = gsam_direction([clean], [perturbed], 0.1)
    >>> [round(component, 6) for component in direction.tolist()]
    [3.18535, 4.610191]
    """
    # g . g_p over all tensors.
    products = [(g * g_p).sum() for g, g_p in zip(clean, perturbed, strict=True)]
    product = torch.stack(products).sum()
    # The clean gradient's component along the perturbed one, in units of g_p.
    along = product / (get_total_norm(perturbed).square() + SMALL)

    directions = []
    for g, g_p in zip(clean, perturbed, strict=True):
        orthogonal = g - along * g_p
        directions.append(g_p - alpha * orthogonal)
    return directions
