# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Clients that live in this process, one after the other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from monai_fairfl.errors import in_words
from monai_fairfl.protocol.messages import Reply, Request, failed

logger = logging.getLogger(__name__)


class Client(Protocol):
    """Anything that answers requests, such as :class:`monai_fairfl.client.algo.FairMonaiAlgo`.

    The tensors of a reply are the server's: a client makes new ones for each training.
    """

    def answer(self, request: Request) -> Reply:
        """Carry out one request."""


class InProcess:
    """Asks clients of this process in the order of the requests.

    Args:
        clients: name -> a function that makes the client (called once, when it is first asked), so
            that a federation of many large sites starts quickly and fails early.
    """

    gives_updates = True
    """The server uses the updates where the clients made them."""

    def __init__(self, clients: Mapping[str, Callable[[], Client]]):
        self._makers = dict(clients)
        self._clients: dict[str, Client] = {}
        self.clients: Sequence[str] = sorted(clients)

    def exchange(
        self,
        requests: Sequence[Request],
        arrived: Callable[[Reply], None],
        timeout: float | None = None,
    ) -> None:
        """Carry out the requests, one after the other.

        A client's exception becomes its reply's ``error``, and the others go on. There is no
        ``timeout`` within one process: a client that works is waited for.
        """
        for request in requests:
            name = request.client
            try:
                if name not in self._clients:
                    self._clients[name] = self._makers[name]()
                reply = self._clients[name].answer(request)
            except Exception as error:
                logger.debug("client %s failed", name, exc_info=True)
                reply = failed(request, in_words(error))
            arrived(reply)

    def close(self) -> None:
        """Let the clients go."""
        for client in self._clients.values():
            finalize = getattr(client, "finalize", None)
            if finalize is not None:
                finalize()
        self._clients.clear()
