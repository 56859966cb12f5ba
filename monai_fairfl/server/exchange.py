# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""One exchange: requests out, replies in, each checked when it arrives."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Protocol

import torch

from monai_fairfl.errors import in_words
from monai_fairfl.messages import Expected, ModelSpec, Refused, Reply, Request, Weights, printable
from monai_fairfl.replies import Replies

PLACE = attrgetter("client", "id", "run", "round")
"""What a reply repeats of its request."""

TIMEOUT = "timeout"
"""Why a client is missing of which nothing came."""

logger = logging.getLogger(__name__)


class Transport(Protocol):
    """Carries requests to clients, and replies back. It knows nothing about rounds or strategies.

    The tensors of a reply belong to the server: nobody writes into them again.

    >>> from monai_fairfl.messages import Measure
    >>> class LineDown:
    ...     clients = ["elm"]
    ...     def ask(self, requests, timeout=None):
    ...         for request in requests:
    ...             yield request.reply(error="the line is down")
    ...     def close(self): pass
    >>> [reply.error for reply in LineDown().ask([Measure("elm", {})])]
    ['the line is down']
    """

    @property
    def clients(self) -> Sequence[str]:
        """Names of the clients that can be asked now, as the engine identifies them."""

    def ask(self, requests: Sequence[Request], timeout: float | None = None) -> Iterator[Reply]:
        """Send requests to their clients, and yield each reply when it comes, in any order.

        It ends when all replies came, or when the time is up.

        Args:
            requests: to one client or several.
            timeout: in seconds; ``None``: no limit.
        """

    def close(self) -> None:
        """Close clients and connections."""


@dataclass
class Exchange:
    """Takes replies in any order, each once.

    The first answer to a request counts, also where it is refused: NVFlare and Flower take no
    second one either. What this exchange did not ask for, and second answers, are ignored.

    Args:
        requests: what is asked, with their ids.
        spec: the model's tensors.
        reference: tensors of the model, whose types the replies get.
        expected: what is believed.
        answered: called with (client, reason or ``None``) for every reply that counts or is
            refused.

    >>> from monai_fairfl import InProcess, ModelSpec, Request
    >>> class Hospital:
    ...     def answer(self, asked):
    ...         return asked.reply(measurements={"score": 0.8})
    >>> asked = [Request(name, "measure", {}, ("score",), id=id) for id, name in enumerate("AB")]
    >>> found = Exchange(asked, ModelSpec(()), {}).ask(InProcess({"A": Hospital, "B": None}))
    >>> found.clients, found.missing
    (['A'], {'B': "error: TypeError: 'NoneType' object is not callable"})
    """

    requests: Sequence[Request]
    spec: ModelSpec
    reference: Weights
    expected: Expected = field(default_factory=Expected)
    answered: Callable[[str, str | None], None] = lambda client, reason: None

    def ask(self, transport: Transport, timeout: float | None = None) -> Replies:
        """Send the requests, and take what comes until the time is up.

        Returns:
            The replies that count; the clients of all other requests are missing, each with a
            reason.
        """
        # By the id of a request: its reply, what was dropped of it, or why it was refused.
        replies: dict[int, Reply] = {}
        dropped: dict[int, dict[str, str]] = {}
        refused: dict[int, str] = {}
        ignored: dict[str, str] = {}  # client -> its last answer to what it was not asked
        for reply in transport.ask(self.requests, timeout):
            client = reply.client
            place = PLACE(reply)
            request = next((one for one in self.requests if PLACE(one) == place), None)
            if request is None or reply.id in replies or reply.id in refused:
                words = f"request {reply.id} of run {reply.run}, round {reply.round}"
                words += " was not asked, or answered twice: answer with Request.reply"
                ignored[client] = str(Refused(f"ignored: {words}"))
                logger.warning("client %s: %s", client, ignored[client])
                continue

            try:
                found, of_reply = self.expected.accepted(request, reply, self.spec)
                replies[reply.id] = self._converted(found)
                dropped[reply.id] = of_reply
                if of_reply:
                    logger.warning("client %s: what does not count: %s", client, of_reply)
            except Refused as error:
                refused[reply.id] = f"{error}" if reply.error is not None else f"refused: {error}"
            except Exception as error:  # whatever reading an update raises that waits on a disk
                why = f"error: its update cannot be read ({in_words(error)})"
                refused[reply.id] = printable(why)
            self.answered(client, refused.get(reply.id))

        missing: dict[str, str] = {}
        # Of several requests to one client that have no reply, the first one's reason counts.
        for request in reversed(self.requests):
            if request.id not in replies:
                why = refused.get(request.id) or ignored.get(request.client, TIMEOUT)
                missing[request.client] = why
        return Replies(replies.values(), self.requests, self.spec, missing=missing, dropped=dropped)

    def _converted(self, reply: Reply) -> Reply:
        """``reply`` with the tensors of the model, in memory and in the model's types.

        An average has the type of its first tensor, which would be the first client's. Updates are
        of at least single precision.
        """
        update = None
        if reply.update is not None:
            update = {}
            for name in self.spec.parameters:
                kind = torch.promote_types(self.reference[name].dtype, torch.float32)
                update[name] = reply.update[name].detach().to(kind)
        buffers = {}
        for name, tensor in (reply.buffers or {}).items():
            buffers[name] = tensor.to(self.reference.get(name, tensor).dtype)
        return replace(reply, update=update, buffers=buffers)
