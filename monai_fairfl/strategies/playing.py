# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Plays a strategy's round: sends it the replies to what it asks, until it returns the result."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.messages import Estimate, Request, plain_numbers
from monai_fairfl.replies import Replies
from monai_fairfl.strategies.base import RoundResult, Strategy

DEPTHS = {"aggregation": (1, 2), "contributions": (1, 1), "details": (2, 3)}
"""What a round gives to the ledger -> its fewest and most mappings in each other."""


def play_round(
    strategy: Strategy, clients: Sequence[str], answer: Callable[[list[Request]], Replies]
) -> RoundResult:
    """Play one round of a strategy.

    Args:
        strategy: that has been started.
        clients: that take part in the round.
        answer: returns the replies to the requests of one exchange.

    Returns:
        The strategy's result, whose numbers are Python's, since the ledger is JSON.

    Raises:
        ConfigError: naming the strategy, and what its round asked or returned in place of what it
            must.

    >>> import torch
    >>> from monai_fairfl import ModelSpec
    >>> from monai_fairfl.strategies import FedAvg
    >>> fedavg = FedAvg()
    >>> fedavg.start({"w": torch.zeros(1)}, ["elm", "oak"], ModelSpec(("w",)))
    >>> def answer(requests):
    ...     asked = [replace(request, id=id) for id, request in enumerate(requests)]
    ...     replies = [request.reply({"w": torch.ones(1)}, 10) for request in asked]
    ...     return Replies(replies, asked, fedavg.spec)
    >>> play_round(fedavg, ["elm", "oak"], answer).aggregation
    {'elm': 0.5, 'oak': 0.5}
    """
    generator: object = strategy.round(clients)
    if not isinstance(generator, Generator):
        raise _slip(strategy, "ask with replies = yield [Train(...), ...]", generator)
    replies: Replies | None = None
    with closing(generator):
        while True:
            try:
                # The first None begins it.
                asked = generator.send(replies)
            except StopIteration as stop:
                return _checked(strategy, stop.value)
            is_list = isinstance(asked, (list, tuple))
            if not is_list or not all(isinstance(item, Request) for item in asked):
                raise _slip(strategy, "yield a list of requests", asked)
            replies = answer(list(asked))


def _checked(strategy: Strategy, result: Any) -> RoundResult:
    """What a round returned, if the ledger can hold it; its numbers become Python's."""
    if not isinstance(result, RoundResult):
        raise _slip(strategy, "end with return self.finish(...)", result)
    plain: dict[str, Any] = {name: plain_numbers(getattr(result, name)) for name in DEPTHS}
    for name, (least, most) in DEPTHS.items():
        _check_depth(strategy, plain[name], name, least, most)
    return replace(result, **plain)


def _check_depth(strategy: Strategy, value: Any, place: str, least: int, most: int) -> None:
    """Refuse what is no number after ``least`` to ``most`` mappings; ``None`` stands for one."""
    if isinstance(value, Mapping) and most > 0:
        for key, item in value.items():
            _check_depth(strategy, item, f"{place}[{key!r}]", least - 1, most - 1)
    elif least > 0 or not (value is None or isinstance(value, (int, float, Estimate))):
        wanted = "a mapping" if least > 0 else "a number"
        raise _slip(strategy, f"give {place} as {wanted}", value)


def _slip(strategy: Strategy, must: str, found: object) -> ConfigError:
    """The error of a round that asks or returns something else."""
    kind = "None" if found is None else type(found).__name__
    return ConfigError(f"strategy {strategy.name}: its round must {must}, got {kind}")
