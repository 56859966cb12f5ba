# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Requests as Flower's messages, and their answers as replies."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from monai_fairfl.messages import Reply, Request, failed
from monai_fairfl.transports.engines.wire import unreadable
from monai_fairfl.transports.flower.server.names import Names
from monai_fairfl.transports.flower.wire import reply_of, request_content

logger = logging.getLogger(__name__)

TYPES = {"train": MessageType.TRAIN, "measure": MessageType.EVALUATE}
"""A request's task -> the type of Flower's message."""

NO_LIMIT = 30 * 24 * 3600.0
"""Seconds that a message lives where an exchange has no time limit; Flower's own are 12 hours."""
SECONDS_BETWEEN_PULLS = 0.5
"""Over the network; a simulation names its own interval."""
SECONDS_BETWEEN_LOOKS = 1.0
LOOKS_BETWEEN_LINES = 30
"""How often a server that waits for sites says so."""

NOT_CONNECTED = "its SuperNode is not connected"


class FlowerTransport:
    """Sends each request as one message to one node.

    Replies come in any order.

    Args:
        grid: of the run.
        names: says which site a node is.
        rounds: of the run, in all.
        min_clients: that are waited for before the clients are counted.
        wait: seconds to wait for them; 0: for ever.
    """

    def __init__(
        self, grid: Grid, names: Names, rounds: int, min_clients: int = 1, wait: float = 0
    ):
        self.grid = grid
        self.names = names
        self.rounds = rounds
        self.min_clients = min_clients
        self.wait = wait
        self.interval = getattr(grid, "pull_interval", SECONDS_BETWEEN_PULLS)

    @property
    def clients(self) -> Sequence[str]:
        """The sites that are connected, once they are as many as the run needs.

        A site whose SuperNode was started again connects within seconds. Where too few come in
        time, those that are there.
        """
        begun = time.monotonic()
        looks = 0
        while True:
            found = sorted(self.names.nodes())
            waited = time.monotonic() - begun
            if len(found) >= self.min_clients or (self.wait and waited >= self.wait):
                return found
            if looks % LOOKS_BETWEEN_LINES == 0:
                logger.info(
                    "%d of the %d sites that the run needs are connected: %s",
                    len(found),
                    self.min_clients,
                    ", ".join(found) or "none",
                )
            looks += 1
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def ask(self, requests: Sequence[Request], timeout: float | None = None) -> Iterator[Reply]:
        """Send every request, and yield replies until all came or ``timeout`` seconds are over.

        A later answer is never looked at.
        """
        end = time.monotonic() + (timeout or NO_LIMIT)
        nodes = self.names.nodes()
        sent: dict[str, Request] = {}
        for request in requests:
            node = nodes.get(request.client)
            number = None if node is None else self._push(request, node, timeout)
            if number is None:
                yield failed(request, NOT_CONNECTED)
            else:
                sent[number] = request

        while sent and time.monotonic() < end:
            for answer in self.grid.pull_messages(list(sent)):
                yield _reply(answer, sent.pop(answer.metadata.reply_to_message_id))
            time.sleep(self.interval)

    def close(self) -> None:
        """Do nothing: Flower's nodes outlive a run."""

    def _push(self, request: Request, node: int, timeout: float | None) -> str | None:
        """Send one request; return the number of its message, ``None`` where Flower refused it."""
        content = request_content(request, self.rounds)
        message = Message(content, node, TYPES[request.task], ttl=timeout or NO_LIMIT)
        numbers = [number for number in self.grid.push_messages([message]) if number]
        return numbers[0] if numbers else None


def _reply(answer: Message, request: Request) -> Reply:
    """Return what a node answered, or what Flower says in its place.

    An answer that cannot be read is an error of its client. It must not end the run of the others.
    """
    try:
        if answer.has_error():
            return failed(request, f"Flower reports: {answer.error.reason}")
        return reply_of(answer.content, request)
    except Exception as error:
        return unreadable(request, error)
