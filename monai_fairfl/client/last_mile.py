# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The last mile: at the end a site may use another model than the one that it would use.

Each candidate is compared with that one on the site's own validation cases, of which no training
has seen any. Which one the site takes, :func:`~monai_fairfl.messages.chosen` decides.
Nothing leaves the site but scores.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from monai.engines import SupervisedTrainer
from monai.handlers import LrScheduleHandler

from monai_fairfl.client.training import load_state, one_round, state_of
from monai_fairfl.errors import ConfigError
from monai_fairfl.measurements.probe import MEAN_COLUMN, Probe, estimate
from monai_fairfl.messages import Estimate, Request, Weights, chosen
from monai_fairfl.model_files.recipe import fused_weights, state_of_file
from monai_fairfl.utils.engine_internals import Handler, handler_owner, only_handlers
from monai_fairfl.utils.tensors import seed_of

logger = logging.getLogger(__name__)

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
