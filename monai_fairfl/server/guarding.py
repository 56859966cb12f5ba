# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Lets the guards judge the updates of one exchange, and carries out their verdicts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
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
    clients = {reply.id: reply.client for reply in trained}
    passed = trained
    found: list[tuple[str, Verdict]] = []
    for guard in guards:
        # Each guard sees the replies as the previous guards let them pass.
        if passed:
            verdicts = _verdicts_of(guard, passed, each_alone)
            found += [(clients[id], verdict) for id, verdict in verdicts.items()]
            passed = _carried_out(verdicts, passed)

    # A client whose copies were quarantined shares with nobody.
    sharing = {client for group in passed.groups for client in group}
    counted: dict[str, list[Verdict]] = {}
    for client, one in found:
        if one.action != "share" or client in sharing:
            counted.setdefault(client, []).append(one)
            logger.warning("client %s: %s by %s: %s", client, one.action, one.guard, one.reason)
    measured = [reply for reply in replies if reply.update is None]
    if measured:
        passed = passed.rebuilt([*passed, *measured], passed.missing)
    return passed, counted


def only_trained(replies: Replies) -> Replies:
    """Those of ``replies`` that carry an update."""
    trained = [reply for reply in replies if reply.update is not None]
    if len(trained) == len(replies):
        return replies
    return replies.rebuilt(trained, replies.missing)


def _verdicts_of(guard: Guard, replies: Replies, each_alone: bool) -> dict[int, Verdict]:
    """Id of a reply -> the guard's verdict, with its name.

    Of clients whose updates are nearly the same, each is judged beside the others, and without its
    copies: these must not make it look usual.
    """
    # The clients that the guard sees, and those whose verdict counts.
    looks: list[tuple[set[str], set[str]]] = [({client}, {client}) for client in replies.clients]
    if not each_alone:
        firsts = set(replies.clients) - {client for group in replies.groups for client in group[1:]}
        looks = [(firsts, firsts)]
        for group in replies.groups:
            looks += [(firsts - set(group) | {client}, {client}) for client in group[1:]]

    clients = {reply.id: reply.client for reply in replies}
    found: dict[int, Verdict] = {}
    for seen, judged in looks:
        unseen = {id: "" for id, client in clients.items() if client not in seen}
        for id, verdict in guard.check(replies.without(unseen)).items():
            if clients[id] in judged:
                found[id] = replace(verdict, guard=type(guard).__name__)
    return {id: found[id] for id in sorted(found)}


def _carried_out(verdicts: Mapping[int, Verdict], replies: Replies) -> Replies:
    """``replies`` after the verdicts of one guard, by id of a reply."""
    factors, quarantined, groups = {}, {}, set()
    for id, verdict in verdicts.items():
        if verdict.action == "clip":
            factors[id] = verdict.factor
        if verdict.action == "quarantine":
            quarantined[id] = f"quarantined: {verdict.reason}"
        if verdict.action == "share":
            groups.add(verdict.group)
    return replies.scaled(factors).sharing(sorted(groups)).without(quarantined)
