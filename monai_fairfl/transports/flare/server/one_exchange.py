# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Which strategies can do with one exchange a round, of training and nothing else: all that a
foreign script does.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from monai_fairfl.errors import ConfigError
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.strategies import RoundResult, Strategy

logger = logging.getLogger(__name__)

UNDERSTOOD = frozenset({"previous_weight"})  # of a request's context
TOLD = frozenset({"leave_one_out_error", "global_score"})
PACKAGE = "use FairFLRecipe(bundle=...), whose sites can"


def one_exchange(
    strategy: Strategy, clients: Sequence[str], answer: Callable[[list[Request]], Replies]
) -> RoundResult:
    """Play a round that asks every client once, to train from a model and nothing else: all that a
    script can do.

    Raises:
        ConfigError: when the strategy asks for more; it is named.
    """
    playing = strategy.round(clients)
    requests = next(playing)
    try:
        for request in requests:
            unknown = sorted({*strategy.parts.training, *request.context} - UNDERSTOOD)
            if unknown or request.task != "train":
                raise ConfigError(
                    f"{strategy.name} asks its clients for more than training ({', '.join(unknown) or request.task}), "
                    f"which a script of NVFlare's Client API would not notice: {PACKAGE}"
                )
        playing.send(answer(requests))
    except StopIteration as stop:
        result: RoundResult = stop.value
        return result
    finally:
        playing.close()
    raise ConfigError(
        f"{strategy.name} asks its clients more than once in a round, and a script of NVFlare's Client API answers "
        f"once: {PACKAGE}"
    )


def try_round(strategy: Strategy) -> RoundResult | None:
    """The first round of a copy of ``strategy``, on a model of two numbers; ``None`` where that is
    no model for it.

    Raises:
        ConfigError: when it asks for more than a script can do.
    """
    if getattr(strategy, "output_layer", "") is None:
        raise ConfigError(
            f"{strategy.name} looks at the layer that makes the logits, which no script tells: name its module, for "
            f"example {type(strategy).__name__}(output_layer='head')"
        )
    trial = copy.deepcopy(strategy)
    layer = getattr(strategy, "output_layer", None) or "head"
    weights = {f"{layer}.weight": torch.zeros(2, 1)}
    spec = ModelSpec(tuple(weights), layers=dict.fromkeys(weights, layer), output=(layer, 0))
    clients = [f"client {number}" for number in range(max(2, strategy.min_clients))]

    def answer(requests: list[Request]) -> Replies:
        asked = [replace(request, id=id) for id, request in enumerate(requests)]
        changes = [
            dict.fromkeys(weights, torch.tensor([[1.0], [1.0 + request.id]])) for request in asked
        ]
        told = [dict.fromkeys(request.measure, 0.5) for request in asked]
        replies = [
            Reply(r.client, change, 1, own, id=r.id) for r, change, own in zip(asked, changes, told)
        ]
        return Replies(replies, asked, spec)

    trial.rounds_planned = 2
    trial.start(weights, clients, spec)
    try:
        return one_exchange(trial, clients, answer)
    except ConfigError:
        raise
    except Exception:
        logger.debug("%s cannot be tried on a model of two numbers", strategy.name, exc_info=True)
        return None


def check_strategy(strategy: Strategy, min_clients: int) -> None:
    """Refuse a strategy that cannot work with scripts.

    Raises:
        ConfigError: naming the strategy and what is in its way.
    """
    lacking = sorted(strategy.requires - TOLD)
    if lacking:
        raise ConfigError(
            f"{strategy.name} needs {', '.join(lacking)} from every client, and a script of NVFlare's Client API sends "
            f"no more than its key metric and 'fedce_minus_val': {PACKAGE}"
        )
    if min_clients < strategy.min_clients:
        raise ConfigError(
            f"{strategy.name} needs min_clients of at least {strategy.min_clients}, got {min_clients}"
        )
    try_round(strategy)
