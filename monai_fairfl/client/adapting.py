# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A site trains the model that it would use a little further on its own images."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from monai.engines import SupervisedTrainer
from monai.handlers import LrScheduleHandler

from monai_fairfl.client.judge import Judge
from monai_fairfl.client.trainer_state import state_of
from monai_fairfl.client.training import another_model, one_round
from monai_fairfl.messages import Estimate, Weights
from monai_fairfl.utils.engine_internals import Handler, handler_owner, only_handlers
from monai_fairfl.utils.random_state import seed_of
from monai_fairfl.utils.tensors import names_not_finite

logger = logging.getLogger(__name__)

PATIENCE = 5
"""Epochs in a row without a better validation score after which the training ends."""


@dataclass(frozen=True)
class Adapted:
    """What further training brought.

    Args:
        weights: of the best epoch, or those that it began with where no epoch was better.
        epochs: of training until then.
        gain: on the validation cases.
    """

    weights: Weights
    epochs: int
    gain: Estimate


def adapted(
    trainer: SupervisedTrainer,
    judge: Judge,
    initial_state: Mapping[str, Any],
    epochs: int,
    rate: float,
    seed: int,
) -> Adapted:
    """Train a model on with a small, constant learning rate, and stop early.

    Each epoch is scored on the validation cases, of which no training has seen any. The best epoch
    counts; after :data:`PATIENCE` epochs without a better one the training ends. The trainer's own
    network, optimizer, schedules and counters are put back.

    Args:
        trainer: of the bundle.
        judge: compares models on the site's validation cases.
        initial_state: of the model that is trained on, with an optimizer of its own.
        epochs: of training, at most.
        rate: learning rate of all parameters.
        seed: of the random numbers.

    Raises:
        TransportAborted: when it was interrupted.
    """
    best = Adapted(initial_state["local"], 0, judge.no_gain)
    with another_model(trainer, initial_state):
        for epoch in range(1, epochs + 1):
            _train_an_epoch(trainer, rate, seed_of(seed, "adapt", epoch))
            weights = state_of(trainer)["local"]
            if names_not_finite(weights):
                logger.warning("the further training diverged in epoch %d: it ends there", epoch)
                break
            gain = judge.gain(weights)
            if gain.value > best.gain.value:
                best = Adapted(weights, epoch, gain)
            if epoch - best.epochs >= PATIENCE:
                break
    return best


def _train_an_epoch(trainer: SupervisedTrainer, rate: float, seed: int) -> None:
    """One epoch at a constant learning rate: without the bundle's schedule."""
    for group in trainer.optimizer.param_groups:
        group["lr"] = rate
    trainer.state.max_epochs = trainer.state.epoch + 1
    with only_handlers(trainer, _is_no_schedule), one_round(trainer, seed, []):
        trainer.run()


def _is_no_schedule(handler: Handler) -> bool:
    return not isinstance(handler_owner(handler), LrScheduleHandler)
