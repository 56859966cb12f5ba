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
"""Standalone: every hospital trains alone; the yardstick of collaboration."""

from __future__ import annotations

from collections.abc import Sequence

from monai_fairfl.messages import Train
from monai_fairfl.strategies.base import RoundResult, Rounds, Strategy, check_choice

__all__ = ["Standalone"]


class Standalone(Strategy):
    """Each client trains from its own model for the same number of epochs as in the federation.

    The global model stays the initial one; nothing is averaged and nobody contributes to anybody. Seeds, splits and
    epochs equal those of a federated run, so a client's difference to it is what collaboration gained.

    Args:
        variant: ``"paper"``, the only one.
    """

    paper = "the baseline of all five papers"
    client_does = "trains"
    client_sends = "update, which only makes its own next model"

    def __init__(self, variant: str = "paper"):
        check_choice(self, "variant", variant, ("paper",))
        self.variant = variant

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield [Train(client, self.start_of(client)) for client in clients]
        own = {reply.client: local.local(reply) for reply in local}
        return RoundResult(self.weights, {}, {}, rewards={**self.rewards, **own})
