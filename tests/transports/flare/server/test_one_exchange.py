# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Strategies that work with scripts: one exchange a round, of training and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from monai_fairfl.errors import ConfigError
from monai_fairfl.protocol.messages import Train
from monai_fairfl.strategies import FedAvg, RoundResult, Rounds

pytest.importorskip("nvflare")

from monai_fairfl.transports.flare.server.one_exchange import try_round  # noqa: E402


class Asking(FedAvg):
    """Lets every client train a number of times in a round."""

    def __init__(self, times: int):
        super().__init__()
        self.times = times

    def round(self, clients: Sequence[str]) -> Rounds:
        for _ in range(self.times):
            local = yield [Train(client, self.start_of(client)) for client in clients]
        weights = dict.fromkeys(local.clients, 1 / len(local.clients))
        return self.finish(local, weights, weights)


def test_a_strategy_that_asks_once_can_be_played() -> None:
    assert isinstance(try_round(Asking(1)), RoundResult)


@pytest.mark.parametrize("times", [2, 3])
def test_a_strategy_that_asks_again_in_a_round_is_refused(times: int) -> None:
    with pytest.raises(ConfigError, match="Asking.* asks its clients more than once in a round"):
        try_round(Asking(times))
