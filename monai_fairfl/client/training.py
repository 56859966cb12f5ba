# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""One round's training at a client, with the handlers that a request chooses, and the last mile."""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Engine, Events
from ignite.metrics import Metric
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.handlers import LrScheduleHandler
from torch.optim.lr_scheduler import ReduceLROnPlateau

from monai_fairfl.client.state import Task
from monai_fairfl.errors import ConfigError
from monai_fairfl.handlers.training import Detachable
from monai_fairfl.measurements.probe import (
    MEAN_COLUMN,
    Probe,
    estimate,
    files_of_cases,
    load_weights,
    seed_loader,
)
from monai_fairfl.messages import IN_TRAINING, IN_VALIDATION, Estimate, Request, Weights, chosen
from monai_fairfl.metrics import CasePictures
from monai_fairfl.model_files import fused_weights, state_of_file
from monai_fairfl.utils.engine_internals import (
    Handler,
    forget_unfinished_run,
    handler_owner,
    handlers_of,
    is_monai_best_metric,
    is_monai_output_step,
    only_handlers,
    remove_handlers,
    require_whole_run,
)
from monai_fairfl.utils.tensors import on_cpu, own_random_state, seed_of

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


def pictures_into(evaluator: SupervisedEvaluator, task: Task) -> list[CasePictures]:
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


# ---- the last mile: at the end a site may use another model than the one that it would use

# Each candidate is compared with that one on the site's own validation cases, of which no training
# has seen any. Which one the site takes, ``messages.chosen`` decides. Only scores leave the site.

PATIENCE = 5
"""Epochs in a row without a better validation score after which the further training ends."""


@dataclass(frozen=True)
class Candidate:
    """A model that a site may use.

    Args:
        weights: of the model.
        gain: on the site's validation cases.
        epochs: of further training until it.
    """

    weights: Weights
    gain: Estimate
    epochs: int = 0


def candidates(
    trainer: SupervisedTrainer,
    probe: Probe,
    begin: Mapping[str, Any],
    alone: str | Path | None,
    request: Request,
) -> dict[str, Candidate]:
    """Name -> candidate, of :data:`~monai_fairfl.messages.CANDIDATES`.

    Args:
        trainer: of the bundle; it goes on from another state afterwards.
        probe: of the validation cases.
        begin: state of the model that the site would use, with an optimizer of its own.
        alone: file of the one that the site trained alone; ``None``: it did not.
        request: with the settings of the last mile.

    Raises:
        TransportAborted: when the further training was interrupted.
    """
    own = begin["local"]
    before = _scores_of_cases(probe, own)

    def gain_of(weights: Weights) -> Estimate:
        """The mean over the cases of a model's score less that of the site's own."""
        found = estimate(_scores_of_cases(probe, weights) - before)
        # A case may have no score, such as one without any label.
        return found if found.n else Estimate(0.0, None, 0)

    unchanged = Candidate(own, Estimate(0.0, None, len(before)))
    found = {"adapted": _adapted(trainer, gain_of, begin, unchanged, request)}
    if alone is None:
        return found
    try:
        other = state_of_file(alone)
        trainer.network.load_state_dict(other)  # fails where it is of another network
    except (ConfigError, RuntimeError) as error:
        text = "client %s: the model trained alone is no candidate: %s"
        logger.warning(text, request.client, error)
        return found
    found["alone"] = Candidate(other, gain_of(other))
    if request.context.get("adapt_fuse", 0):
        # What the site would take so far, fused with the model that it trained alone. A site that
        # would take this one fuses it with the model that it would use.
        is_adapted = chosen({name: one.gain for name, one in found.items()}) == "adapted"
        fused = fused_weights([found["adapted"].weights if is_adapted else own, other])
        found["fused"] = Candidate(fused, gain_of(fused))
    return found


def _scores_of_cases(probe: Probe, weights: Weights) -> torch.Tensor:
    """The score of each validation case; none where the metric gives a mean alone."""
    probe.score(weights)
    scores = [columns[MEAN_COLUMN] for columns in probe.cases().values()]
    return torch.tensor(scores, dtype=torch.float64)


def _adapted(
    trainer: SupervisedTrainer,
    gain_of: Callable[[Weights], Estimate],
    begin: Mapping[str, Any],
    best: Candidate,
    request: Request,
) -> Candidate:
    """Train the site's own model on with a small, constant learning rate, and stop early.

    The best epoch counts; after :data:`PATIENCE` epochs without a better one the training ends.
    """

    def is_no_schedule(handler: Handler) -> bool:
        return not isinstance(handler_owner(handler), LrScheduleHandler)

    load_state(trainer, begin)
    for epoch in range(1, int(request.context["adapt_epochs"]) + 1):
        for group in trainer.optimizer.param_groups:
            group["lr"] = request.context["adapt_rate"]
        trainer.state.max_epochs = trainer.state.epoch + 1
        seed = seed_of(request.seed, "adapt", epoch)
        with only_handlers(trainer, is_no_schedule), one_round(trainer, seed, []):
            trainer.run()
        weights = state_of(trainer)["local"]
        gain = gain_of(weights)
        if gain.value > best.gain.value:
            best = Candidate(weights, gain, epoch)
        if epoch - best.epochs >= PATIENCE:
            break
    return best
