# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
r"""Centred kernel alignment: how alike two sets of features of the same samples are (Kornblith et
al., ICML 2019).

With features U (n x z) and V, the linear kernel's Gram matrices K = U Uᵀ and L = V Vᵀ, and H = I -
11ᵀ/n:

.. math:: \mathrm{CKA} = \frac{\mathrm{HSIC}(K, L)}{\sqrt{\mathrm{HSIC}(K, K)\,\mathrm{HSIC}(L, L)}}, \qquad
    \mathrm{HSIC}(K, L) = \frac{\langle HKH, HLH \rangle}{(n - 1)^2}

The functions here take *centred* Gram matrices HKH, which :func:`centred_gram` makes exactly and in
little memory. Features that do not vary between samples have the Gram matrix zero: alike (1) when
neither varies, else 0.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

LEAST_IMAGES = 4
"""Of different ones: the biased estimate of two images is 1 whatever the models, the unbiased one
needs four.
"""

COLUMNS = 16384  # features multiplied at once, in float64: one float32 product over millions is wrong by 1e-3


def cka(first: torch.Tensor, second: torch.Tensor) -> float:
    """Linear CKA of two feature matrices, the biased estimator, in [0, 1] (Fed-LWR, MICCAI 2024,
    Eq. 2).

    Computed over samples (n x n) or over features (z x z), whichever is the smaller; both are
    exact.

    Args:
        first: (n, z), one row per sample, n at least 2.
        second: (n, any number of features), the same samples.

    >>> features = torch.tensor([[1.0, 2.0], [0.0, 1.0], [2.0, 0.0]])
    >>> round(cka(features, 3 * features), 6)
    1.0
    """
    _check(first, second)
    if max(first.shape[1], second.shape[1]) >= len(first):
        return cka_of_grams(centred_gram(first), centred_gram(second))
    one, two = _centred(first), _centred(second)
    return _ratio(
        (two.T @ one).square().sum(), (one.T @ one).square().sum(), (two.T @ two).square().sum()
    )


def cka_of_grams(first: torch.Tensor, second: torch.Tensor) -> float:
    """Biased CKA of two centred Gram matrices (n, n)."""
    return _ratio(hsic(first, second), hsic(first, first), hsic(second, second))


def minibatch_cka(first: torch.Tensor, second: torch.Tensor, batch: int = 8) -> float:
    r"""Unbiased CKA, accumulated over batches (Nguyen et al., ICLR 2021, Eq. 2): a ratio of sums of
    HSIC_1.

    It can be negative or above 1. What is left over with fewer than 4 samples is dropped.

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
    blocks = [slice(i, i + batch) for i in range(0, len(first), batch) if len(first) - i >= 4]
    pairs = [(first[b, b], second[b, b]) for b in blocks]
    return _ratio(
        _total(hsic_unbiased(k, v) for k, v in pairs),
        _total(hsic_unbiased(k, k) for k, _ in pairs),
        _total(hsic_unbiased(v, v) for _, v in pairs),
    )


def centred_gram(features: torch.Tensor) -> torch.Tensor:
    """The Gram matrix (n, n) of features (n, z) less their mean over samples, float64, in blocks of
    columns.

    Sums of the Gram matrices of some columns are the Gram matrix of all, so that features may come
    piece by piece.

    >>> centred_gram(torch.tensor([[1.0], [3.0]])).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    total = torch.zeros(len(features), len(features), dtype=torch.float64, device=features.device)
    for block in features.split(COLUMNS, dim=1):
        centred = _centred(block)
        total += centred @ centred.T
    return total


def hsic(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    r"""The biased Hilbert-Schmidt independence criterion of two centred Gram matrices, <K, L> / (n
    - 1)^2.
    """
    return (first * second).sum() / (len(first) - 1) ** 2


def hsic_unbiased(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    r"""The unbiased criterion HSIC_1 (Song et al., JMLR 2012, Eq. 5), of Gram matrices (n, n), n at
    least 4.

    With the diagonals of K and L set to zero,

    .. math:: \frac{1}{n (n - 3)} \Bigl[\mathrm{tr}(KL) + \frac{1^T K 1\; 1^T L 1}{(n - 1)(n - 2)}
        - \frac{2}{n - 2} 1^T K L 1\Bigr]

    Centring the features first does not change it.
    """
    n = len(first)
    k, v = (gram - torch.diag(torch.diagonal(gram)) for gram in (first, second))
    sums = k.sum() * v.sum() / ((n - 1) * (n - 2)) - 2 / (n - 2) * (k.sum(0) @ v.sum(0))
    return ((k * v).sum() + sums) / (n * (n - 3))


def _centred(features: torch.Tensor) -> torch.Tensor:
    """Features less their mean, float64; exactly zero where only rounding makes them differ between
    samples.
    """
    features = features.double()
    centred = features - features.mean(0)
    return (
        torch.zeros_like(centred)
        if centred.square().sum() <= 1e-12 * features.square().sum()
        else centred
    )


def _ratio(cross: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> float:
    """cross / sqrt(first second); 1 where neither varies, 0 where one does not."""
    if bool(cross.isnan()) or (first > 0 and second > 0):
        return float(cross / (first.sqrt() * second.sqrt()))
    return 1.0 if first == 0 and second == 0 else 0.0


def _total(values: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.stack(list(values)).sum()


def _check(first: torch.Tensor, second: torch.Tensor) -> None:
    if first.ndim != 2 or second.ndim != 2 or len(first) != len(second) or len(first) < 2:
        raise ValueError(
            "CKA compares features (samples, features) of the same two or more samples, "
            f"got shapes {tuple(first.shape)} and {tuple(second.shape)}"
        )
