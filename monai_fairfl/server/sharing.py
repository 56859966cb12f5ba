# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Divides the weight and credit of one update among the clients that sent it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from monai_fairfl.guards import Verdict
from monai_fairfl.protocol.averages import in_each_layer
from monai_fairfl.protocol.values import Estimate
from monai_fairfl.strategies.base import RoundResult

MemberShares = Mapping[str, Mapping[str, float]]
"""First client of a group -> each of its clients -> its share of their weight; in sum 1."""


def shares_of_groups(verdicts: Mapping[str, Sequence[Verdict]]) -> MemberShares:
    """The groups of clients that count as one, from the guards' verdicts.

    Args:
        verdicts: client -> verdicts.

    >>> copy = Verdict("share", "the same update", group=("A", "B"), factor=0.5)
    >>> shares_of_groups({"A": [copy], "B": [copy]})
    {'A': {'A': 0.5, 'B': 0.5}}
    """
    groups: dict[tuple[str, ...], dict[str, float]] = {}
    # A client that stands for a group may share its weight again, by a later guard's verdict. So
    # the place of a group in the order is the latest that it has at any of its clients.
    places: dict[tuple[str, ...], int] = {}
    for client, of_client in sorted(verdicts.items()):
        sharing = [verdict for verdict in of_client if verdict.action == "share"]
        for place, verdict in enumerate(sharing):
            groups.setdefault(verdict.group, {})[client] = verdict.factor
            places[verdict.group] = max(places.get(verdict.group, 0), place)

    shares: dict[str, dict[str, float]] = {}
    for group in sorted(groups, key=lambda group: (places[group], group)):
        joined: dict[str, float] = {}
        for client, factor in groups[group].items():
            for member, share in shares.pop(client, {client: 1.0}).items():
                joined[member] = share * factor
        shares[group[0]] = joined
    return shares


def divided(result: RoundResult, shares: MemberShares) -> RoundResult:
    """``result`` with the weight and credit of each group divided among its clients.

    A strategy saw the group's first client only. The others get the same reward as it. Where a
    strategy adds up what a client earned, it divides each round by itself: then contributions have
    the others already.

    Args:
        result: of the strategy.
        shares: of :func:`shares_of_groups`.
    """
    if not shares:
        return result
    aggregation = in_each_layer(result.aggregation, partial(_divided, shares=shares))
    rewards = result.rewards
    if rewards is not None:
        rewards = dict(rewards)
        for first, of_group in shares.items():
            for client in of_group:
                if first in rewards:
                    rewards[client] = rewards[first]
    contributions = _divided(result.contributions, shares)
    return replace(result, aggregation=aggregation, contributions=contributions, rewards=rewards)


def _divided(values: Mapping[str, float | Estimate], shares: MemberShares) -> dict[str, Any]:
    """``values`` of clients, with each group's value divided among its clients."""
    found: dict[str, Any] = dict(values)
    for first, of_group in shares.items():
        if first not in values or any(client in values for client in of_group if client != first):
            continue
        for client, share in of_group.items():
            found[client] = _times(values[first], share)
    return found


def _times(value: float | Estimate, factor: float) -> float | Estimate:
    if not isinstance(value, Estimate):
        return value * factor
    stderr = value.stderr
    if stderr is not None:
        stderr = stderr * factor
    return Estimate(value.value * factor, stderr, value.n)
