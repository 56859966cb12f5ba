# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The last measurement of a run: what each client scores with the model it would use, and with the
global one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from monai_fairfl.protocol.messages import Measure, Request
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.protocol.values import IN_TRAINING, IN_VALIDATION
from monai_fairfl.strategies.base import Strategy

PERSONAL = {"score": "personal_score", "test_score": "personal_test_score"}
"""The same measurement of a client's personal model."""


def closing_requests(
    strategy: Strategy, clients: Sequence[str], final: Sequence[str]
) -> list[Request]:
    """One request for each client's own model, then one for the global model where that is another.

    Only the first kind is marked as closing: what a site keeps then is of its own model.
    """
    measure = (*final, *_personal(strategy, final).values())
    own = [
        Measure(client, strategy.start_of(client), measure, {"closing": 1}) for client in clients
    ]
    return own + [
        Measure(client, strategy.weights, final) for client in clients if client in strategy.rewards
    ]


def closing_scores(
    strategy: Strategy, replies: Replies, final: Sequence[str]
) -> tuple[dict[str, dict[str, Any]], dict[str, list[str]]]:
    """client -> ``"own"`` and, where that is another model, ``"global"`` -> what it measured; and
    what was not finite.

    Args:
        strategy: of the run; its clients' personal models, where it has them, are their own.
        replies: to :func:`closing_requests`.
        final: names of the measurements.
    """
    personal = _personal(strategy, final)
    scores: dict[str, dict[str, Any]] = {client: {} for client in replies.clients}
    not_finite: dict[str, list[str]] = {}
    for reply in replies:
        measured, found = reply.measurements, scores[reply.client]
        if reply.id in replies.not_finite:
            not_finite.setdefault(reply.client, []).extend(replies.not_finite[reply.id])
        own = {name: measured[other] for name, other in personal.items() if other in measured}
        if own:
            found["global"] = {name: measured[name] for name in final if name in measured}
            counts = {
                name: measured[name] for name in (IN_VALIDATION, IN_TRAINING) if name in measured
            }
            measured = own | counts
        found["own" if replies.requests[reply.id].context.get("closing") else "global"] = measured
    return scores, not_finite


def _personal(strategy: Strategy, final: Sequence[str]) -> Mapping[str, str]:
    return {name: PERSONAL[name] for name in final if name in PERSONAL} if strategy.personal else {}
