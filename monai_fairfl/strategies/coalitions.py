# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Coalitions within a round: models of subsets of clients, scored on the clients' validation data.

These are parts of a strategy's round, used by ``yield from``.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from itertools import chain, combinations

import numpy as np
import torch

from monai_fairfl.errors import FederationError
from monai_fairfl.games import Coalition, Game, shapley_values
from monai_fairfl.messages import Estimate, Measure, Request, Weights, estimate_of
from monai_fairfl.replies import Replies, sample_shares
from monai_fairfl.strategies.base import Strategy

AT_ONCE = 8
"""Coalition models per exchange: memory for so many models, and one wait on a real network."""

MOST_CLIENTS = 10
"""With more there would be more than 2^10 models to score in every round."""


JUDGED_BY = ("everybody", "others")
"""Whose scores can decide what a client is worth: all clients', or all but its own."""


def all_coalitions(clients: Iterable[str]) -> list[Coalition]:
    """Every subset of the clients, small ones first.

    >>> [sorted(c) for c in all_coalitions("AB")]
    [[], ['A'], ['B'], ['A', 'B']]
    """
    names = sorted(clients)
    subsets = chain.from_iterable(combinations(names, size) for size in range(len(names) + 1))
    return list(map(frozenset, subsets))


def only_members(replies: Replies, coalition: Coalition) -> Replies:
    """The replies of the coalition's members."""
    others = [reply.id for reply in replies if reply.client not in coalition]
    return replies.without(dict.fromkeys(others, "not of this coalition"))


def model_of_members(start: Weights, members: Replies, buffers: str) -> dict[str, torch.Tensor]:
    r"""``start`` moved by the members' mean update, by images; itself where there is no member.

    .. math:: w_t + \sum_{i \in S} n_i \Delta_i / \sum_{i \in S} n_i

    Args:
        start: a whole model; what is not averaged stays as it is there.
        members: the replies of the coalition S.
        buffers: policy, see :meth:`Replies.average`.
    """
    if not members:
        return dict(start)
    return {**start, **members.average(sample_shares(members), buffers, start)}


def coalition_scores(
    strategy: Strategy, local: Replies, coalitions: Iterable[Coalition]
) -> Generator[list[Request], Replies, dict[Coalition, dict[str, Estimate]]]:
    """Coalition -> client -> the validation Dice of this coalition's model on the client's cases.

    A part of a strategy's round: ``scores = yield from coalition_scores(self, local, coalitions)``.
    Only clients that scored every model count, so that the scores can be compared. So a client that
    does not answer one exchange is not asked in the next ones.
    """
    scores: dict[Coalition, dict[str, Estimate]] = {coalition: {} for coalition in coalitions}
    every_coalition = list(scores)
    answering = local.clients
    for first in range(0, len(every_coalition), AT_ONCE):
        requests, asked = [], []
        for coalition in every_coalition[first : first + AT_ONCE]:
            members = only_members(local, coalition)
            model = model_of_members(strategy.weights, members, strategy.buffers)
            for client in answering:
                requests.append(Measure(client, model, ("score",)))
                asked.append(coalition)
        replies = yield requests

        # The federation numbered the requests in their order.
        coalition_of = dict(zip(sorted(replies.requests), asked, strict=True))
        for reply in replies:
            if "score" in reply.measurements:
                by_client = scores[coalition_of[reply.id]]
                by_client[reply.client] = estimate_of(reply.measurements["score"])
        answering = replies.clients

    # Only the clients that scored every model count.
    for client in local.clients:
        if not all(client in by_client for by_client in scores.values()):
            strategy.note(
                client,
                "it did not score every coalition's model, so its cases do not count in anybody's "
                "value",
            )
            for by_client in scores.values():
                by_client.pop(client, None)
    return scores


def mean_score(scores: Mapping[str, Estimate], without: str = "") -> float:
    """The mean of one model's scores over the clients, by their validation cases.

    Args:
        scores: client -> score.
        without: a client whose own score does not count.

    Raises:
        FederationError: when no other client scored the model.

    >>> scores = {"A": Estimate(0.9, n=1), "B": Estimate(0.6, n=2), "C": Estimate(0.3, n=1)}
    >>> round(mean_score(scores), 6), round(mean_score(scores, without="A"), 6)
    (0.6, 0.5)
    """
    estimates = [estimate for client, estimate in scores.items() if client != without]
    if not estimates:
        raise FederationError(
            "no client that may judge scored every coalition's model: check that the sites have "
            "validation data"
        )
    cases = sum(estimate.n for estimate in estimates)
    return sum(estimate.value * estimate.n for estimate in estimates) / cases


def contribution_index(
    strategy: Strategy, local: Replies
) -> Generator[list[Request], Replies, np.ndarray]:
    """The Shapley value of each client in this round, by validation Dice; shape (N,)."""
    scores = yield from coalition_scores(strategy, local, all_coalitions(local.clients))
    game = Game(local.clients, lambda coalition: mean_score(scores[coalition]))
    return shapley_values(game.table())
