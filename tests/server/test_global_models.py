# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The federation owns the global model and the rewards; a strategy reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from helpers.driving import SPEC, LeastSquares, vector

from monai_fairfl.protocol.messages import Train
from monai_fairfl.server.federation import Federation
from monai_fairfl.server.global_models import GlobalModels
from monai_fairfl.strategies import RoundResult, Rounds, Standalone, Strategy
from monai_fairfl.transports.in_process import InProcess


def test_a_round_without_rewards_leaves_those_of_earlier_rounds() -> None:
    before = GlobalModels({"w": vector([0.0])}, {"A": {"w": vector([1.0])}})
    after = before.after(RoundResult({"w": vector([2.0])}, {}, {}))
    assert after.own_model("A")["w"].item() == 1.0 and after.own_model("B")["w"].item() == 2.0


def test_what_a_strategy_does_to_its_models_changes_nothing_of_the_federations(
    tmp_path: Path,
) -> None:
    class Careless(Strategy):
        def round(self, clients: Sequence[str]) -> Rounds:
            local = yield [Train(client, self.start_of(client)) for client in clients]
            result = self.finish(local, {client: 0.5 for client in clients}, {})
            self.weights = {"w": vector([99.0, 99.0])}
            self.rewards = {"A": self.weights}
            return result

    run = federation(tmp_path, Careless())
    history = run.run()
    assert torch.equal(run.strategy.weights["w"], run.global_models.weights["w"])
    assert run.strategy.rewards == {} and set(history.records[-1]["scores"]["A"]) == {"own"}


def test_a_resumed_strategy_reads_the_models_of_the_checkpoint(tmp_path: Path) -> None:
    first = federation(tmp_path, Standalone())
    first.run()
    resumed = federation(tmp_path, Standalone())
    resumed.run(resume=True)
    for client, reward in first.strategy.rewards.items():
        assert torch.equal(resumed.strategy.rewards[client]["w"], reward["w"])


def federation(folder: Path, strategy: Strategy, **settings: Any) -> Federation:
    clients = InProcess({name: lambda: LeastSquares([1.0, 0.0]) for name in "AB"})
    initial = lambda: ({"w": torch.zeros(2, dtype=torch.float64)}, SPEC)  # noqa: E731
    return Federation(strategy, clients, 2, initial, run_dir=folder / "run", **settings)
