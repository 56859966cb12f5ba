# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Lets the guards judge the updates of one exchange, and carries out their verdicts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from monai_fairfl.guards import Guard, Verdict
from monai_fairfl.protocol.messages import Reply
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.server.sharing import shares_of_groups

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
    if each_alone:
        passed, verdicts = _judged_alone(trained, guards)
    else:
        passed, verdicts = _judged(trained, guards)
    passed.member_shares = shares_of_groups(verdicts)
    measured = [reply for reply in replies if reply.update is None]
    if not measured:
        return passed, verdicts
    return _some_of(passed, [*passed, *measured]), verdicts


def only_trained(replies: Replies) -> Replies:
    """Those of ``replies`` that carry an update."""
    trained = [reply for reply in replies if reply.update is not None]
    if len(trained) == len(replies):
        return replies
    if not trained:
        return replies.rebuilt((), replies.missing, None)
    return _some_of(replies, trained)


def _judged(replies: Replies, guards: Sequence[Guard]) -> tuple[Replies, Verdicts]:
    """Let every guard judge ``replies``, all of which carry an update.

    Each guard sees the replies as the previous guards let them pass. Where one would quarantine a
    group that counts as one, each member is judged by its own update. The guilty ones go, and
    everything is judged again without them: a client must not fall with another one that resembles
    it.
    """
    guilty: dict[str, list[Verdict]] = {}
    while True:
        passed, verdicts, found = _judged_once(replies, guards)
        if not found:
            break
        for id, verdict in found.items():
            [client] = [reply.client for reply in replies if reply.id == id]
            guilty[client] = [verdict]
        replies = _passed(replies, found)
    all_verdicts = {**guilty, **verdicts}
    for client, of_client in all_verdicts.items():
        for verdict in of_client:
            logger.warning(
                "client %s: %s by %s: %s", client, verdict.action, verdict.guard, verdict.reason
            )
    return passed, all_verdicts


def _judged_once(
    replies: Replies, guards: Sequence[Guard]
) -> tuple[Replies, dict[str, list[Verdict]], dict[int, Verdict]]:
    """As :func:`_judged`, up to the first group that a guard would quarantine.

    Returns:
        The replies that passed; client -> verdicts; and id of a reply -> verdict, of the members of
        such a group that are guilty by themselves. Where there are any, the others do not count.
    """
    verdicts: dict[str, list[Verdict]] = {}
    # First client of a group -> the group, and the replies as they were before it was merged.
    groups: dict[str, tuple[tuple[str, ...], Replies]] = {}
    for guard in guards:
        if not replies:
            break
        clients = {reply.id: reply.client for reply in replies}
        found = _verdicts_of(guard, replies)
        for id, verdict in found.items():
            if verdict.action == "quarantine" and clients[id] in groups:
                guilty = _guilty_members(guard, *groups[clients[id]])
                if guilty:
                    return replies, verdicts, guilty
        for id, verdict in found.items():
            verdicts.setdefault(clients[id], []).append(verdict)
            if verdict.action == "share":
                groups[verdict.group[0]] = (verdict.group, replies)
        replies = _passed(replies, found)
    return replies, verdicts, {}


def _verdicts_of(guard: Guard, replies: Replies) -> dict[int, Verdict]:
    """Id of a reply -> the guard's verdict, with its name."""
    found = {}
    for id, verdict in guard.check(replies).items():
        found[id] = replace(verdict, guard=type(guard).__name__)
    return found


def _guilty_members(guard: Guard, group: Sequence[str], before: Replies) -> dict[int, Verdict]:
    """Id of a reply -> verdict, of the members whose own update the guard would quarantine.

    Args:
        guard: that would quarantine the group.
        group: the clients that count as one.
        before: the replies before they did.
    """
    guilty = {}
    for reply in before:
        if reply.client not in group:
            continue
        others = {}
        for other in before:
            if other.client in group and other is not reply:
                others[other.id] = "another member of the group is judged"
        verdict = _verdicts_of(guard, before.without(others)).get(reply.id)
        if verdict is not None and verdict.action == "quarantine":
            guilty[reply.id] = verdict
    return guilty


def _judged_alone(replies: Replies, guards: Sequence[Guard]) -> tuple[Replies, Verdicts]:
    """As :func:`_judged`, where the guards see one update at a time."""
    passed = replies
    verdicts: dict[str, Sequence[Verdict]] = {}
    for reply in replies:
        others = {other.id: "judged by itself" for other in replies if other is not reply}
        _, found = _judged(replies.without(others), guards)
        verdicts.update(found)
        for verdict in found.get(reply.client, ()):
            passed = _passed(passed, {reply.id: verdict})
    return passed, verdicts


def _passed(replies: Replies, verdicts: Mapping[int, Verdict]) -> Replies:
    """``replies`` after one guard's verdicts were carried out.

    Args:
        replies: that the guard judged.
        verdicts: id of a reply -> verdict.
    """
    quarantined: dict[int, str] = {}
    factors: dict[int, float] = {}
    groups: list[tuple[str, ...]] = []
    for id, verdict in verdicts.items():
        if verdict.action == "quarantine":
            quarantined[id] = f"quarantined: {verdict.reason}"
        if verdict.action == "clip":
            factors[id] = verdict.factor
        if verdict.action == "share" and verdict.group not in groups:
            groups.append(verdict.group)
    return replies.scaled(factors).merged(groups).without(quarantined)


def _some_of(replies: Replies, some: Sequence[Reply]) -> Replies:
    """``some`` replies of the same exchange.

    The matrix stays: its rows are of the replies that trained, in their sorted order, and both
    callers leave that order as it is.
    """
    return replies.rebuilt(some, replies.missing, replies.matrix)
