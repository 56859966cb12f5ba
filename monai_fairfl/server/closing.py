# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The last measurement of a run: what each client scores with its own model and the global one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from monai_fairfl.messages import (
    ADAPTED_EPOCHS,
    CANDIDATES,
    SCORES,
    SENT_UNASKED,
    Measure,
    Measurement,
    Request,
    gain_name,
    score_names,
)
from monai_fairfl.replies import Replies
from monai_fairfl.strategies.base import Strategy

Scores = dict[str, dict[str, dict[str, Measurement]]]
"""client -> model -> what it measured.

The models are ``"own"``, that the client would use; ``"global"``, where that is another one; and
the candidates of the last mile, each with the gain that decides whether it is taken.
"""


def closing_requests(
    strategy: Strategy,
    clients: Sequence[str],
    final: Sequence[str],
    last_mile: Mapping[str, float],
    score_global: bool,
) -> list[Request]:
    """One request for each client's own model, then one for the global model where it is another.

    Only the first kind is marked as closing: what a site stores then is of its own model.

    Args:
        strategy: after the last round, with its models.
        clients: that are asked.
        final: names of the measurements.
        last_mile: its settings as the context of a request; empty: there is none.
        score_global: whether clients with another model of their own are sent the global one.
    """
    names = list(final)
    made = ["personal"] if strategy.personal else []
    if last_mile:
        offered = CANDIDATES if last_mile["adapt_fuse"] else ("adapted", "alone")
        names += [*map(gain_name, offered), ADAPTED_EPOCHS]
        made += offered
    for model in made:
        names += [sent for name, sent in score_names(model).items() if name in final]
    closing = {"closing": 1, **last_mile}
    requests = [Measure(client, strategy.start_of(client), names, closing) for client in clients]
    for client in clients:
        if score_global and client in strategy.rewards:
            requests.append(Measure(client, strategy.weights, final))
    return requests


def closing_scores(replies: Replies, final: Sequence[str]) -> Scores:
    """What each client measured of its own model and of the global one.

    Args:
        replies: to :func:`closing_requests`.
        final: names of the measurements.

    >>> from monai_fairfl.messages import ModelSpec
    >>> asked = Measure("A", {}, ("score",), {"closing": 1})
    >>> sent = asked.reply(measurements={"score": 0.5})
    >>> closing_scores(Replies([sent], [asked], ModelSpec(())), ["score"])
    {'A': {'own': {'score': 0.5}}}
    """
    scores: Scores = {client: {} for client in replies.clients}
    # Clients that were sent the global model by a request of its own.
    requests = replies.requests.values()
    sent_global = {request.client for request in requests if not request.context.get("closing")}
    for reply in replies:
        of_client = scores[reply.client]
        if not replies.requests[reply.id].context.get("closing"):
            of_client["global"] = dict(reply.measurements)
            continue
        received = of_client["own"] = {}
        for name, value in reply.measurements.items():
            # What no prefix gives to a model that the client made is of the one that it received.
            model, _, score = name.partition("_")
            if model in ("personal", *CANDIDATES):
                of_model = of_client.setdefault(model, {})
                of_model[score if score in SCORES else name] = value
            else:
                received[name] = value

        if personal := of_client.pop("personal", {}):
            if reply.client not in sent_global:
                # The received model is the global one, unless the client has a reward.
                of_client["global"] = {name: received[name] for name in final if name in received}
            unasked = {name: received[name] for name in SENT_UNASKED if name in received}
            of_client["own"] = personal | unasked
    return scores
