# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Strategies that work with scripts: one exchange a round, of training and nothing else.

Whether a strategy is one of them shows in a trial round on a tiny model.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from monai_fairfl.errors import ConfigError
from monai_fairfl.messages import ModelSpec, Reply, Request
from monai_fairfl.replies import Replies
from monai_fairfl.strategies import RoundResult, Strategy
from monai_fairfl.strategies.playing import play_round

logger = logging.getLogger(__name__)

UNDERSTOOD_CONTEXT = frozenset({"previous_weight"})
"""Context that a script understands."""
SENT_BY_SCRIPTS = frozenset({"leave_one_out_error", "global_score"})
"""Measurements that every script can send."""
USE_A_BUNDLE = "use FairFLRecipe(bundle=...), whose sites can"


def check_strategy(strategy: Strategy, min_clients: int) -> None:
    """Refuse a strategy that cannot work with scripts.

    Raises:
        ConfigError: naming the strategy and what is in its way.
    """
    lacking = sorted(strategy.requires - SENT_BY_SCRIPTS)
    if lacking:
        raise ConfigError(
            f"{strategy.name} needs {', '.join(lacking)} from every client, and a script of "
            "NVFlare's Client API sends no more than its key metric and 'fedce_minus_val': "
            f"{USE_A_BUNDLE}"
        )
    if min_clients < strategy.min_clients:
        raise ConfigError(
            f"{strategy.name} needs min_clients of at least {strategy.min_clients}, "
            f"got {min_clients}"
        )
    try_round(strategy)


def one_exchange(
    strategy: Strategy, clients: Sequence[str], answer: Callable[[list[Request]], Replies]
) -> RoundResult:
    """Play a round that asks every client once, to train a model and nothing else.

    Args:
        strategy: that has been started.
        clients: of the round.
        answer: returns the replies to the round's requests.

    Raises:
        ConfigError: when the strategy asks for more; it is named.
    """
    exchanges = 0

    def answer_once(requests: list[Request]) -> Replies:
        nonlocal exchanges
        exchanges += 1
        if exchanges > 1:
            raise ConfigError(
                f"{strategy.name} asks its clients more than once in a round, and a script of "
                f"NVFlare's Client API answers once: {USE_A_BUNDLE}"
            )
        for request in requests:
            _check_request(strategy, request)
        return answer(requests)

    return play_round(strategy, clients, answer_once)


def try_round(strategy: Strategy) -> RoundResult | None:
    """Play the first round of a copy of ``strategy`` on a model of two numbers.

    Returns:
        ``None`` where the strategy cannot train such a model.

    Raises:
        ConfigError: when it asks for more than a script can do.
    """
    trial = copy.deepcopy(strategy)
    trial.rounds_planned = 2
    weights, spec = _tiny_model(trial)
    clients = [f"client {number}" for number in range(max(2, trial.min_clients))]

    def answer(requests: list[Request]) -> Replies:
        numbered = [replace(request, id=number) for number, request in enumerate(requests)]
        replies = [_made_up_reply(request, spec) for request in numbered]
        return Replies(replies, numbered, spec)

    try:
        trial.start(weights, clients, spec)
        return one_exchange(trial, clients, answer)
    except ConfigError:
        raise
    except Exception:
        logger.debug("%s cannot be tried on a model of two numbers", strategy.name, exc_info=True)
        return None


def _check_request(strategy: Strategy, request: Request) -> None:
    context = {*strategy.parts.training, *request.context}
    unknown = sorted(context - UNDERSTOOD_CONTEXT)
    if not unknown and request.task == "train":
        return
    more = ", ".join(unknown) or request.task
    raise ConfigError(
        f"{strategy.name} asks its clients for more than training ({more}), which a script of "
        f"NVFlare's Client API would not notice: {USE_A_BUNDLE}"
    )


def _tiny_model(strategy: Strategy) -> tuple[dict[str, torch.Tensor], ModelSpec]:
    """Return a model of one layer, which bears the name of the strategy's output layer.

    The specification does not say that this layer makes the logits: no script reports that.
    """
    layer = getattr(strategy, "output_layer", None) or "layer"
    name = f"{layer}.weight"
    weights = {name: torch.zeros(2, 1)}
    return weights, ModelSpec((name,), layers={name: layer})


def _made_up_reply(request: Request, spec: ModelSpec) -> Reply:
    """Return a reply whose update and measurements are as good as any."""
    change = torch.tensor([[1.0], [1.0 + request.id]])
    update = dict.fromkeys(spec.parameters, change)
    measurements = dict.fromkeys(request.measure, 0.5)
    return Reply(request.client, update, 1, measurements, id=request.id)
