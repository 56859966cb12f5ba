# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The last mile: at the end a site may use another model than the one that it would use.

Each candidate is compared with that one on the site's own validation cases, of which no training
has seen any. Which one the site takes, :func:`~monai_fairfl.messages.chosen` decides.
Nothing leaves the site but scores.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monai.engines import SupervisedTrainer

from monai_fairfl.client.adapting import adapted
from monai_fairfl.client.judge import Judge
from monai_fairfl.errors import ConfigError
from monai_fairfl.messages import Estimate, Request, Weights, chosen
from monai_fairfl.model_files.fused import fused_weights
from monai_fairfl.model_files.recipe import state_of_file

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Candidate:
    """A model that a site may use.

    Args:
        weights: of the model.
        gain: on the site's validation cases.
        epochs: of further training; ``None``: there was none.
    """

    weights: Weights
    gain: Estimate
    epochs: int | None = None


@dataclass(frozen=True)
class SiteModels:
    """The models of a site when a run ends.

    Args:
        own: the one that it would use.
        alone: file of the one that the site trained alone; ``None``: it did not.
    """

    own: Weights
    alone: Path | None


def candidates(
    models: SiteModels,
    judge: Judge,
    trainer: SupervisedTrainer,
    initial_state: Mapping[str, Any],
    request: Request,
) -> dict[str, Candidate]:
    """Name -> candidate, of :data:`~monai_fairfl.messages.CANDIDATES`.

    Args:
        models: of the site.
        judge: compares models with the one that the site would use.
        trainer: of the bundle; what it goes on from is put back.
        initial_state: of that model, with an optimizer of its own.
        request: with the settings of the last mile.
    """
    found = {}
    context = request.context

    # The site's own model, trained a little further.
    further = adapted(
        trainer,
        judge,
        initial_state,
        epochs=int(context["adapt_epochs"]),
        rate=context["adapt_rate"],
        seed=request.seed,
    )
    found["adapted"] = Candidate(further.weights, further.gain, further.epochs)

    # The model that the site trained alone.
    if models.alone is not None:
        alone = _read(models.alone, models.own, request.client)
        if alone is not None:
            found["alone"] = Candidate(alone, judge.gain(alone))
            if context.get("adapt_fuse", 0):
                fused = _fused(found, models.own, alone)
                found["fused"] = Candidate(fused, judge.gain(fused))
    return found


def _fused(found: Mapping[str, Candidate], own: Weights, alone: Weights) -> Weights:
    """The model that the site would take so far, fused with the one that it trained alone.

    A site that would take the one trained alone fuses this with the one that it would use.
    """
    taken = chosen({name: candidate.gain for name, candidate in found.items()})
    if taken in (None, "alone"):
        return fused_weights([own, alone])
    return fused_weights([found[taken].weights, alone])


def _read(file: Path, own: Weights, client: str) -> Weights | None:
    """The model in ``file``; ``None``, with a warning, where it cannot replace ``own``."""
    try:
        weights = state_of_file(file)
    except ConfigError as error:
        logger.warning("client %s: the model trained alone is no candidate: %s", client, error)
        return None
    for name, tensor in own.items():
        if name not in weights or weights[name].shape != tensor.shape:
            logger.warning(
                "client %s: the model trained alone in %s is of another network: %r is missing or "
                "has another shape. It is no candidate",
                client,
                file,
                name,
            )
            return None
    return weights
