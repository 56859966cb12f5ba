# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Runs one round's training at a client, with the handlers that a request chooses, and measures."""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from ignite.engine import Engine, Events
from ignite.metrics import Metric
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.handlers import LrScheduleHandler
from torch.optim.lr_scheduler import ReduceLROnPlateau

from monai_fairfl.client.state import Task
from monai_fairfl.handlers.training import Detachable
from monai_fairfl.measurements.probe import (
    Probe,
    TrainingProbe,
    files_of_cases,
    load_weights,
    seed_loader,
)
from monai_fairfl.messages import (
    IN_TRAINING,
    IN_VALIDATION,
    MEASUREMENTS,
    Estimate,
    ModelSpec,
    Weights,
)
from monai_fairfl.metrics.pictures import CasePictures
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

logger = logging.getLogger(__name__)


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
    handlers read the output when the loss is computed, which is before. Where the bundle has
    another handler, such as one that logs or saves, or a schedule that follows a value, everything
    stays.
    """

    def makes_output(handler: Handler) -> bool:
        is_metric = isinstance(handler_owner(handler), Metric)
        return is_metric or is_monai_output_step(handler) or is_monai_best_metric(handler)

    def may_read_output(handler: Handler) -> bool:
        owner = handler_owner(handler)
        if isinstance(owner, LrScheduleHandler):
            return isinstance(owner.lr_scheduler, ReduceLROnPlateau)
        return not (isinstance(owner, Detachable) or makes_output(handler))

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


# ---- measuring: what a request asks for, and nothing else

Evaluators = Mapping[str, SupervisedEvaluator]
"""``"validation"`` and ``"test"`` -> the evaluator of these data, where the bundle has one."""


@dataclass(frozen=True)
class Measuring:
    """Measures models on a site's validation, test and training data.

    Args:
        spec: the model's tensors.
        trainer: of the training data.
        evaluators: of the other data.
        classes: the output channels' names, where the bundle names them.
        overlap: takes the place of every test score, see :func:`overlap_of`.
    """

    spec: ModelSpec
    trainer: SupervisedTrainer
    evaluators: Evaluators
    classes: Sequence[str]
    overlap: Mapping[str, Estimate]

    def measure(self, of: str, task: Task, weights: Weights) -> None:
        """Add to the task what it asks to be measured of one model.

        Args:
            of: which model it is, see :class:`~monai_fairfl.messages.Entry`.
            task: names the measurements.
            weights: the model.
        """
        request = task.request
        for name in request.measure:
            entry = MEASUREMENTS[name]
            if entry.of != of:
                continue
            # Before training, a model of this round is one that an earlier try left.
            if entry.needs_present and request.task == "train":
                continue
            if entry.data == "test" and self.overlap:
                task.measurements.update(self.overlap)
                continue

            data = "training" if request.context.get(entry.training_key, 0) else entry.data
            probe: Probe | TrainingProbe = TrainingProbe(self.trainer)
            if data != "training":
                if data not in self.evaluators:
                    logger.warning("client %s: no evaluator for %r", request.client, name)
                    continue
                probe = Probe(self.evaluators[data], self.classes)

            model = weights
            if entry.needs_present and task.present is not None:
                # Two models of this round share the tensors that the site does not send.
                model = self.spec.completed(request.weights, task.present)
            closing = request.context.get("closing", 0)
            # Of the model that the site would use; candidates of the last mile have none.
            is_drawn = closing and name.removeprefix("personal_") == "test_score"
            if is_drawn and isinstance(probe, Probe):
                probe.watches = _pictures_into(probe.engine, task)
            value = entry(probe, self.spec.with_aliases(model), task, request.context)
            if value is not None:
                task.measurements[name] = value
            if closing and isinstance(probe, Probe) and (cases := probe.cases()):
                file = f"{name}-{request.round:d}-{request.id:d}"
                task.states.save_cases(request.run, file, cases)


def _pictures_into(evaluator: SupervisedEvaluator, task: Task) -> list[CasePictures]:
    """Have the evaluator's pictures drawn into the site's private folder; empty without any."""
    found = []
    for handler in handlers_of(evaluator):
        owner = handler_owner(handler)
        if isinstance(owner, CasePictures):
            place = f"{task.request.round:d}-{task.request.id:d}"
            owner.file = task.states.path(task.request.run, f"cases-{place}.png")
            owner.table = task.states.path(task.request.run, f"sizes-{place}.csv")
            found.append(owner)
    return found


def overlap_of(
    client: str, trainer: SupervisedTrainer, evaluators: Evaluators
) -> dict[str, Estimate]:
    """How many test cases of a client are validation or training cases, too; empty: none.

    A bundle's evaluator may score cases that the model was trained or chosen on. These counts, of
    the number of test cases, then take the place of every test score: no name of a case leaves the
    site. Cases are compared by the files of their images. The log says which files are in two
    lists, and which lists are empty or cannot be compared.
    """
    files: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for use, engine in {"training": trainer, **evaluators}.items():
        cases = files_of_cases(engine)
        if not cases or None in cases:
            logger.warning("client %s: its %s cases are none, or no list of files", client, use)
            continue
        files[use] = {tuple(map(os.path.realpath, case or ())) for case in cases}

    counts = {}
    for use, name in (("validation", IN_VALIDATION), ("training", IN_TRAINING)):
        shared = sorted(os.path.basename(case[0]) for case in files["test"] & files[use])
        counts[name] = Estimate(float(len(shared)), None, len(files["test"]))
        if shared:
            logger.warning("client %s: no test score, %s cases are in it: %s", client, use, shared)
    return counts if any(count.value for count in counts.values()) else {}
