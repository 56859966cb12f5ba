# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The federation owns the global model and the rewards; a strategy reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from helpers.driving import SPEC, LeastSquares, vector

from monai_fairfl.protocol.messages import Reply, Request, Train
from monai_fairfl.protocol.values import Weights
from monai_fairfl.run_folder.ledger import digest_of
from monai_fairfl.server.federation import Federation
from monai_fairfl.server.global_models import GlobalModels
from monai_fairfl.strategies import FedAvg, RoundResult, Rounds, Standalone, Strategy
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


def test_models_of_earlier_rounds_that_somebody_holds_are_unchanged(tmp_path: Path) -> None:
    held: list[Weights] = []
    run = federation(tmp_path, FedAvg(), rounds=6, held=held)
    history = run.run()
    models = [record["model"] for record in history.records if record["kind"] != "end"]
    assert [digest_of(weights) for weights in held] == models[:-1]


def federation(
    folder: Path,
    strategy: Strategy,
    rounds: int = 2,
    held: list[Weights] | None = None,
    **settings: Any,
) -> Federation:
    """A federation of two clients; client A stores every model that it trains in ``held``."""

    class Holds(LeastSquares):
        def answer(self, request: Request) -> Reply:
            if held is not None and request.task == "train":
                held.append(request.weights)
            return super().answer(request)

    makers: dict[str, Any] = {"A": lambda: Holds([1.0, 0.0]), "B": lambda: LeastSquares([1.0, 0.0])}
    initial = lambda: ({"w": torch.zeros(2, dtype=torch.float64)}, SPEC)  # noqa: E731
    return Federation(
        strategy, InProcess(makers), rounds, initial, run_dir=folder / "run", **settings
    )
