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


def middles_of_others(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each of two values or more, the two middle ones of all others; NaN if one of these is.

    Where the number of the others is odd, both are their median.

    >>> lower, upper = middles_of_others(np.array([1.0, 9.0, 2.0, 4.0]))
    >>> lower.tolist(), upper.tolist()
    ([4.0, 2.0, 4.0, 2.0], [4.0, 2.0, 4.0, 2.0])
    """
    order = np.argsort(values, kind="stable")
    ranks = np.argsort(order, kind="stable")
    is_nan = np.isnan(values)
    among_nan = is_nan.sum() > is_nan
    middles = []
    for place in ((len(values) - 2) // 2, (len(values) - 1) // 2):
        # From its own rank on, a value's others are one place later.
        found = values[order][place + (ranks <= place)]
        middles.append(np.where(among_nan, np.nan, found))
    return middles[0], middles[1]


def medians_of_others(values: np.ndarray) -> np.ndarray:
    """For each of two values or more, the median of all others; NaN if one of these is.

    >>> medians_of_others(np.array([1.0, 9.0, 2.0])).tolist()
    [5.5, 1.5, 5.0]
    """
    lower, upper = middles_of_others(values)
    return (lower + upper) / 2


def pairs_among(rows: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """The entries of a symmetric matrix for all pairs of different ``rows``, each once.

    >>> pairs_among(np.array([0, 2]), np.arange(9.0).reshape(3, 3)).tolist()
    [2.0]
    """
    chosen = matrix[np.ix_(rows, rows)]
    return chosen[np.triu_indices(len(rows), k=1)]
