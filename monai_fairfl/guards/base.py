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
    """``"quarantine"`` keeps the reply from the strategy, ``"flag"`` only records it; ``reason``
    goes to the ledger.
    """

    action: str
    reason: str


class Guard(ABC):
    """A check of the updates of one exchange, seen together with their requests and inner products."""

    @abstractmethod
    def check(self, replies: Replies) -> Mapping[int, Verdict]:
        """Reply id -> verdict, for those that deserve one. ``replies`` are those that trained."""
