# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A guard that does as it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from monai_fairfl import Replies
from monai_fairfl.guards import Guard, Verdict


class Clip(Guard):
    """Shortens the updates of given clients in given rounds.

    Args:
        clients: round -> clients.
    """

    state = ("played",)

    def __init__(self, clients: Mapping[int, Sequence[str]]):
        self.clients = dict(clients)
        self.played = 0

    def check(self, replies: Replies) -> Mapping[int, Verdict]:
        chosen = self.clients.get(self.played, ())
        verdict = Verdict("clip", "as it is told", factor=0.1)
        return {reply.id: verdict for reply in replies if reply.client in chosen}

    def remember(self, replies: Replies) -> None:
        self.played += 1
