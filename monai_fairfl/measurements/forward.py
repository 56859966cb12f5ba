# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Gives an engine's batches to a network as the engine itself does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

import torch
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.networks.utils import eval_mode
from torch import nn

from monai_fairfl.measurements.batches import same_batches


class PreparedBatch(NamedTuple):
    """A batch as ``prepare_batch`` of an engine makes it.

    Args:
        inputs: images (B, C, ...), on the engine's device.
        targets: labels, likewise.
        args: what the network takes beside the images.
        kwargs: the same by name.
    """

    inputs: torch.Tensor
    targets: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def same_epoch(engine: SupervisedEvaluator | SupervisedTrainer) -> Iterator[Any]:
    """Yields one epoch of the engine's batches, the same ones every time.

    See :func:`~monai_fairfl.measurements.batches.same_batches`.
    """
    with same_batches(engine.data_loader) as loader:
        yield from islice(loader, engine.state.epoch_length)


def has_no_batch(engine: SupervisedEvaluator | SupervisedTrainer) -> bool:
    """Whether the engine has no batch of data. MONAI then skips its run.

    >>> has_no_batch(SupervisedEvaluator("cpu", [], nn.Identity()))
    True
    """
    return engine.state.epoch_length == 0


@contextmanager
def layers_in_eval_mode(network: nn.Module) -> Iterator[None]:
    """Inside, every layer is in evaluation mode, and the network's outputs are those of training.

    A network with deep supervision, such as MONAI's ``DynUNet`` and ``SegResNetDS``, gives its
    further outputs where its own ``training`` is true, and a loss of them needs all. Dropout and
    normalisation are layers below it.

    >>> network = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    >>> with layers_in_eval_mode(network):
    ...     network.training, network[1].training
    (True, False)
    """
    with eval_mode(network):
        network.training = True
        try:
            yield
        finally:
            network.training = False


def prepared(engine: SupervisedEvaluator | SupervisedTrainer, batch: Any) -> PreparedBatch:
    """``batch`` on the engine's device, split into what the network and the loss take."""
    inputs, targets, *further = engine.prepare_batch(
        batch, engine.state.device, engine.non_blocking, **engine.to_kwargs
    )
    args, kwargs = further or ((), {})
    return PreparedBatch(inputs, targets, args, kwargs)


def inferred(
    engine: SupervisedEvaluator | SupervisedTrainer,
    batch: PreparedBatch,
    network: Callable[..., Any],
) -> Any:
    """What the engine's inferer makes of ``batch`` with ``network``."""
    return engine.inferer(batch.inputs, network, *batch.args, **batch.kwargs)
