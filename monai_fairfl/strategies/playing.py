# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Plays a strategy's round: sends it the replies to what it asks, until it returns the result."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, TypeVar

from monai_fairfl.errors import ConfigError
from monai_fairfl.messages import Estimate, Request, plain_numbers
from monai_fairfl.replies import Replies
from monai_fairfl.strategies.base import RoundResult, Rounds, Strategy

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
Returned = TypeVar("Returned")

FORMS = {
    "aggregation": ("client -> weight, or layer -> client -> weight", 1, 2),
    "contributions": ("client -> number or Estimate", 1, 1),
    "details": ("name -> client -> number, or name -> client -> class or layer -> number", 2, 3),
}
"""What a round gives to the ledger -> its form, and its fewest and most mappings in each other."""


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
    >>> from monai_fairfl import ModelSpec, Reply
    >>> from monai_fairfl.strategies import FedAvg
    >>> fedavg = FedAvg()
    >>> fedavg.start({"w": torch.zeros(1)}, ["elm", "oak"], ModelSpec(("w",)))
    >>> def answer(requests):
    ...     asked = [replace(request, id=id) for id, request in enumerate(requests)]
    ...     step = {"w": torch.ones(1)}
    ...     replies = [Reply(one.client, step, 10, {}, id=one.id) for one in asked]
    ...     return Replies(replies, asked, fedavg.spec)
    >>> play_round(fedavg, ["elm", "oak"], answer).aggregation
    {'elm': 0.5, 'oak': 0.5}
    """
    returned = drive(
        _begun(strategy, clients), lambda asked: answer(_require_requests(strategy, asked))
    )
    return _require_result(strategy, returned)


def drive(
    generator: Generator[Asked, Answer, Returned], answer: Callable[[Asked], Answer]
) -> Returned:
    """Send a generator the answer to each thing that it yields.

    Returns:
        What it returned.

    >>> def lengths():
    ...     first = yield "one"
    ...     second = yield "three"
    ...     return first, second
    >>> drive(lengths(), len)
    (3, 5)
    """
    with closing(generator):
        answered: Any = None
        while True:
            try:
                # The first None begins it.
                asked = generator.send(answered)
            except StopIteration as stop:
                returned: Returned = stop.value
                return returned
            answered = answer(asked)


def _begun(strategy: Strategy, clients: Sequence[str]) -> Rounds:
    """The strategy's round, if it is a generator of requests."""
    generator: object = strategy.round(clients)
    if isinstance(generator, Generator):
        return generator
    raise ConfigError(
        f"strategy {strategy.name}: its round has no yield, and returned a "
        f"{type(generator).__name__}; it must ask with replies = yield [Train(...), ...]"
    )


def _require_requests(strategy: Strategy, asked: Any) -> list[Request]:
    """Return what a round yielded, if it is a list of requests."""
    if isinstance(asked, (list, tuple)):
        others = [item for item in asked if not isinstance(item, Request)]
        if not others:
            return list(asked)
        asked = others[0]
        what = f"a list with a {type(asked).__name__}"
    else:
        what = f"a {type(asked).__name__}"
    raise ConfigError(
        f"strategy {strategy.name}: its round yielded {what}; it must yield a list of requests: "
        "replies = yield [Train(...), ...]"
    )


def _require_result(strategy: Strategy, returned: Any) -> RoundResult:
    """Return what a round returned, if it is the outcome of one; its numbers become Python's."""
    if not isinstance(returned, RoundResult):
        what = "nothing" if returned is None else f"a {type(returned).__name__}"
        raise ConfigError(
            f"strategy {strategy.name}: its round returned {what}; it must end with "
            "return self.finish(...)"
        )
    plain: dict[str, Any] = {}
    for name, (form, least, most) in FORMS.items():
        found = plain_numbers(getattr(returned, name))
        wrong = _misplaced(found, name, least, most)
        if wrong is not None:
            raise ConfigError(f"strategy {strategy.name}: {wrong}; {name} must map {form}")
        plain[name] = found
    return replace(returned, **plain)


def _misplaced(value: Any, place: str, least: int, most: int) -> str | None:
    """What stands where a mapping or a number should; ``None`` where all is in its place.

    Args:
        value: of which the numbers are Python's.
        place: where it stands, for the text.
        least: fewest mappings that come before a number.
        most: most of them.

    >>> _misplaced({"gap": {"A": 0.5, "B": [1, 2]}}, "details", 2, 3)
    "details['gap']['B'] is a list"
    """
    if isinstance(value, Mapping) and most > 0:
        for key, item in value.items():
            wrong = _misplaced(item, f"{place}[{key!r}]", least - 1, most - 1)
            if wrong is not None:
                return wrong
        return None
    # None is a number that a client does not have.
    if least <= 0 and (value is None or isinstance(value, (int, float, Estimate))):
        return None
    return f"{place} is {'None' if value is None else f'a {type(value).__name__}'}"
