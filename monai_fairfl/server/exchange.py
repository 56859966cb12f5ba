# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""One exchange: requests out, replies in, each checked for form."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from monai_fairfl.messages import (
    LEAST_PARTS,
    MOST_SAMPLES,
    Expected,
    ModelSpec,
    Reply,
    Request,
    Weights,
    refusal,
)
from monai_fairfl.replies import Replies, UpdateMatrix

TIMEOUT = "timeout"
"""Why a client is missing of which nothing came."""

NOT_ASKED = "this client was not asked that"

logger = logging.getLogger(__name__)


class TooFewClients(Exception):
    """An exchange that too few clients answered.

    Args:
        text: how many answered, and why each of the others is missing.
        are_gone: whether nothing came of those that are missing.

    >>> from monai_fairfl import Measure, ModelSpec, Replies
    >>> from monai_fairfl.server.exchange import require_min_clients
    >>> silent = Replies([], [Measure("elm", {})], ModelSpec(()), missing={"elm": "timeout"})
    >>> require_min_clients(silent, 1)
    Traceback (most recent call last):
        ...
    monai_fairfl.server.exchange.TooFewClients: 0 of 1 clients answered, ...: elm (timeout)
    """

    def __init__(self, text: str, are_gone: bool):
        super().__init__(text)
        self.are_gone = are_gone


class Transport(Protocol):
    """Carries requests to clients, and replies back. It knows nothing about rounds or strategies.

    The server copies each update and each buffer of a reply when it arrives.

    >>> from monai_fairfl.messages import Measure, failed
    >>> class LineDown:
    ...     clients = ["elm"]
    ...     def exchange(self, requests, arrived, timeout=None):
    ...         for request in requests:
    ...             arrived(failed(request, "the line is down"))
    ...     def close(self): pass
    >>> LineDown().exchange([Measure("elm", {})], lambda reply: print(reply.error))
    the line is down
    """

    @property
    def clients(self) -> Sequence[str]:
        """Names of the clients that can be asked now, as the engine identifies them."""

    def exchange(
        self,
        requests: Sequence[Request],
        arrived: Callable[[Reply], None],
        timeout: float | None = None,
    ) -> None:
        """Send requests to their clients. Return when all replies came, or when the time is up.

        Args:
            requests: to one client or several.
            arrived: is called with each reply when it comes, from any thread and in any order.
            timeout: in seconds; ``None``: no limit.
        """

    def close(self) -> None:
        """Close clients and connections."""


def _most_parts(spec: ModelSpec, request: Request) -> int:
    """How many classes or layers of the model a measurement may have; one more is the mean."""
    return max(LEAST_PARTS, len(spec.parameters) + spec.classes(request.weights) + 1)


class Inbox:
    """Takes in replies as they arrive, in any order and from any thread.

    Each update is copied into a row of one matrix, and its buffers are copied, too, so that the
    originals can be dropped. Late, foreign and second answers are ignored; malformed ones are
    refused with the reason. An answer that was refused is the first one all the same: NVFlare and
    Flower take no second one either.

    Args:
        requests: what was asked, with their ids.
        spec: the model's tensors.
        reference: tensors of the parameters' shapes.
        notify: called with (client, reason or ``None``) for every reply that is taken in or
            refused.
        expected: the measurements that are taken; ``None``: those of the package, in their ranges.
        most_samples: images of one site in one local epoch that are believed.

    >>> from monai_fairfl import ModelSpec, Reply, Request
    >>> asked = [Request(name, "measure", {}, ("score",), id=id) for id, name in enumerate("AB")]
    >>> inbox = Inbox(asked, ModelSpec(()), {})
    >>> inbox.arrived(Reply("A", None, 0, {"score": 0.8}, id=0))
    >>> replies = inbox.close()
    >>> replies.clients, replies.missing
    (['A'], {'B': 'timeout'})
    """

    def __init__(
        self,
        requests: Sequence[Request],
        spec: ModelSpec,
        reference: Weights,
        notify: Callable[[str, str | None], None] = lambda client, reason: None,
        expected: Expected | None = None,
        most_samples: int = MOST_SAMPLES,
    ):
        self.requests = {request.id: request for request in requests}
        self.spec = spec
        self.reference = reference
        self.notify = notify
        self.expected = expected or Expected()
        self.most_samples = most_samples
        # One row of the matrix for each training request, in the order of (client, id).
        training = sorted((r.client, r.id) for r in requests if r.task == "train")
        self._row = {id: row for row, (_, id) in enumerate(training)}
        self._matrix: UpdateMatrix | None = None
        if training:
            self._matrix = UpdateMatrix(reference, spec.parameters, len(training))
        self._replies: dict[int, Reply] = {}
        self._refused: dict[int, str] = {}
        # Client that answered what it was not asked -> that in words.
        self._foreign: dict[str, str] = {}
        # Ids of the requests that have their first answer, refused or not.
        self._answered: set[int] = set()
        self._closed = False
        self.dropped: dict[int, dict[str, str]] = {}
        self._lock = threading.Lock()

    def arrived(self, reply: Reply) -> None:
        """Take in one reply, or ignore it.

        A reply is ignored when it is late (the exchange is closed), foreign (it answers no request
        of this exchange to that client) or a second one. A malformed one is refused: its client is
        missing, with the reason. One of another run or round is refused, too, but it is no answer
        to this request, so that the client's own may still come.
        """
        if not isinstance(reply, Reply):
            logger.warning(
                "the transport brought a %s, which is no Reply: it is ignored", type(reply).__name__
            )
            return
        with self._lock:
            request = self.requests.get(reply.id)
            why_ignored = self._why_ignored(request, reply)
            if why_ignored:
                logger.warning(
                    "client %s: its answer to request %s of round %s is ignored: %s",
                    reply.client,
                    reply.id,
                    reply.round,
                    why_ignored,
                )
                if why_ignored == NOT_ASKED:
                    self._foreign[reply.client] = (
                        f"ignored: it answered request {reply.id} of round {reply.round}, which it "
                        "was not asked; a Reply repeats id, run and round of its request"
                    )
                return
            assert request is not None
            reason = refusal(request, reply, self.spec, self.most_samples)
            if reason is None:
                most = partial(_most_parts, self.spec, request)
                found = self.expected.checked(reply, request, most)
                self.dropped[reply.id] = {
                    **dict.fromkeys(found.not_finite, "no finite number"),
                    **found.dropped,
                }
                reply = replace(reply, measurements=found.usable)
                self._replies[reply.id] = self._in_its_row(self._in_models_types(reply))
            else:
                if not reason.startswith("error"):
                    reason = f"refused: {reason}"
                self._refused[reply.id] = reason
            if (reply.run, reply.round) == (request.run, request.round):
                self._answered.add(reply.id)
            self.notify(reply.client, reason)

    def _why_ignored(self, request: Request | None, reply: Reply) -> str:
        """Why a reply is not even looked at; empty where it is."""
        if self._closed:
            return "it came after the exchange was closed"
        if request is None or request.client != reply.client:
            return NOT_ASKED
        if reply.id in self._answered:
            return "it has answered already, and its first answer counts"
        return ""

    def _in_models_types(self, reply: Reply) -> Reply:
        """``reply`` with buffers in the model's types, whatever a client computes in.

        An average has the type of its first tensor, which would be the first client's.
        """
        if reply.buffers is None:
            return reply
        buffers = {}
        for name, buffer in reply.buffers.items():
            dtype = self.reference.get(name, buffer).dtype
            buffers[name] = buffer.to(dtype, copy=True)
        return replace(reply, buffers=buffers)

    def _in_its_row(self, reply: Reply) -> Reply:
        """``reply`` with its update in the matrix, if it has one."""
        if self._matrix is None or reply.update is None:
            return reply
        return replace(reply, update=self._matrix.put(self._row[reply.id], reply.update))

    def close(self) -> Replies:
        """Close the exchange, and return what has arrived; what comes later is ignored."""
        with self._lock:
            self._closed = True
            # Of several requests to one client that have no reply, the first one's reason counts.
            missing: dict[str, str] = {}
            for id in sorted(set(self.requests) - set(self._replies), reverse=True):
                client = self.requests[id].client
                missing[client] = self._refused.get(id) or self._foreign.get(client, TIMEOUT)
            matrix = None
            if self._matrix is not None:
                rows = sorted(row for id, row in self._row.items() if id in self._replies)
                matrix = self._matrix
                if len(rows) < len(self._row):
                    matrix = matrix.with_rows(matrix.rows[rows])
            return Replies(
                self._replies.values(),
                self.requests.values(),
                self.spec,
                missing=missing,
                matrix=matrix,
                dropped=self.dropped,
            )


def require_min_clients(replies: Replies, least: int) -> None:
    """Refuse an exchange that fewer than ``least`` clients answered.

    Args:
        replies: that the guards let pass.
        least: fewest clients.

    Raises:
        TooFewClients: naming the missing clients, and why each is missing.
    """
    present = replies.clients
    if len(present) < least:
        asked = {request.client for request in replies.requests.values()}
        raise TooFewClients(
            f"{len(present)} of {len(asked)} clients answered, min_clients is {least}; "
            f"missing: {missing_in_words(replies.missing)}",
            are_gone=set(replies.missing.values()) == {TIMEOUT},
        )


def missing_in_words(missing: Mapping[str, str]) -> str:
    """Missing clients by the reason, so that one that many clients share is read once.

    Args:
        missing: client -> why it is missing.

    >>> missing_in_words({"A": "timeout", "B": "error: ValueError: no cases", "C": "timeout"})
    'A, C (timeout); B (error: ValueError: no cases)'
    """
    clients_of: dict[str, list[str]] = {}
    for client in sorted(missing):
        clients_of.setdefault(missing[client], []).append(client)
    parts = [f"{', '.join(clients)} ({reason})" for reason, clients in clients_of.items()]
    return "; ".join(parts)
