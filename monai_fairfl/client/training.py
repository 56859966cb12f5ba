# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Runs one round's training at a client, with the handlers that a request chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import Any

import torch
from ignite.engine import Engine, Events
from ignite.metrics import Metric
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.handlers import LrScheduleHandler

from monai_fairfl.errors import ConfigError
from monai_fairfl.handlers.training import Detachable, Proximal, SharpnessAware
from monai_fairfl.measurements.probe import load_weights, seed_loader
from monai_fairfl.utils.engine_internals import (
    Handler,
    forget_unfinished_run,
    handler_owner,
    handlers_of,
    is_monai_best_metric,
    is_monai_output_step,
    remove_handlers,
    require_whole_run,
)
from monai_fairfl.utils.tensors import on_cpu, own_random_state

TRAINING_HANDLERS: dict[str, Callable[[Mapping[str, float]], Detachable]] = {
    "sam_rho": lambda context: SharpnessAware(context["sam_rho"], context.get("gsam_alpha", 0.0)),
    "prox_mu": lambda context: Proximal(context["prox_mu"]),
}
"""context key -> maker of the handler that it chooses, from the whole context.

What acts during training is one entry. Handlers are attached in this order: one that replaces
gradients comes before one that adds to them.
"""


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


def _schedulers(trainer: SupervisedTrainer) -> list[Any]:
    """Learning-rate schedulers, found in the trainer's handlers, each once."""
    schedulers: dict[int, Any] = {}
    for handler in handlers_of(trainer):
        scheduler = getattr(handler_owner(handler), "lr_scheduler", None)
        if hasattr(scheduler, "state_dict"):
            schedulers[id(scheduler)] = scheduler
    return list(schedulers.values())


@contextmanager
def one_round(
    trainer: SupervisedTrainer, seed: int, handlers: Sequence[Detachable]
) -> Iterator[None]:
    """Inside, ``trainer`` has these handlers, and all random numbers follow from ``seed``.

    Raises:
        TransportAborted: when the training inside was interrupted.
    """
    forget_unfinished_run(trainer)
    with own_random_state(seed), ExitStack() as stack:
        for handler in handlers:
            handler.attach(trainer)
            stack.callback(handler.detach)
        scaler: Any = trainer.scaler
        if trainer.amp and trainer.amp_kwargs.get("dtype") is torch.bfloat16:
            # The range of bfloat16 is that of float32, so that nothing overflows. A scaler that is
            # on would ask after every step whether anything did, and so wait for the GPU.
            scaler = torch.amp.GradScaler(enabled=False)
        if scaler is not None:
            # ``Trainer.run`` makes a new loss scaler, which would have to find the scale again.
            handle = trainer.add_event_handler(Events.STARTED, setattr, "scaler", scaler)
            stack.enter_context(handle)
        seed_loader(trainer, seed)
        yield
        require_whole_run(trainer)


def drop_unread_output(trainer: SupervisedTrainer) -> None:
    """Let ``trainer`` not decollate, postprocess or score its output any more if nobody reads that.

    A bundle's training metric is for those who watch a training by itself. A federation's own
    handlers read the output when the loss is computed, which is before. Where the bundle has a
    handler that may read it, such as one that logs or saves, everything stays.
    """

    def makes_output(handler: Handler) -> bool:
        is_metric = isinstance(handler_owner(handler), Metric)
        return is_metric or is_monai_output_step(handler) or is_monai_best_metric(handler)

    def may_read_output(handler: Handler) -> bool:
        owner = handler_owner(handler)
        if not isinstance(owner, LrScheduleHandler):
            return not (isinstance(owner, Detachable) or makes_output(handler))
        try:
            # It steps by epochs alone, or by a value such as the best metric.
            return owner.step_transform(trainer) != ()
        except Exception:
            # What it reads is not there before the first epoch.
            return True

    if not any(map(may_read_output, handlers_of(trainer))):
        remove_handlers(trainer, makes_output)


def discard_interrupted_run(engine: Engine) -> None:
    """Let the next run of ``engine`` be a whole one.

    The counters go back to whole epochs: ignite would take the steps that were done for a part of
    the next epoch.
    """
    steps_per_epoch = engine.state.epoch_length
    if forget_unfinished_run(engine) and steps_per_epoch:
        engine.state.epoch = engine.state.iteration // steps_per_epoch
        engine.state.iteration = engine.state.epoch * steps_per_epoch


def check_schedules(
    trainer: SupervisedTrainer, evaluators: Sequence[SupervisedEvaluator], client: str | None
) -> None:
    """Refuse a schedule that reads an evaluator's score, which is not computed during training.

    Each schedule is tried without the evaluator's state.

    Raises:
        ConfigError: naming the client.
    """
    owners = map(handler_owner, handlers_of(trainer))
    schedules = [owner for owner in owners if isinstance(owner, LrScheduleHandler)]
    for schedule, evaluator in product(schedules, evaluators):
        state = evaluator.state
        del evaluator.state
        try:
            schedule.step_transform(trainer)
        except Exception as error:
            # Before the first step the trainer has no output either, which says nothing.
            if getattr(error, "obj", None) is evaluator:
                raise ConfigError(
                    f"client {client!r}: {type(schedule.lr_scheduler).__name__} reads a validation "
                    "score, which a federated training has not: use a schedule by epoch"
                ) from error
        finally:
            evaluator.state = state
