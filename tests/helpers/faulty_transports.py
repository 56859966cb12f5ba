# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Transports of this process whose replies are lost, changed, or arrive in another order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from monai_fairfl import Client, InProcess, Reply, Request

Fault = Callable[[Request, Reply], Reply | Sequence[Reply] | None]
"""What arrives in place of a reply to a request; ``None``: nothing."""


class FaultyTransport(InProcess):
    """Loses or changes replies.

    Args:
        makers: as of :class:`InProcess`.
        fault: what arrives in place of each reply.
    """

    def __init__(self, makers: Mapping[str, Callable[[], Client]], fault: Fault):
        super().__init__(makers)
        self.fault = fault

    def exchange(
        self,
        requests: Sequence[Request],
        arrived: Callable[[Reply], None],
        timeout: float | None = None,
    ) -> None:
        by_id = {request.id: request for request in requests}

        def pass_on(reply: Reply) -> None:
            result = self.fault(by_id[reply.id], reply)
            if result is None:
                return
            arriving = [result] if isinstance(result, Reply) else result
            for each in arriving:
                arrived(each)

        super().exchange(requests, pass_on, timeout)


class ReorderingTransport(InProcess):
    """Replies arrive when all clients have answered, in another order.

    Args:
        makers: as of :class:`InProcess`.
        reorder: changes the order of the replies of one exchange, in place.
    """

    def __init__(
        self,
        makers: Mapping[str, Callable[[], Client]],
        reorder: Callable[[list[Reply]], None],
    ):
        super().__init__(makers)
        self.reorder = reorder

    def exchange(
        self,
        requests: Sequence[Request],
        arrived: Callable[[Reply], None],
        timeout: float | None = None,
    ) -> None:
        replies: list[Reply] = []
        super().exchange(requests, replies.append, timeout)
        self.reorder(replies)
        for reply in replies:
            arrived(reply)
