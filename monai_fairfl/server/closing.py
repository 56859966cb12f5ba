# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The last measurement of a run: what each client scores with its own model and the global one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from monai_fairfl.protocol.messages import Measure, Request
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.protocol.values import IN_TRAINING, IN_VALIDATION, Measurement
from monai_fairfl.server.global_models import GlobalModels

PERSONAL = {"score": "personal_score", "test_score": "personal_test_score"}
"""The same measurement of a client's personal model."""

Scores = dict[str, dict[str, Mapping[str, Measurement]]]
"""client -> ``"own"`` and, where that is another model, ``"global"`` -> what it measured."""


def closing_requests(
    models: GlobalModels, personal: bool, clients: Sequence[str], final: Sequence[str]
) -> list[Request]:
    """One request for each client's own model, then one for the global model where it is another.

    Only the first kind is marked as closing: what a site stores then is of its own model.

    Args:
        models: after the last round.
        personal: whether clients have a personal model, which nobody else has.
        clients: that are asked.
        final: names of the measurements.
    """
    names = (*final, *_personal_names(personal, final).values())
    requests = []
    for client in clients:
        requests.append(Measure(client, models.own_model(client), names, {"closing": 1}))
    for client in clients:
        if client in models.rewards:
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
    for reply in replies:
        found = scores[reply.client]
        closing = replies.requests[reply.id].context.get("closing")
        own = _of_personal_model(reply.measurements, personal, final)
        measured = reply.measurements
        if own:
            # The client sent both: its personal scores, and those of the model that it received.
            found["global"] = _chosen(measured, final)
            measured = {**own, **_chosen(measured, (IN_VALIDATION, IN_TRAINING))}
        found["own" if closing else "global"] = measured
    return scores


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
    """Final measurement -> the same of a personal model, where there is one."""
    if not personal:
        return {}
    return {name: PERSONAL[name] for name in final if name in PERSONAL}


def _of_personal_model(
    measured: Mapping[str, Measurement], personal: bool, final: Sequence[str]
) -> dict[str, Measurement]:
    """Final measurement -> its value for the personal model."""
    found = {}
    for name, personal_name in _personal_names(personal, final).items():
        if personal_name in measured:
            found[name] = measured[personal_name]
    return found


def _chosen(measured: Mapping[str, Measurement], names: Sequence[str]) -> dict[str, Measurement]:
    return {name: measured[name] for name in names if name in measured}
