# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a guard decides about an update before a strategy sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from monai_fairfl.protocol.replies import Replies


@dataclass(frozen=True)
class Verdict:
    """What a guard decides about one reply.

    Args:
        action: ``"quarantine"``: no strategy sees the reply; ``"flag"``: it is only recorded.
        reason: for the ledger.
    """

    action: str
    reason: str


class Guard(ABC):
    """A check of the updates of one exchange, with their requests and inner products."""

    @abstractmethod
    def check(self, replies: Replies) -> Mapping[int, Verdict]:
        """Judge the replies of one exchange.

        Args:
            replies: those that trained.

        Returns:
            Id of a reply -> verdict, for those that need one.
        """
