# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Coalitions within a round: models of every subset of clients, scored on the clients' validation
data.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from itertools import chain, combinations

from monai_fairfl.errors import FederationError
from monai_fairfl.games import Game, exact_shapley
from monai_fairfl.protocol.averages import sample_shares
from monai_fairfl.protocol.messages import Measure, Request
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.protocol.values import Estimate, Weights
from monai_fairfl.strategies.base import Strategy

AT_ONCE = 8  # coalition models per exchange: memory for so many models, and a wait per exchange on a real network
MOST_CLIENTS = 10  # 2^10 models to score in every round

Coalition = frozenset[str]


def all_coalitions(clients: Iterable[str]) -> list[Coalition]:
    """Every subset of the clients, small ones first.

    >>> [sorted(c) for c in all_coalitions("AB")]
    [[], ['A'], ['B'], ['A', 'B']]
    """
    names = sorted(clients)
    return [
        frozenset(c)
        for c in chain.from_iterable(combinations(names, k) for k in range(len(names) + 1))
    ]


def coalition_model(strategy: Strategy, local: Replies, coalition: Coalition) -> Weights:
    r"""The model had only ``coalition`` taken part:
    :math:`w_t + \sum_{i \in S} n_i \Delta_i / \sum_{i \in S} n_i`.
    """
    if not coalition:
        return strategy.weights
    members = local.without(
        {reply.id: "not of this coalition" for reply in local if reply.client not in coalition}
    )
    return {
        **strategy.weights,
        **members.average(sample_shares(members), strategy.buffers, strategy.weights),
    }


def coalition_values(
    strategy: Strategy, local: Replies, coalitions: Iterable[Coalition]
) -> Generator[list[Request], Replies, dict[Coalition, float]]:
    """Mean validation Dice of each coalition's model: over the clients, by their validation cases.

    A part of a strategy's round: ``values = yield from coalition_values(self, local, coalitions)``.
    Only clients that scored every model count, so that the values can be compared.

    Raises:
        FederationError: when no client scored all models.
    """
    scores: dict[Coalition, dict[str, Estimate]] = {}
    every = list(coalitions)
    for some in (every[at : at + AT_ONCE] for at in range(0, len(every), AT_ONCE)):
        models = {coalition: coalition_model(strategy, local, coalition) for coalition in some}
        asked = [coalition for coalition in some for _ in local.clients]
        replies = yield [
            Measure(c, model, ("score",)) for model in models.values() for c in local.clients
        ]
        coalition_of = dict(zip(sorted(replies.requests), asked, strict=True))
        for reply in replies:
            found = reply.measurements.get("score")
            mean = found["mean"] if isinstance(found, Mapping) else found
            if mean is not None:
                scores.setdefault(coalition_of[reply.id], {})[reply.client] = (
                    mean if isinstance(mean, Estimate) else Estimate(mean)
                )
    whole = [c for c in local.clients if all(c in scores.get(coalition, {}) for coalition in every)]
    for client in sorted(set(local.clients) - set(whole)):
        strategy.note(
            client,
            "it did not score every coalition's model, so its cases do not count in anybody's value",
        )
    if not whole:
        raise FederationError(
            "no client scored every coalition's model: check that the sites have validation data"
        )
    return {
        coalition: sum(by[c].value * by[c].n for c in whole) / sum(by[c].n for c in whole)
        for coalition, by in scores.items()
    }


def contribution_index(
    strategy: Strategy, local: Replies
) -> Generator[list[Request], Replies, dict[str, float]]:
    """Shapley value of each client in this round, utility validation Dice; a part of a strategy's
    round.

    Raises:
        FederationError: with more than ten clients, whose 2^N models nobody would wait for.
    """
    if len(local.clients) > MOST_CLIENTS:
        raise FederationError(
            f"{len(local.clients)} clients have {2 ** len(local.clients)} coalitions to score in every round, "
            f"at most {MOST_CLIENTS} clients are possible: set clients_per_round, or estimate contributions after "
            "the run (monai_fairfl.valuation)"
        )
    values = yield from coalition_values(strategy, local, all_coalitions(local.clients))
    game = Game(local.clients, values.__getitem__)
    return {client: float(value) for client, value in exact_shapley(game).values.items()}
