# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What acts during a round's training at a client: handlers that a request chooses, and Ditto's
personal model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from ignite.engine import Engine, Events
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.handlers import LrScheduleHandler

from monai_fairfl.client.state import handler_owner, load_state, state_of
from monai_fairfl.errors import ConfigError
from monai_fairfl.handlers import Proximal, SharpnessAware
from monai_fairfl.measurements.probe import check_whole
from monai_fairfl.measurements.training_probe import seed_loader
from monai_fairfl.protocol.values import Weights
from monai_fairfl.utils.random_state import own_random_state


class TrainingHandler(Protocol):
    """What acts during a round's training: an ignite handler that can be taken off again."""

    def attach(self, engine: Any) -> None:
        """Add its callbacks."""

    def detach(self) -> None:
        """Take them off."""


TRAINING_HANDLERS: dict[str, Callable[[Mapping[str, float]], TrainingHandler]] = {
    "sam_rho": lambda context: SharpnessAware(context["sam_rho"], context.get("gsam_alpha", 0.0)),
    "prox_mu": lambda context: Proximal(context["prox_mu"]),
}
"""context key -> maker of the handler that it chooses, from the whole context. A new client half is
one entry. They are attached in this order.
"""


def chosen_handlers(context: Mapping[str, float]) -> list[TrainingHandler]:
    """The handlers that ``context`` asks for, in the order of :data:`TRAINING_HANDLERS`.

    >>> [type(handler).__name__ for handler in chosen_handlers({"prox_mu": 0.1, "sam_rho": 0.05})]
    ['SharpnessAware', 'Proximal']
    """
    return [make(context) for key, make in TRAINING_HANDLERS.items() if key in context]


def discard_interrupted_run(engine: Engine) -> None:
    """Let the next run of ``engine`` be a whole one.

    After a run that was interrupted ignite goes on with the steps that are left of it, and after
    one that failed it does nothing at all. The counters go back to whole epochs: ignite would take
    the rest for a part of the next epoch.
    """
    if engine._internal_run_generator is None:
        return
    engine._internal_run_generator = None
    steps_per_epoch = engine.state.epoch_length
    if steps_per_epoch:
        engine.state.epoch = engine.state.iteration // steps_per_epoch
        engine.state.iteration = engine.state.epoch * steps_per_epoch


@contextmanager
def one_round(
    trainer: SupervisedTrainer, seed: int, handlers: Sequence[TrainingHandler]
) -> Iterator[None]:
    """Inside, ``trainer`` has these handlers, and all random numbers follow from ``seed``.

    Raises:
        TransportAborted: when the training inside was interrupted.
    """
    trainer._internal_run_generator = (
        None  # after a failure ignite would go on with what is left of that run
    )
    with ExitStack() as stack:
        stack.enter_context(own_random_state(seed))
        for handler in handlers:
            handler.attach(trainer)
            stack.callback(handler.detach)
        if (
            trainer.scaler is not None
        ):  # ``Trainer.run`` makes a new one, which would have to find the scale again
            stack.enter_context(
                trainer.add_event_handler(Events.STARTED, _set_scaler, trainer.scaler)
            )
        seed_loader(trainer.data_loader, seed)
        yield
        check_whole(trainer)


def _set_scaler(trainer: SupervisedTrainer, scaler: Any) -> None:
    trainer.scaler = scaler


def check_schedules(
    trainer: SupervisedTrainer, evaluators: Sequence[SupervisedEvaluator], client: str | None
) -> None:
    """Refuse a schedule that reads an evaluator's score, which nobody makes while a client trains.

    Raises:
        ConfigError: naming the client.
    """
    owners = [
        handler_owner(entry[0]) for entries in trainer._event_handlers.values() for entry in entries
    ]
    for schedule in (owner for owner in owners if isinstance(owner, LrScheduleHandler)):
        if any(_reads(schedule, trainer, evaluator) for evaluator in evaluators):
            raise ConfigError(
                f"client {client!r}: the schedule {type(schedule.lr_scheduler).__name__} reads the validation score, "
                "which is not there during federated training: use a schedule by epoch, for example LambdaLR"
            )


def _reads(
    schedule: LrScheduleHandler, trainer: SupervisedTrainer, evaluator: SupervisedEvaluator
) -> bool:
    """Whether ``schedule`` misses the evaluator's state when that is gone."""
    state = evaluator.state
    del evaluator.state
    try:
        schedule.step_transform(trainer)
    except Exception as error:  # of the trainer, too, there is no output before the first step
        return getattr(error, "obj", None) is evaluator
    finally:
        evaluator.state = state
    return False


def with_new_optimizer(state: Mapping[str, Any]) -> dict[str, Any]:
    """``state`` with an optimizer that forgot its moments; the learning rate stays where the
    schedule has it.
    """
    return {**state, "optimizer": {**state["optimizer"], "state": {}}}


def train_personal(
    trainer: SupervisedTrainer,
    begin: Mapping[str, Any],
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
        begin: state of v, with an optimizer of its own.
        anchor: w, the weights received in this round.
        strength: lambda.
        epochs: of training.
        seed: of the random numbers.

    Returns:
        The state that v goes on from.
    """
    usual, counters = state_of(trainer), trainer.state
    trainer.state = copy.copy(counters)
    try:
        load_state(trainer, begin)
        trainer.state.max_epochs = trainer.state.epoch + epochs
        with one_round(trainer, seed, [Proximal(strength, anchor)]):
            trainer.run()
        return state_of(trainer)
    finally:
        trainer.state = counters
        load_state(trainer, usual)
