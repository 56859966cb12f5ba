# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Measures how much the gradient differs between the batches of a client's training data."""

from __future__ import annotations

import torch

from monai_fairfl.measurements import Context, Memory, TrainingProbe
from monai_fairfl.messages import Measurement, Weights


def gradient_variance(
    probe: TrainingProbe, weights: Weights, memory: Memory, context: Context
) -> Measurement | None:
    r"""Variance of the batches' gradients at ``weights``, summed over all parameters.

    .. math:: \frac{1}{B} \sum_b \lVert g_b - \bar g \rVert^2, \quad \bar g = \frac{1}{B} \sum_b g_b

    ``None`` for a single batch, which has no variance.
    """
    batches = 0
    squares = 0.0
    mean = torch.zeros((), dtype=torch.float64)
    for batch in probe.batch_gradients(weights):
        gradient = torch.cat([tensor.flatten() for tensor in batch.gradients]).double()
        batches += 1
        # Welford's update. The mean of the squares less the square of the mean could be negative.
        difference = gradient - mean
        mean = mean + difference / batches
        squares += float((difference * (gradient - mean)).sum())
    if batches < 2:
        return None
    return squares / batches
