# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
r"""The mean of the models that a site received in the last rounds.

.. math:: \bar w = \frac{1}{K} \sum_{r=R-K+1}^{R} w_r

w_r is the model that the site received after r rounds, R the number of rounds. A mean of the
weights along a training often generalises better than the last of them (Izmailov et al., UAI 2018:
stochastic weight averaging). Its BatchNorm statistics are none of the mean network, so they are
computed again from the site's own training images, as in that paper.

The sum goes into the site's state file, with the round that it begins in. So a resumed run goes on
with it, and one that got more rounds begins another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from monai.engines import SupervisedTrainer
from torch.optim.swa_utils import update_bn

from monai_fairfl.measurements.forward import prepared, same_epoch
from monai_fairfl.measurements.loading import loaded
from monai_fairfl.protocol.values import Weights
from monai_fairfl.utils.tensors import on_cpu


def with_another(
    total: Mapping[str, Any] | None, received: Weights, first_round: int
) -> dict[str, Any]:
    """The sum of the models received since round ``first_round``, with one more.

    Args:
        total: the sum until now, as this function returned it; ``None``: there is none. One that
            begins in another round is of other rounds, and is not continued.
        received: the model.
        first_round: in which the sum begins.

    Returns:
        The first round under ``"begin"``, the number of models under ``"models"``, and their
        ``"sum"``.

    >>> two = with_another(None, {"w": torch.ones(2)}, 8)
    >>> two = with_another(two, {"w": torch.zeros(2)}, 8)
    >>> two["models"], two["sum"]["w"]
    (2, tensor([1., 1.]))
    """
    if total is None or total["begin"] != first_round:
        return {"begin": first_round, "models": 1, "sum": _wide(received)}
    together = {}
    for name, tensor in _wide(received).items():
        together[name] = total["sum"][name] + tensor
    return {"begin": first_round, "models": total["models"] + 1, "sum": together}


def _wide(weights: Weights) -> dict[str, torch.Tensor]:
    """Copies in at least float32: a sum of several half-precision models loses its last bits."""
    copies = {}
    for name, tensor in weights.items():
        dtype = torch.promote_types(tensor.dtype, torch.float32)
        copies[name] = tensor.detach().to("cpu", dtype, copy=True)
    return copies


def mean_with(total: Mapping[str, Any], last: Weights) -> Weights:
    """The mean of the models of a sum and the last one.

    Args:
        total: as :func:`with_another` returned it.
        last: the model received after the last round.

    >>> mean_with(with_another(None, {"w": torch.ones(2)}, 8), {"w": torch.zeros(2)})
    {'w': tensor([0.5000, 0.5000])}
    """
    every = with_another(total, last, total["begin"])
    means: dict[str, torch.Tensor] = {}
    for name, tensor in last.items():
        if tensor.is_floating_point():
            means[name] = (every["sum"][name] / every["models"]).to(tensor.dtype)
        else:
            # A counter, such as that of the batches in a BatchNorm layer, has no mean.
            means[name] = tensor
    return means


def with_new_statistics(trainer: SupervisedTrainer, weights: Weights) -> Weights:
    """The model with BatchNorm statistics of one epoch of the site's training images.

    The trainer's own network is used and put back. The crops are the same every time.

    Args:
        trainer: of the bundle.
        weights: the model.
    """
    network = trainer.network
    with loaded(network, weights):
        images = (prepared(trainer, batch).inputs for batch in same_epoch(trainer))
        with torch.no_grad():
            update_bn(images, network)
        statistics: Weights = on_cpu(network.state_dict())
    return statistics
