# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Transports of this process whose replies are lost, changed, or arrive in another order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

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

    def ask(self, requests: Sequence[Request], timeout: float | None = None) -> Iterator[Reply]:
        by_id = {request.id: request for request in requests}
        for reply in super().ask(requests, timeout):
            result = self.fault(by_id[reply.id], reply)
            if isinstance(result, Reply):
                yield result
            elif result is not None:
                yield from result


class ReorderingTransport(InProcess):
    """Replies arrive when all clients have answered, in this order."""

    def __init__(self, makers: Mapping[str, Callable[[], Client]], order: Sequence[int]):
        super().__init__(makers)
        self.order = order

    def ask(self, requests: Sequence[Request], timeout: float | None = None) -> Iterator[Reply]:
        replies = list(super().ask(requests, timeout))
        yield from (replies[number] for number in self.order if number < len(replies))
