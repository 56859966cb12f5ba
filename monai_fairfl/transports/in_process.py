# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Clients that live in this process, one after the other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from monai_fairfl.errors import in_words
from monai_fairfl.messages import Reply, Request

logger = logging.getLogger(__name__)


class Client(Protocol):
    """Anything that answers requests, such as :class:`monai_fairfl.client.algo.FairMonaiAlgo`.

    The tensors of a reply belong to the server, so a client makes new ones for each training.

    >>> from monai_fairfl import Measure
    >>> class Hospital:
    ...     def answer(self, request):
    ...         echo = {"id": request.id, "run": request.run, "round": request.round}
    ...         return Reply(request.client, None, 0, {"score": 0.8}, **echo)
    >>> hospital: Client = Hospital()
    >>> hospital.answer(Measure("elm", {}, ("score",))).measurements
    {'score': 0.8}
    """

    def answer(self, request: Request) -> Reply:
        """Carry out one request.

        Args:
            request: to train a model, or only to measure it.

        Returns:
            A reply with the client, id, run and round of the request.

        Raises:
            Exception: any, if the client cannot answer. It becomes the reply's ``error``.
        """


class InProcess:
    """A transport to clients in this process, which work one after the other.

    Args:
        clients: name of a client -> a function that makes it. The function is called once, when the
            client is first asked, so that a federation of many large sites starts quickly and fails
            early.

    >>> from monai_fairfl import Measure
    >>> class Hospital:
    ...     def answer(self, request):
    ...         score = {"elm": 0.8}[request.client]
    ...         return Reply(request.client, None, 0, {"score": score})
    >>> sites = InProcess({"elm": Hospital, "oak": Hospital})
    >>> asked = [Measure(name, {}, ("score",)) for name in sites.clients]
    >>> [reply.error or reply.measurements for reply in sites.ask(asked)]
    [{'score': 0.8}, "KeyError: 'oak'"]
    """

    def __init__(self, clients: Mapping[str, Callable[[], Client]]):
        self._makers = dict(clients)
        self._made: dict[str, Client] = {}
        self.clients: Sequence[str] = sorted(clients)

    def ask(self, requests: Sequence[Request], timeout: float | None = None) -> Iterator[Reply]:
        """Carry out the requests, one after the other.

        The exception of a client becomes the ``error`` of its reply, and the others go on.

        Args:
            requests: to one client or several.
            timeout: has no effect within one process, which waits for each client.
        """
        for request in requests:
            yield self.answer(request, self._makers[request.client])

    def answer(self, request: Request, make: Callable[[], Client]) -> Reply:
        """The client's reply; where it raised or returned no reply, one with that as its ``error``.

        Args:
            request: to the client.
            make: makes the client.
        """
        name = request.client
        try:
            if name not in self._made:
                self._made[name] = make()
            reply: object = self._made[name].answer(request)
            if not isinstance(reply, Reply):
                raise TypeError(f"its answer is a {type(reply).__name__}, not a Reply")
            return reply
        except Exception as error:
            logger.debug("client %s failed", name, exc_info=True)
            return request.reply(error=in_words(error))

    def close(self) -> None:
        """Let the clients go; one that fails to end is named in the log, and fails no run."""
        for name, client in self._made.items():
            try:
                getattr(client, "finalize", lambda: None)()
            except Exception as error:
                logger.warning("client %s: its finalize failed: %s", name, in_words(error))
        self._made.clear()
