# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Runs one round's training at a client: the handlers that a request chooses, Ditto's own model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from ignite.engine import Engine, Events
from ignite.metrics import Metric
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.handlers import LrScheduleHandler

from monai_fairfl.client.trainer_state import load_state, state_of
from monai_fairfl.errors import ConfigError
from monai_fairfl.handlers import Proximal, SharpnessAware
from monai_fairfl.handlers.base import Detachable
from monai_fairfl.measurements.batches import seed_loader
from monai_fairfl.messages import Weights
from monai_fairfl.utils.engine_internals import (
    Handler,
    forget_unfinished_run,
    handler_owner,
    handlers_of,
    is_monai_best_metric,
    is_monai_output_step,
    is_monai_sampler_step,
    only_handlers,
    require_whole_run,
)
from monai_fairfl.utils.random_state import own_random_state


class TrainingHandler(Protocol):
    """What acts during a round's training: an ignite handler that can be detached."""

    def attach(self, engine: Any) -> None:
        """Add its callbacks."""

    def detach(self) -> None:
        """Remove them."""


def _sharpness_aware(context: Mapping[str, float]) -> TrainingHandler:
    return SharpnessAware(context["sam_rho"], context.get("gsam_alpha", 0.0))


def _proximal(context: Mapping[str, float]) -> TrainingHandler:
    return Proximal(context["prox_mu"])


TRAINING_HANDLERS: dict[str, Callable[[Mapping[str, float]], TrainingHandler]] = {
    "sam_rho": _sharpness_aware,
    "prox_mu": _proximal,
}
"""context key -> maker of the handler that it chooses, from the whole context.

What acts during training is one entry. Handlers are attached in this order: one that replaces
gradients comes before one that adds to them.
"""


def chosen_handlers(context: Mapping[str, float]) -> list[TrainingHandler]:
    """The handlers that ``context`` asks for, in the order of :data:`TRAINING_HANDLERS`.

    >>> [type(handler).__name__ for handler in chosen_handlers({"prox_mu": 0.1, "sam_rho": 0.05})]
    ['SharpnessAware', 'Proximal']
    """
    return [make(context) for key, make in TRAINING_HANDLERS.items() if key in context]


def discard_interrupted_run(engine: Engine) -> None:
    """Let the next run of ``engine`` be a whole one.

    The counters go back to whole epochs: ignite would take the steps that were done for a part of
    the next epoch.
    """
    if not forget_unfinished_run(engine):
        return
    steps_per_epoch = engine.state.epoch_length
    if steps_per_epoch:
        engine.state.epoch = engine.state.iteration // steps_per_epoch
        engine.state.iteration = engine.state.epoch * steps_per_epoch


@contextmanager
def one_round(
    trainer: SupervisedTrainer, seed: int, handlers: Sequence[TrainingHandler]
) -> Iterator[None]:
    """Inside, ``trainer`` has these handlers, and all random numbers follow from ``seed``.

    What the trainer makes of its output is left out, see :func:`without_unread_output`.

    Raises:
        TransportAborted: when the training inside was interrupted.
    """
    forget_unfinished_run(trainer)
    with ExitStack() as stack:
        stack.enter_context(own_random_state(seed))
        stack.enter_context(without_unread_output(trainer))
        for handler in handlers:
            handler.attach(trainer)
            stack.callback(handler.detach)
        scaler = _scaler_of_round(trainer)
        if scaler is not None:
            # ``Trainer.run`` makes a new loss scaler, which would have to find the scale again.
            give_back = trainer.add_event_handler(Events.STARTED, _set_scaler, scaler)
            stack.enter_context(give_back)
        seed_loader(trainer.data_loader, seed)
        yield
        require_whole_run(trainer)


def _scaler_of_round(trainer: SupervisedTrainer) -> Any:
    """The loss scaler to go on with; ``None``: the one that ``Trainer.run`` makes."""
    if trainer.amp and trainer.amp_kwargs.get("dtype") is torch.bfloat16:
        # The range of bfloat16 is that of float32, so that nothing overflows. A scaler that is on
        # would ask after every step whether anything did, and so wait for the GPU.
        return torch.amp.GradScaler(enabled=False)
    return trainer.scaler


def _set_scaler(trainer: SupervisedTrainer, scaler: Any) -> None:
    trainer.scaler = scaler


@contextmanager
def without_unread_output(trainer: SupervisedTrainer) -> Iterator[None]:
    """Inside, ``trainer`` does not decollate, postprocess or score its output if nobody reads that.

    A bundle's training metric is for those who watch a training by itself. A federation's own
    handlers read the output when the loss is computed, which is before. Where the bundle has a
    handler that may read it, such as one that logs or saves, everything stays.
    """
    if any(_may_read_output(handler, trainer) for handler in handlers_of(trainer)):
        yield
        return
    with only_handlers(trainer, lambda handler: not _makes_output(handler)):
        yield


def _makes_output(handler: Handler) -> bool:
    """Whether ``handler`` makes what comes after the optimizer's step: predictions, metrics."""
    if isinstance(handler_owner(handler), Metric):
        return True
    return is_monai_output_step(handler) or is_monai_best_metric(handler)


def _may_read_output(handler: Handler, trainer: SupervisedTrainer) -> bool:
    """Whether ``handler`` may need what :func:`_makes_output`; a handler of others may."""
    owner = handler_owner(handler)
    if isinstance(owner, LrScheduleHandler):
        return _reads_a_value(owner, trainer)
    is_known = isinstance(owner, Detachable) or is_monai_sampler_step(handler)
    return not (is_known or _makes_output(handler))


def _reads_a_value(schedule: LrScheduleHandler, trainer: SupervisedTrainer) -> bool:
    """Whether ``schedule`` steps by a value, such as the best metric, and not by epochs alone."""
    try:
        return schedule.step_transform(trainer) != ()
    except Exception:
        # What it reads is not there before the first epoch.
        return True


def check_schedules(
    trainer: SupervisedTrainer, evaluators: Sequence[SupervisedEvaluator], client: str | None
) -> None:
    """Refuse a schedule that reads an evaluator's score, which is not computed during training.

    Raises:
        ConfigError: naming the client.
    """
    for handler in handlers_of(trainer):
        schedule = handler_owner(handler)
        if not isinstance(schedule, LrScheduleHandler):
            continue
        for evaluator in evaluators:
            if _reads_state_of(evaluator, schedule, trainer):
                raise ConfigError(
                    f"client {client!r}: the schedule {type(schedule.lr_scheduler).__name__} reads "
                    "the validation score, which is not there during federated training: use a "
                    "schedule by epoch, for example LambdaLR"
                )


def _reads_state_of(
    evaluator: SupervisedEvaluator, schedule: LrScheduleHandler, trainer: SupervisedTrainer
) -> bool:
    """Whether ``schedule`` needs the evaluator's state: tried without that state."""
    state = evaluator.state
    del evaluator.state
    try:
        schedule.step_transform(trainer)
    except Exception as error:
        # Before the first step the trainer has no output either, whose absence says nothing.
        return getattr(error, "obj", None) is evaluator
    finally:
        evaluator.state = state
    return False


def train_personal(
    trainer: SupervisedTrainer,
    initial_state: Mapping[str, Any],
    anchor: Weights,
    strength: float,
    epochs: int,
    seed: int,
) -> dict[str, Any]:
    r"""One round of Ditto's personal model v (Li et al., ICML 2021, Algorithm 1).

    .. math:: \min_v L(v) + \frac{\lambda}{2} \lVert v - w \rVert^2

    The trainer's own network is used and put back, with optimizer, schedulers and counters: the
    usual training never notices. Under the same ``seed`` both see the same batches.

    Args:
        trainer: of the bundle.
        initial_state: of v, with an optimizer of its own.
        anchor: w, the weights received in this round.
        strength: lambda.
        epochs: of training.
        seed: of the random numbers.

    Returns:
        The state that v goes on from.
    """
    with another_model(trainer, initial_state):
        trainer.state.max_epochs = trainer.state.epoch + epochs
        with one_round(trainer, seed, [Proximal(strength, anchor)]):
            trainer.run()
        return state_of(trainer)


@contextmanager
def another_model(trainer: SupervisedTrainer, begin: Mapping[str, Any]) -> Iterator[None]:
    """Inside, ``trainer`` has another model; afterwards its own one, as if nothing had been.

    Args:
        trainer: of the bundle.
        begin: state of the other model: weights, optimizer, schedulers and counters.
    """
    usual_state = state_of(trainer)
    usual_counters = trainer.state
    trainer.state = copy.copy(usual_counters)
    try:
        load_state(trainer, begin)
        yield
    finally:
        trainer.state = usual_counters
        load_state(trainer, usual_state)
