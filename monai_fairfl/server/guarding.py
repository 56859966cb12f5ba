# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Lets the guards judge the updates of one exchange, and carries out their verdicts."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from monai_fairfl.guards import Guard, Verdict
from monai_fairfl.replies import Replies

logger = logging.getLogger(__name__)

Verdicts = Mapping[str, Sequence[Verdict]]
"""client -> the guards' verdicts on it, in the order of the guards."""


def guarded(
    replies: Replies, guards: Sequence[Guard], each_alone: bool = False
) -> tuple[Replies, Verdicts]:
    """``replies`` as the guards let them pass, and client -> verdicts.

    Only updates are guarded: replies that measured pass.

    Args:
        replies: of one exchange.
        guards: in order.
        each_alone: judge each update as if there were no others, for a strategy that shares
            nothing.
    """
    trained = only_trained(replies)
    if not trained:
        return replies, {}
    passed, verdicts = (_judged_alone if each_alone else _judged)(trained, guards)
    measured = [reply for reply in replies if reply.update is None]
    if measured:
        # The matrix has rows of those that trained only, and their order stays.
        passed = passed.rebuilt([*passed, *measured], passed.missing, passed.matrix)
    return passed, verdicts


def only_trained(replies: Replies) -> Replies:
    """Those of ``replies`` that carry an update."""
    trained = [reply for reply in replies if reply.update is not None]
    if len(trained) == len(replies):
        return replies
    return replies.rebuilt(trained, replies.missing, replies.matrix if trained else None)


def _judged(replies: Replies, guards: Sequence[Guard]) -> tuple[Replies, Verdicts]:
    """Let each guard judge the updates as the previous guards let them pass."""
    verdicts: list[tuple[str, Verdict]] = []
    for guard in guards:
        if not replies:
            break
        clients = {reply.id: reply.client for reply in replies}
        found = _verdicts_of(guard, replies)
        verdicts += [(clients[id], verdict) for id, verdict in found.items()]
        replies = _passed(replies, found)

    # A client whose copies were quarantined shares with nobody.
    sharing = {client for group in replies.groups for client in group}
    counted: dict[str, list[Verdict]] = {}
    for client, verdict in verdicts:
        if verdict.action != "share" or client in sharing:
            counted.setdefault(client, []).append(verdict)
            logger.warning(
                "client %s: %s by %s: %s", client, verdict.action, verdict.guard, verdict.reason
            )
    return replies, counted


def _judged_alone(replies: Replies, guards: Sequence[Guard]) -> tuple[Replies, Verdicts]:
    """As :func:`_judged`, where the guards see one update at a time."""
    passed = replies
    verdicts: dict[str, Sequence[Verdict]] = {}
    for reply in replies:
        others = {other.id: "" for other in replies if other is not reply}
        _, found = _judged(replies.without(others), guards)
        verdicts.update(found)
        for verdict in found.get(reply.client, ()):
            passed = _passed(passed, {reply.id: verdict})
    return passed, verdicts


def _verdicts_of(guard: Guard, replies: Replies) -> dict[int, Verdict]:
    """Id of a reply -> the guard's verdict, with its name.

    Of clients whose updates are nearly the same, each is judged beside the others, and without its
    copies: these must not make it look usual.
    """
    copies = {client for group in replies.groups for client in group[1:]}
    found = dict(guard.check(_without(replies, copies)))
    for group in replies.groups:
        for client in group[1:]:
            beside = (copies | set(group)) - {client}
            own = {reply.id for reply in replies if reply.client == client}
            verdicts = guard.check(_without(replies, beside))
            found.update({id: verdicts[id] for id in verdicts if id in own})
    return {id: replace(found[id], guard=type(guard).__name__) for id in sorted(found)}


def _without(replies: Replies, clients: Collection[str]) -> Replies:
    """``replies`` as if some clients had sent none."""
    return replies.without({reply.id: "" for reply in replies if reply.client in clients})


def _passed(replies: Replies, verdicts: Mapping[int, Verdict]) -> Replies:
    """``replies`` after the verdicts of one guard, by id of a reply, were carried out."""
    factors = {id: one.factor for id, one in verdicts.items() if one.action == "clip"}
    groups = sorted({one.group for one in verdicts.values() if one.action == "share"})
    quarantined = {
        id: f"quarantined: {one.reason}"
        for id, one in verdicts.items()
        if one.action == "quarantine"
    }
    return replies.scaled(factors).sharing(groups).without(quarantined)
