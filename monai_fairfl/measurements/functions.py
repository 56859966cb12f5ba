# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a client can measure: a function each, see :data:`monai_fairfl.messages.MEASUREMENTS`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from monai_fairfl.measurements.probe import Probe, TrainingProbe
from monai_fairfl.messages import Estimate, Measurement, Weights

SAM_RADIUS = 0.05
"""Radius of the measurement ``sharpness`` where the server sends no ``sam_rho``."""

LARGEST_WEIGHT = 1 - 1e-6
"""A client of a larger weight was alone in the average: there is no model without it."""


@dataclass(frozen=True)
class Memory:
    """The models that a client stored after earlier trainings; ``None``: it has none.

    Args:
        previous: the weights that it trained in the previous round, exactly that one.
        present: the weights that it has trained in this round.

    >>> import torch
    >>> def moved(probe, weights, memory, context):
    ...     if memory.previous is None:
    ...         return None
    ...     return float((weights["w"] - memory.previous["w"]).norm())
    >>> memory = Memory(previous={"w": torch.tensor([1.0, 1.0])})
    >>> moved(None, {"w": torch.tensor([4.0, 5.0])}, memory, {})
    5.0
    """

    previous: Weights | None = None
    present: Weights | None = None


Context = Mapping[str, float]
"""The numbers that the server sent with its request."""


def score(probe: Probe, weights: Weights, memory: Memory, context: Context) -> Measurement:
    """Mean Dice of ``weights`` on the probe's data, per class too."""
    return probe.score(weights)


def loss(probe: TrainingProbe, weights: Weights, memory: Memory, context: Context) -> Measurement:
    """The bundle's training loss of ``weights`` on the training data, the same crops each time."""
    return probe.loss(weights)


def sharpness(probe: TrainingProbe, weights: Weights, memory: Memory, context: Context) -> float:
    """FedISM's sharpness of ``weights`` on the training data; radius ``sam_rho`` (IJCAI 2024)."""
    return probe.sharpness(weights, context.get("sam_rho", SAM_RADIUS))


def surface_distance(
    probe: Probe, weights: Weights, memory: Memory, context: Context
) -> Measurement | None:
    """95th percentile of the surface distance of ``weights``, by the evaluator's metric ``hd95``.

    A bundle whose evaluator has that metric is measured so at the end; in Python
    ``Federation(final=("score", "test_score", "test_hd95"))`` asks for it. ``None`` where the
    evaluator has no such metric, or the client has no test case.
    """
    return probe.further("hd95", weights)


def leave_one_out_error(
    probe: Probe, weights: Weights, memory: Memory, context: Context
) -> Measurement | None:
    r"""FedCE's error of the model without this client: 1 - Dice(w^{-i}) in [0, 1].

    Source: Jiang et al., CVPR 2023, Eq. 3. ``context["previous_weight"]`` is the weight with which
    this client's last update entered ``weights``; 0 means that it did not, and the received model
    is itself the one without this client. ``None`` where this client was alone in the average.
    """
    share = context.get("previous_weight", 0.0)
    if share != 0:
        if memory.previous is None or not 0 < share <= LARGEST_WEIGHT:
            return None
        weights = leave_one_out_model(weights, memory.previous, share)
    dice = probe.score(weights)["mean"]
    return Estimate(1 - dice.value, dice.stderr, dice.n)


def leave_one_out_model(
    weights: Weights, local: Weights, previous_weight: float
) -> dict[str, torch.Tensor]:
    r"""The received model less one client: w^{-i} = (w - pi w_i) / (1 - pi).

    Exact when ``local`` (w_i) entered ``weights`` (w) with weight pi. Counters are copied. Running
    variances, which rounding or another buffer policy could push below zero, are clipped at 0.

    >>> import torch
    >>> w, w_i = {"w": torch.tensor([2.0])}, {"w": torch.tensor([3.0])}
    >>> leave_one_out_model(w, w_i, 0.5)["w"].tolist()
    [1.0]
    """
    without = dict(weights)
    for name, tensor in weights.items():
        if not tensor.is_floating_point() or name not in local:
            continue
        others = tensor.double() - previous_weight * local[name].double()
        others = others / (1 - previous_weight)
        if name.endswith("running_var"):
            others = others.clamp(min=0)
        without[name] = others.to(tensor.dtype)
    return without
