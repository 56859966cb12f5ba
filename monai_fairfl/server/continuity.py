# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Whether each client goes on from where it stopped: a lost state is noted, not only logged there.

A client stores its optimizer, the tensors that it does not send and its personal model after every
round. One that lost them trains on, and its next updates and contributions are those of a beginner.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from monai_fairfl.replies import Replies
from monai_fairfl.utils.settings import is_whole

logger = logging.getLogger(__name__)


class Continuity:
    """The round in which each client trained last.

    Args:
        records: of the run's ledger, where it goes on.

    >>> first = {"kind": "round", "round": 0, "digests": {"A": "31e5", "B": "0c7a"}}
    >>> Continuity([first]).last_trained
    {'A': 0, 'B': 0}
    """

    def __init__(self, records: Iterable[Mapping[str, Any]] = ()):
        self.last_trained: dict[str, int] = {}
        for record in records:
            if record["kind"] == "round":
                self.remember(record["round"], record.get("digests", {}))

    def remember(self, number: int, trained: Iterable[str]) -> None:
        """Remember who trained in round ``number``, once that is done.

        Args:
            number: of the round.
            trained: clients whose update arrived, whether or not it counted.
        """
        for client in trained:
            self.last_trained[client] = number

    def notes_on(self, replies: Replies) -> dict[str, str]:
        """Client -> note, of those that trained without the state of their last round.

        Nothing is noted of a client that does not state from which round it went on.

        Args:
            replies: of one exchange.
        """
        notes: dict[str, str] = {}
        for reply in replies:
            last = self.last_trained.get(reply.client, -1)
            if reply.update is None or not is_whole(reply.state_round):
                continue
            if reply.state_round >= last:
                continue
            found = "without any state of its own"
            if reply.state_round >= 0:
                found = f"from its state after round {reply.state_round}"
            notes[reply.client] = (
                f"it trained last in round {last} and went on {found}: its optimizer, and what it "
                "does not send, are not those of its last round"
            )
            logger.warning("client %s: %s", reply.client, notes[reply.client])
        return notes
