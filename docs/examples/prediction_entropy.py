# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Measures how undecided a model is on a client's validation images."""

from __future__ import annotations

import torch

from monai_fairfl.measurements import Context, Memory, Probe, estimate
from monai_fairfl.messages import Measurement, Weights


def prediction_entropy(
    probe: Probe, weights: Weights, memory: Memory, context: Context
) -> Measurement | None:
    r"""Mean entropy of the predicted probabilities, in nats per voxel.

    .. math:: H = -\sum_c p_c \ln p_c \quad \text{(softmax)}, \qquad
              H = -\sum_c \bigl[p_c \ln p_c + (1 - p_c) \ln(1 - p_c)\bigr] \quad \text{(sigmoid)}

    of each voxel, averaged over the voxels of an image, then over the images. It lies between 0 and
    ln C for a softmax over C channels, and between 0 and C ln 2 for C sigmoids. Standard error and
    n are of the images. An image whose outputs are not finite does not count.

    ``None`` where the evaluator's postprocessing has neither.
    """
    activation = probe.activation()
    if activation is None:
        return None

    means = []
    for logits in probe.outputs(weights):
        logits = logits.double()
        # entr(p) is -p ln p, and 0 where p is 0. The channels are the first axis.
        if activation == "softmax":
            entropies = torch.special.entr(logits.softmax(0))
        else:
            inside = torch.special.entr(logits.sigmoid())
            outside = torch.special.entr((-logits).sigmoid())
            entropies = inside + outside
        means.append(float(entropies.sum(0).mean()))
    return estimate(torch.tensor(means, dtype=torch.float64))
