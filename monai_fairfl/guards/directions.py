# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Angles between updates, for guards that compare directions."""

from __future__ import annotations

import numpy as np

from monai_fairfl.replies import ZERO_NORM, Replies

LEAST_PARAMETERS = 1000
"""Directions of smaller models are alike or opposed by chance, so no guard judges them."""


def is_judged(replies: Replies) -> bool:
    """Whether the model is large enough for a judgement by direction."""
    return sum(replies.geometry.sizes_of_layers.values()) >= LEAST_PARAMETERS


def cosines(gram: np.ndarray) -> np.ndarray:
    """The cosine of each pair of vectors, from their Gram matrix; 0 with a vector of no length.

    Args:
        gram: inner products, shape (..., N, N).

    Returns:
        The same shape.

    >>> cosines(np.array([[4.0, 2.0], [2.0, 4.0]])).round(3).tolist()
    [[1.0, 0.5], [0.5, 1.0]]
    """
    squared_norms = np.diagonal(gram, axis1=-2, axis2=-1)
    norms = np.sqrt(np.maximum(squared_norms, 0.0))
    has_direction = norms > ZERO_NORM
    lengths = np.where(has_direction, norms, 1.0)
    angles = gram / (lengths[..., :, None] * lengths[..., None, :])
    both_have_direction = has_direction[..., :, None] & has_direction[..., None, :]
    return np.clip(np.where(both_have_direction, angles, 0.0), -1.0, 1.0)


def others_of(row: int, count: int) -> np.ndarray:
    """The rows of all other updates."""
    return np.delete(np.arange(count), row)


def medians_of_others(values: np.ndarray, upper: bool = False) -> np.ndarray:
    """The median of all others for each of some values; NaN where one of them is, or none is.

    Args:
        values: shape (N,).
        upper: take the larger one of two middle values, and not their mean.

    >>> medians_of_others(np.array([1.0, 9.0, 2.0])).tolist()
    [5.5, 1.5, 5.0]
    >>> medians_of_others(np.array([1.0, 9.0, 2.0]), upper=True).tolist()
    [9.0, 2.0, 9.0]
    """
    count = len(values)
    if count < 2:
        return np.full(count, np.nan)
    is_other = ~np.eye(count, dtype=bool)
    others = np.broadcast_to(values, (count, count))[is_other].reshape(count, count - 1)
    if upper:
        return np.quantile(others, 0.5, axis=1, method="higher")
    return np.median(others, axis=1)


def pairs_among(rows: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """The entries of a symmetric matrix for all pairs of different ``rows``, each once.

    >>> pairs_among(np.array([0, 2]), np.arange(9.0).reshape(3, 3)).tolist()
    [2.0]
    """
    chosen = matrix[np.ix_(rows, rows)]
    return chosen[np.triu_indices(len(rows), k=1)]
