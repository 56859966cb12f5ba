# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
r"""Computes centred kernel alignment: how alike two sets of features of the same samples are.

Source: Kornblith et al., ICML 2019. With features U (n x z) and V, the linear kernel's Gram
matrices K = U Uᵀ and L = V Vᵀ, and H = I - 11ᵀ/n:

.. math::

    \mathrm{CKA} =
    \frac{\mathrm{HSIC}(K, L)}{\sqrt{\mathrm{HSIC}(K, K)\,\mathrm{HSIC}(L, L)}}, \qquad
    \mathrm{HSIC}(K, L) = \frac{\langle HKH, HLH \rangle}{(n - 1)^2}

The functions here take *centred* Gram matrices HKH, which :func:`centred_gram` makes exactly and in
little memory. Features that do not vary between samples have the Gram matrix zero: alike (1) when
neither varies, else 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

LEAST_IMAGES = 4
"""Different images that CKA needs: of two the biased estimate is 1 whatever the models are, and the
unbiased estimate needs four.
"""

COLUMNS = 16384
"""Features that are in float64 at once."""

PRODUCT_COLUMNS = 4096
"""Features multiplied at once, in their own type: the sum of such float32 products is wrong by
1e-7, one product over millions of features by 1e-3.
"""

ROUNDING = 1e-12
"""Share of the features' squares below which their variance between samples is rounding error."""


def cka_of_grams(first: torch.Tensor, second: torch.Tensor) -> float:
    """Biased CKA of two centred Gram matrices (n, n), in [0, 1].

    Source: Fed-LWR, MICCAI 2024, Eq. 2.
    """
    return _ratio(hsic(first, second), hsic(first, first), hsic(second, second))


def minibatch_cka(first: torch.Tensor, second: torch.Tensor, batch: int = 8) -> float:
    r"""Unbiased CKA over batches: a ratio of sums of HSIC_1 (Nguyen et al., ICLR 2021, Eq. 2).

    It can be negative or above 1. A last batch of fewer than 4 samples is dropped.

    Args:
        first: Gram matrix (n, n) of all samples, centred or not; the blocks of ``batch`` samples on
            its diagonal count.
        second: the same of the other features.
        batch: samples per batch, at least 4; n for the unbiased estimator over all samples.
    """
    if batch < 4 or len(first) < 4:
        raise ValueError(
            f"the unbiased CKA needs batches of at least 4 samples, got {min(batch, len(first))}"
        )
    cross = []
    first_alone = []
    second_alone = []
    for begin in range(0, len(first), batch):
        if len(first) - begin < 4:
            break
        block = slice(begin, begin + batch)
        k = first[block, block]
        v = second[block, block]
        cross.append(hsic_unbiased(k, v))
        first_alone.append(hsic_unbiased(k, k))
        second_alone.append(hsic_unbiased(v, v))
    return _ratio(_total(cross), _total(first_alone), _total(second_alone))


def centred_gram(features: torch.Tensor) -> torch.Tensor:
    """The Gram matrix (n, n) of features (n, z) less their mean over samples, in float64.

    It is computed in blocks of columns, whose products are in the features' own type and whose sum
    is in float64. Of float32 features it is wrong by about 1e-7 of its norm. Sums of the Gram
    matrices of some columns are the Gram matrix of all, so that features may come piece by piece.

    >>> centred_gram(torch.tensor([[1.0], [3.0]])).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    n = len(features)
    total = torch.zeros(n, n, dtype=torch.float64, device=features.device)
    first = features[:1]
    for block, first_block in zip(
        features.split(PRODUCT_COLUMNS, dim=1), first.split(PRODUCT_COLUMNS, dim=1), strict=True
    ):
        # Without what all samples have in common: a small variation of large features loses no
        # digits.
        differences = block - first_block
        total += differences @ differences.T

    squares = n * _squares(first) + total.trace()
    centred = total - total.mean(0) - total.mean(1, keepdim=True) + total.mean()
    # No question in between: a GPU would be waited for.
    is_constant = centred.trace() <= ROUNDING * squares
    return torch.where(is_constant, torch.zeros_like(total), centred)


def _squares(features: torch.Tensor) -> torch.Tensor:
    """The sum of squares, in float64: in float32 those of a diverged model would be infinite."""
    return torch.linalg.vector_norm(features, dtype=torch.float64).square()


def hsic(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The biased Hilbert-Schmidt independence criterion of two centred Gram matrices.

    It is <K, L> / (n - 1)^2.
    """
    return (first * second).sum() / (len(first) - 1) ** 2


def hsic_unbiased(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    r"""The unbiased criterion HSIC_1 of Gram matrices (n, n), n at least 4.

    Source: Song et al., JMLR 2012, Eq. 5. With the diagonals of K and L set to zero,

    .. math:: \frac{1}{n (n - 3)} \Bigl[\mathrm{tr}(KL) + \frac{1^T K 1\; 1^T L 1}{(n - 1)(n - 2)}
        - \frac{2}{n - 2} 1^T K L 1\Bigr]

    Centring the features first does not change it.
    """
    n = len(first)
    k = _without_diagonal(first)
    v = _without_diagonal(second)  # L

    # The three terms in the brackets; K and L are symmetric.
    trace = (k * v).sum()
    product_of_sums = k.sum() * v.sum() / ((n - 1) * (n - 2))
    product_of_rows = 2 / (n - 2) * (k.sum(0) @ v.sum(0))
    return (trace + (product_of_sums - product_of_rows)) / (n * (n - 3))


def _without_diagonal(gram: torch.Tensor) -> torch.Tensor:
    return gram - torch.diag(torch.diagonal(gram))


def _ratio(cross: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> float:
    """cross / sqrt(first second); 1 where neither varies, 0 where one does not."""
    if bool(cross.isnan()) or (first > 0 and second > 0):
        return float(cross / (first.sqrt() * second.sqrt()))
    neither_varies = bool(first == 0 and second == 0)
    return float(neither_varies)


def _total(values: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack(list(values)).sum()
