# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Updates with chosen lengths and cosines, large enough for guards that compare directions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from monai_fairfl import ModelSpec

SHAPES = {"conv.weight": (40, 60), "out.bias": (3,), "out.weight": (3, 100)}
STATISTICS = ("norm.num_batches_tracked", "norm.running_mean", "norm.running_var")
SPEC = ModelSpec(
    tuple(SHAPES),
    buffers=STATISTICS,
    layers={name: name.split(".")[0] for name in SHAPES},
    output=("out", 0),
)
PARAMETERS = sum(int(np.prod(shape)) for shape in SHAPES.values())


def directions(count: int, seed: int = 0) -> np.ndarray:
    """Orthonormal vectors, one a row."""
    generator = np.random.default_rng(seed)
    columns, _ = np.linalg.qr(generator.normal(size=(PARAMETERS, count)))
    return columns.T


def at_cosine(cosine: float, direction: np.ndarray, other: np.ndarray) -> np.ndarray:
    """A unit vector at ``cosine`` to ``direction``, in the plane of two orthonormal vectors."""
    return cosine * direction + np.sqrt(1 - cosine**2) * other


def honest(clients: Sequence[str], cosine: float = 0.5, seed: int = 0) -> dict[str, np.ndarray]:
    """Unit updates with the same cosine for every pair."""
    basis = directions(len(clients) + 1, seed)
    found = {}
    for row, client in enumerate(clients):
        found[client] = at_cosine(np.sqrt(cosine), basis[0], basis[row + 1])
    return found


def tensors_of(values: np.ndarray) -> dict[str, torch.Tensor]:
    """A flat vector as the model's parameters."""
    tensors = {}
    begin = 0
    for name, shape in SHAPES.items():
        end = begin + int(np.prod(shape))
        tensors[name] = torch.from_numpy(values[begin:end]).float().view(shape)
        begin = end
    return tensors


def statistics_of(
    mean: float = 0.0, variance: float = 1.0, batches: int = 5
) -> dict[str, torch.Tensor]:
    """BatchNorm's statistics of four channels, the last of which is unusual."""
    means, variances = torch.zeros(4), torch.ones(4)
    means[3], variances[3] = mean, variance
    return {
        "norm.num_batches_tracked": torch.tensor(batches),
        "norm.running_mean": means,
        "norm.running_var": variances,
    }


START = {**tensors_of(50 * directions(1, seed=99)[0]), **statistics_of(batches=0)}
"""A whole model, whose parameters have the length 50."""
