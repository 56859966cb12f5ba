# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""One exchange: requests out, replies in, each checked for form, then guarded."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import torch

from monai_fairfl.guards import Guard, Verdict
from monai_fairfl.protocol.checks import refusal
from monai_fairfl.protocol.geometry import UpdateMatrix
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.protocol.values import Weights

logger = logging.getLogger(__name__)


class TooFewClients(Exception):
    """An exchange that too few clients answered."""


class Transport(Protocol):
    """Moves requests to clients and replies back; knows nothing of rounds or strategies."""

    @property
    def clients(self) -> Sequence[str]:
        """Who can be asked now, by the engine's identity."""

    def exchange(
        self,
        requests: Sequence[Request],
        arrived: Callable[[Reply], None],
        timeout: float | None = None,
    ) -> None:
        """Carry out ``requests``, call ``arrived`` with each reply as it comes; return when all
        came or time is up.
        """

    def close(self) -> None:
        """Release clients and connections."""


class Inbox:
    """Takes in replies as they arrive, in any order and from any thread.

    Each update moves into its row of one matrix, so that the original can be dropped. Late, foreign
    and second answers are ignored; malformed ones are refused with the reason.

    Args:
        requests: what was asked, with their ids.
        spec: the model's tensors.
        reference: tensors of the parameters' shapes.
        told: called with (client, reason or ``None``) for every reply that is taken in or refused.
        storage: the :attr:`storage` of an earlier inbox whose replies are no longer needed.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        spec: ModelSpec,
        reference: Weights,
        told: Callable[[str, str | None], None] = lambda client, reason: None,
        storage: torch.Tensor | None = None,
    ):
        self.requests = {request.id: request for request in requests}
        self.spec, self.told = spec, told
        training = sorted((r.client, r.id) for r in requests if r.task == "train")
        self._row = {id: row for row, (_, id) in enumerate(training)}
        self._matrix = (
            UpdateMatrix(reference, spec.parameters, len(training), storage) if training else None
        )
        self._replies: dict[int, Reply] = {}
        self._refused: dict[int, str] = {}
        self._closed = False
        self._lock = threading.Lock()

    @property
    def storage(self) -> torch.Tensor | None:
        """Memory of the update matrix, for the next round's inbox."""
        return self._matrix.rows if self._matrix is not None else None

    def arrived(self, reply: Reply) -> None:
        """Take in one reply."""
        with self._lock:
            request = self.requests.get(reply.id)
            if (
                self._closed
                or request is None
                or request.client != reply.client
                or reply.id in self._replies
            ):
                return
            reason = refusal(request, reply, self.spec)
            if reason is None:
                if self._matrix is not None and reply.update is not None:
                    reply = replace(
                        reply, update=self._matrix.put(self._row[reply.id], reply.update)
                    )
                self._replies[reply.id] = reply
            else:
                reason = reason if reason.startswith("error") else f"refused: {reason}"
                self._refused[reply.id] = reason
            self.told(reply.client, reason)

    def replies(self) -> Replies:
        """What has arrived; what comes later is ignored, since the matrix then belongs to the next
        exchange.
        """
        with self._lock:
            self._closed = True
            silent = sorted(
                set(self.requests) - set(self._replies), reverse=True
            )  # a client's first is told
            missing = {self.requests[id].client: self._refused.get(id, "timeout") for id in silent}
            rows = sorted(row for id, row in self._row.items() if id in self._replies)
            matrix = self._matrix.select(rows) if self._matrix is not None else None
            return Replies(
                self._replies.values(), self.requests.values(), self.spec, missing, matrix
            )


def guarded(replies: Replies, guards: Sequence[Guard]) -> tuple[Replies, Mapping[str, Verdict]]:
    """``replies`` less those that a guard quarantines, and client -> verdict. Only updates are
    guarded.
    """
    measured = [reply for reply in replies if reply.update is None]
    if measured:
        trained = [reply for reply in replies if reply.update is not None]
        if not trained:
            return replies, {}
        kept, judged = guarded(_of(replies, trained), guards)
        return _of(kept, [*kept, *measured]), judged
    verdicts: dict[str, Verdict] = {}
    for guard in guards:
        if not replies:
            break
        found = guard.check(replies)
        clients = {reply.id: reply.client for reply in replies}
        for id, verdict in found.items():
            logger.warning(
                "client %s: %s by %s: %s",
                clients[id],
                verdict.action,
                type(guard).__name__,
                verdict.reason,
            )
            verdicts[clients[id]] = verdict
        replies = replies.without(
            {id: f"quarantined: {v.reason}" for id, v in found.items() if v.action == "quarantine"}
        )
    return replies, verdicts


def _of(replies: Replies, some: Sequence[Reply]) -> Replies:
    """``some`` replies of the same exchange; the rows of the matrix stay those that trained."""
    return Replies(
        some,
        replies.requests.values(),
        replies.spec,
        replies.missing,
        replies.matrix,
        replies.not_finite,
    )


def enough(replies: Replies, least: int) -> Replies:
    """``replies``, if at least ``least`` clients are among them.

    Raises:
        TooFewClients: else; it tells who is missing, and why.
    """
    if len(replies.clients) < least:
        asked = {request.client for request in replies.requests.values()}
        raise TooFewClients(
            f"{len(replies.clients)} of {len(asked)} clients answered, min_clients is {least}; "
            f"missing: {replies.missing}"
        )
    return replies
