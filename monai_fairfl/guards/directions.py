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
    return replies.matrix.width >= LEAST_PARAMETERS


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


def medians_of_others(values: np.ndarray) -> np.ndarray:
    """For each of two values or more, the median of all others; NaN if one of these is.

    >>> medians_of_others(np.array([1.0, 9.0, 2.0, 4.0])).tolist()
    [4.0, 2.0, 4.0, 2.0]
    """
    order = np.argsort(values, kind="stable")
    in_order = values[order]
    ranks = np.empty(len(values), int)
    ranks[order] = np.arange(len(values))
    # The two middle places among the others, which are one where their number is odd. From its own
    # rank on, a value's others are one place later.
    lower = (len(values) - 2) // 2
    upper = (len(values) - 1) // 2
    medians = (in_order[lower + (ranks <= lower)] + in_order[upper + (ranks <= upper)]) / 2
    is_nan = np.isnan(values)
    return np.where(is_nan.sum() > is_nan, np.nan, medians)


def pairs_among(rows: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """The entries of a symmetric matrix for all pairs of different ``rows``, each once.

    >>> pairs_among(np.array([0, 2]), np.arange(9.0).reshape(3, 3)).tolist()
    [2.0]
    """
    chosen = matrix[np.ix_(rows, rows)]
    return chosen[np.triu_indices(len(rows), k=1)]
