# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The last measurement of a run: what each client scores with its own model and the global one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from monai_fairfl.messages import (
    ADAPTED_EPOCHS,
    CANDIDATES,
    SENT_UNASKED,
    Measure,
    Measurement,
    Request,
    add_note,
    candidates_asked,
    gain_name,
    score_names,
)
from monai_fairfl.replies import Replies
from monai_fairfl.strategies.base import Strategy

PERSONAL = {"score": "personal_score", "test_score": "personal_test_score"}
"""The same measurement of a client's personal model."""

SENT_AS = {name: {**score_names(name), gain_name(name): gain_name(name)} for name in CANDIDATES}
"""Candidate of the last mile -> measurement of it -> the name under which a client sends it."""
SENT_AS["adapted"][ADAPTED_EPOCHS] = ADAPTED_EPOCHS

Scores = dict[str, dict[str, Mapping[str, Measurement]]]
"""client -> model -> what it measured.

The models are ``"own"``, that the client would use; ``"global"``, where that is another one; and
the candidates of the last mile, each with the gain that decides whether it is taken.
"""


def closing_requests(
    strategy: Strategy,
    clients: Sequence[str],
    final: Sequence[str],
    last_mile: Mapping[str, float] = {},
    score_global: bool = True,
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
    asked = [PERSONAL] if strategy.personal else []
    if last_mile:
        asked += [SENT_AS[candidate] for candidate in candidates_asked(last_mile)]
    names = list(final)
    for sent_as in asked:
        # All but the scores, which only the settings ask for.
        names += [sent for name, sent in sent_as.items() if name in final or name not in PERSONAL]
    closing = {"closing": 1, **last_mile}
    requests = [Measure(client, strategy.start_of(client), names, closing) for client in clients]
    for client in clients:
        if score_global and client in strategy.rewards:
            requests.append(Measure(client, strategy.weights, final))
    return requests


def closing_scores(replies: Replies, final: Sequence[str]) -> tuple[Scores, dict[str, str]]:
    """What each client measured of its own model and of the global one.

    Args:
        replies: to :func:`closing_requests`.
        final: names of the measurements.

    Returns:
        The scores; and client -> note, of those that sent nothing of a model that they were to make
        for themselves.

    >>> from monai_fairfl.messages import ModelSpec
    >>> asked = Measure("A", {}, ("score", "personal_score"), {"closing": 1})
    >>> sent = asked.reply(measurements={"score": 0.5})
    >>> closing_scores(Replies([sent], [asked], ModelSpec(())), ["score"])
    ({'A': {'own': {'score': 0.5}}}, {'A': 'no score of a personal model came: ...'})
    """
    scores: Scores = {client: {} for client in replies.clients}
    notes: dict[str, str] = {}
    # Clients that were sent the global model by a request of its own.
    requests = replies.requests.values()
    sent_global = {request.client for request in requests if not request.context.get("closing")}
    for reply in replies:
        client, request = reply.client, replies.requests[reply.id]
        if not request.context.get("closing"):
            scores[client]["global"] = reply.measurements
            continue
        # What is left, after the models that the client made, is of the model that it received.
        left = dict(reply.measurements)
        made = {candidate: _taken(left, SENT_AS[candidate]) for candidate in CANDIDATES}
        scores[client].update({name: found for name, found in made.items() if found})
        own = _taken(left, PERSONAL)
        if own:
            # That is the global one, unless the client has a reward.
            if client not in sent_global:
                scores[client]["global"] = {name: left[name] for name in final if name in left}
            own.update({name: left[name] for name in SENT_UNASKED if name in left})
        scores[client]["own"] = own or left

        # A test score is not sent where the test cases are not fit for one.
        asked = set(request.measure)
        if asked & {*PERSONAL.values()} and not own and left.keys() & PERSONAL.keys():
            text = "no score of a personal model came: its own score is of the received one"
            add_note(notes, client, text)
        gains = {gain_name(candidate) for candidate in CANDIDATES}
        if asked & gains and not reply.measurements.keys() & gains:
            add_note(notes, client, "no gain came: it did not take part in the last mile")
    return scores, notes


def _taken(measured: dict[str, Measurement], names: Mapping[str, str]) -> dict[str, Measurement]:
    """What was measured under the names of another model, which is taken out of ``measured``."""
    return {name: measured.pop(sent) for name, sent in names.items() if sent in measured}
