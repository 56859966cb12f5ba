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
from monai_fairfl.server.global_models import GlobalModels

PERSONAL = {"score": "personal_score", "test_score": "personal_test_score"}
"""The same measurement of a client's personal model."""

Scores = dict[str, dict[str, Mapping[str, Measurement]]]
"""client -> model -> what it measured.

The models are ``"own"``, that the client would use; ``"global"``, where that is another one; and
the candidates of the last mile, each with the gain that decides whether it is taken.
"""


def closing_requests(
    models: GlobalModels,
    personal: bool,
    clients: Sequence[str],
    final: Sequence[str],
    last_mile: Mapping[str, float] = {},
    score_global: bool = True,
) -> list[Request]:
    """One request for each client's own model, then one for the global model where it is another.

    Only the first kind is marked as closing: what a site stores then is of its own model.

    Args:
        models: after the last round.
        personal: whether clients have a personal model, which nobody else has.
        clients: that are asked.
        final: names of the measurements.
        last_mile: its settings as the context of a request; empty: there is none.
        score_global: whether clients with another model of their own are sent the global one.
    """
    names = (*final, *_personal_names(personal, final).values())
    if last_mile:
        for candidate in candidates_asked(last_mile):
            names = (*names, *_candidate_names(candidate, final).values())
    requests = []
    for client in clients:
        context = {"closing": 1, **last_mile}
        requests.append(Measure(client, models.own_model(client), names, context))
    for client in clients:
        if score_global and client in models.rewards:
            requests.append(Measure(client, models.weights, final))
    return requests


def closing_scores(replies: Replies, personal: bool, final: Sequence[str]) -> Scores:
    """What each client measured of its own model and of the global one.

    Args:
        replies: to :func:`closing_requests`.
        personal: whether clients have a personal model: then that is their own.
        final: names of the measurements.
    """
    scores: Scores = {client: {} for client in replies.clients}
    # Clients that were sent the global model by a request of its own.
    sent_global = set()
    for request in replies.requests.values():
        if not request.context.get("closing"):
            sent_global.add(request.client)

    for reply in replies:
        of_client = scores[reply.client]
        if not replies.requests[reply.id].context.get("closing"):
            of_client["global"] = reply.measurements
            continue
        received = _without_candidates(reply.measurements, final)
        of_personal = _renamed(reply.measurements, _personal_names(personal, final))
        if of_personal:
            # What it received is the global model, unless it has a reward.
            if reply.client not in sent_global:
                of_client["global"] = _chosen(received, final)
            counts = _chosen(received, (IN_VALIDATION, IN_TRAINING))
            of_client["own"] = {**of_personal, **counts}
        else:
            of_client["own"] = received
        for candidate in CANDIDATES:
            of_candidate = _renamed(reply.measurements, _candidate_names(candidate, final))
            if of_candidate:
                of_client[candidate] = of_candidate
    return scores


def notes_on_own_models(replies: Replies) -> dict[str, str]:
    """client -> note, of those that sent nothing of a model that they were to make for themselves.

    Args:
        replies: to :func:`closing_requests`.

    >>> from monai_fairfl.messages import Reply
    >>> from monai_fairfl.messages import ModelSpec
    >>> asked = Measure("A", {}, ("score", "personal_score"), {"closing": 1})
    >>> replies = Replies([Reply("A", None, 0, {"score": 0.5})], [asked], ModelSpec(()))
    >>> notes_on_own_models(replies)
    {'A': 'no score of a personal model came: its own score is of the model that it received'}
    """
    personal = set(PERSONAL.values())
    gains = {gain_name(candidate) for candidate in CANDIDATES}
    notes: dict[str, str] = {}
    for reply in replies:
        asked = set(replies.requests[reply.id].measure)
        sent = set(reply.measurements)
        # A test score is not sent where the test cases are not fit for one.
        if asked & personal and sent & set(PERSONAL) and not sent & personal:
            add_note(
                notes,
                reply.client,
                "no score of a personal model came: its own score is of the model that it received",
            )
        if asked & gains and not sent & gains:
            add_note(notes, reply.client, "no gain came: it did not take part in the last mile")
    return notes


def scores_of_global_model(
    scores: Scores, models: GlobalModels
) -> dict[str, Mapping[str, Measurement]]:
    """client -> what it measured of the global model; nothing where it scored only its own."""
    found: dict[str, Mapping[str, Measurement]] = {}
    for client, measured in scores.items():
        if "global" in measured:
            found[client] = measured["global"]
        elif client in models.rewards:
            found[client] = {}
        else:
            found[client] = measured["own"]
    return found


def _personal_names(personal: bool, final: Sequence[str]) -> dict[str, str]:
    """Final measurement -> its name for a personal model, where there is one."""
    if not personal:
        return {}
    return {name: PERSONAL[name] for name in final if name in PERSONAL}


def _candidate_names(candidate: str, final: Sequence[str]) -> dict[str, str]:
    """Final measurement -> its name for a candidate of the last mile; its gain and epochs, too."""
    names = score_names(candidate)
    found = {name: names[name] for name in final if name in names}
    found[gain_name(candidate)] = gain_name(candidate)
    if candidate == "adapted":
        found[ADAPTED_EPOCHS] = ADAPTED_EPOCHS
    return found


def _renamed(
    measured: Mapping[str, Measurement], sent_names: Mapping[str, str]
) -> dict[str, Measurement]:
    """Name -> the value that was sent under another, of those that were sent.

    Args:
        measured: of a reply.
        sent_names: name -> the name under which a client sends it.
    """
    return {name: measured[sent] for name, sent in sent_names.items() if sent in measured}


def _without_candidates(
    measured: Mapping[str, Measurement], final: Sequence[str]
) -> dict[str, Measurement]:
    """What was measured, without the candidates of the last mile."""
    of_candidates: set[str] = set()
    for candidate in CANDIDATES:
        of_candidates.update(_candidate_names(candidate, final).values())
    return {name: value for name, value in measured.items() if name not in of_candidates}


def _chosen(measured: Mapping[str, Measurement], names: Sequence[str]) -> dict[str, Measurement]:
    return {name: measured[name] for name in names if name in measured}
