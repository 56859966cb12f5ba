# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The last measurement of a run: what each client scores with its own model and the global one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from monai_fairfl.messages import (
    ADAPTED_EPOCHS,
    CANDIDATES,
    IN_TRAINING,
    IN_VALIDATION,
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
    names = list(final)
    if strategy.personal:
        names += [PERSONAL[name] for name in final if name in PERSONAL]
    for candidate in candidates_asked(last_mile) if last_mile else ():
        names += _names_of(candidate, final).values()
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
    """
    scores: Scores = {client: {} for client in replies.clients}
    asked = replies.requests.values()
    # Clients that were sent the global model by a request of its own.
    sent_global = {request.client for request in asked if not request.context.get("closing")}
    for reply in replies:
        found = scores[reply.client]
        if not replies.requests[reply.id].context.get("closing"):
            found["global"] = reply.measurements
            continue
        left = dict(reply.measurements)
        for candidate in CANDIDATES:
            of_candidate = _taken(left, _names_of(candidate, final))
            if of_candidate:
                found[candidate] = of_candidate
        own = _taken(left, PERSONAL)
        if own:
            # What it received is the global model, unless it has a reward.
            if reply.client not in sent_global:
                found["global"] = {name: left[name] for name in final if name in left}
            own.update({name: left[name] for name in (IN_VALIDATION, IN_TRAINING) if name in left})
        found["own"] = own or left
    return scores


def notes_on_own_models(replies: Replies) -> dict[str, str]:
    """client -> note, of those that sent nothing of a model that they were to make for themselves.

    Args:
        replies: to :func:`closing_requests`.

    >>> from monai_fairfl.messages import ModelSpec
    >>> asked = Measure("A", {}, ("score", "personal_score"), {"closing": 1})
    >>> notes_on_own_models(Replies([asked.reply(measurements={"score": 0.5})], [asked], None))
    {'A': 'no score of a personal model came: its own score is of the model that it received'}
    """
    personal = set(PERSONAL.values())
    gains = set(map(gain_name, CANDIDATES))
    notes: dict[str, str] = {}
    for reply in replies:
        asked, sent = set(replies.requests[reply.id].measure), set(reply.measurements)
        # A test score is not sent where the test cases are not fit for one.
        if asked & personal and sent & set(PERSONAL) and not sent & personal:
            text = "no score of a personal model came: its own score is of the model that it "
            add_note(notes, reply.client, text + "received")
        if asked & gains and not sent & gains:
            add_note(notes, reply.client, "no gain came: it did not take part in the last mile")
    return notes


def _names_of(candidate: str, final: Sequence[str]) -> dict[str, str]:
    """Final measurement -> its name for a candidate of the last mile; its gain and epochs, too."""
    names = score_names(candidate)
    found = {name: names[name] for name in final if name in names}
    found[gain_name(candidate)] = gain_name(candidate)
    if candidate == "adapted":
        found[ADAPTED_EPOCHS] = ADAPTED_EPOCHS
    return found


def _taken(measured: dict[str, Measurement], names: Mapping[str, str]) -> dict[str, Measurement]:
    """What was measured under the names of another model, which is taken out of ``measured``."""
    return {name: measured.pop(sent) for name, sent in names.items() if sent in measured}
