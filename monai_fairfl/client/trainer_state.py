# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Copies everything that a trainer goes on from, and puts it back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from monai.engines import SupervisedTrainer

from monai_fairfl.measurements.loading import load_weights
from monai_fairfl.utils.engine_internals import handler_owner, handlers_of
from monai_fairfl.utils.tensors import on_cpu


def state_of(trainer: SupervisedTrainer) -> dict[str, Any]:
    """Everything that training goes on from; the random state follows from each request's seed.

    Args:
        trainer: of the bundle.

    Returns:
        ``"local"``, the network's tensors; ``"optimizer"``; ``"schedulers"``, a list; the counters
        ``"epoch"`` and ``"iteration"``; and ``"scaler"``, empty without mixed precision. In a
        site's file, :class:`~monai_fairfl.client.algo.FairMonaiAlgo` adds ``"personal"``, such a
        state of the personal model.
    """
    state = {
        "local": trainer.network.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "schedulers": [scheduler.state_dict() for scheduler in _schedulers(trainer)],
        "epoch": trainer.state.epoch,
        "iteration": trainer.state.iteration,
        "scaler": {} if trainer.scaler is None else trainer.scaler.state_dict(),
    }
    # All of it at once: from a GPU it comes by one transfer.
    copied: dict[str, Any] = on_cpu(state)
    return copied


def load_state(trainer: SupervisedTrainer, state: Mapping[str, Any]) -> None:
    """The inverse of :func:`state_of`.

    Tensors that ``local`` does not name stay as they are.
    """
    load_weights(trainer.network, state["local"])
    trainer.optimizer.load_state_dict(on_cpu(state["optimizer"]))
    for scheduler, saved in zip(_schedulers(trainer), state["schedulers"], strict=True):
        scheduler.load_state_dict(on_cpu(saved))
    trainer.state.epoch = state["epoch"]
    trainer.state.iteration = state["iteration"]
    trainer.scaler = None
    if trainer.amp and state["scaler"]:
        # The same class that ``Trainer.run`` makes.
        trainer.scaler = torch.cuda.amp.GradScaler()
        trainer.scaler.load_state_dict(state["scaler"])


def with_new_optimizer(state: Mapping[str, Any]) -> dict[str, Any]:
    """``state`` with an optimizer without moments; the learning rate stays the schedule's."""
    optimizer = {**state["optimizer"], "state": {}}
    return {**state, "optimizer": optimizer}


def _schedulers(trainer: SupervisedTrainer) -> list[Any]:
    """Learning-rate schedulers, found in the trainer's handlers, each once."""
    schedulers: list[Any] = []
    for handler in handlers_of(trainer):
        scheduler = getattr(handler_owner(handler), "lr_scheduler", None)
        is_new = not any(scheduler is known for known in schedulers)
        if hasattr(scheduler, "state_dict") and is_new:
            schedulers.append(scheduler)
    return schedulers
