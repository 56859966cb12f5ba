# Copyright (c) MONAI FairFL contributors
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#     http://www.apache.org/licenses/LICENSE-2.0
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""What a guard decides about an update before a strategy sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from monai_fairfl.aggregation import Replies

__all__ = ["Guard", "Verdict"]


@dataclass(frozen=True)
class Verdict:
    """``"quarantine"`` keeps the reply from the strategy, ``"flag"`` only records it; ``reason`` goes to the ledger."""

    action: str
    reason: str


class Guard(ABC):
    """A check of the updates of one exchange, seen together with their requests and inner products."""

    @abstractmethod
    def check(self, replies: Replies) -> Mapping[int, Verdict]:
        """Reply id -> verdict, for those that deserve one. ``replies`` are those that trained."""
