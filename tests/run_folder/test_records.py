# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The ledger's records: which model a score is of, and which version wrote a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.driving import SPEC, LeastSquares

from monai_fairfl import __version__
from monai_fairfl.measurements.table import MEASUREMENTS
from monai_fairfl.protocol.messages import Measure, Train
from monai_fairfl.run_folder import records
from monai_fairfl.run_folder.ledger import FORMAT
from monai_fairfl.run_folder.records import model_round
from monai_fairfl.server.federation import Federation, History
from monai_fairfl.strategies import FedAvg, LeaveOneOut, Rounds, Strategy
from monai_fairfl.strategies.coalitions import AT_ONCE
from monai_fairfl.transports.in_process import InProcess

TARGETS = {"A": [1.0, 0.0], "B": [0.0, 1.0]}


def federation(
    folder: Path,
    strategy: Strategy | None = None,
    targets: Mapping[str, list[float]] = TARGETS,
    **settings: Any,
) -> Federation:
    makers = {name: partial(LeastSquares, target) for name, target in targets.items()}
    clients = InProcess(makers)
    initial = lambda: ({"w": torch.zeros(2, dtype=torch.float64)}, SPEC)  # noqa: E731
    given = {"rounds": 3, "evaluate": ("global_score", "local_score"), **settings}
    return Federation(strategy or FedAvg(), clients, initial=initial, run_dir=folder, **given)


def run(folder: Path, strategy: Strategy | None = None) -> History:
    return federation(folder, strategy).run()


@pytest.mark.parametrize("name", sorted(MEASUREMENTS))
def test_a_measurements_name_shows_whether_it_is_of_the_received_model(name: str) -> None:
    received = MEASUREMENTS[name].of == "received"
    assert model_round(name, 4) == (3 if received else 4)


def test_every_score_carries_the_round_of_the_model_that_it_is_of(tmp_path: Path) -> None:
    history = run(tmp_path / "run")
    assert [record["of_round"] for record in history.rounds] == [
        {"global_score": number - 1, "local_score": number} for number in range(3)
    ]
    assert history.records[-1]["of_round"] == {"score": 2}
    # The model after round 0 scored in round 1: the received one, on both clients' data.
    score = {
        client: found["global_score"] for client, found in history.rounds[1]["measurements"].items()
    }
    best = sum(score.values()) / 2
    assert history.records[-1]["best"]["score"] >= best


def test_an_average_that_is_measured_in_its_own_round_is_of_that_round(tmp_path: Path) -> None:
    class Checked(Strategy):
        def round(self, clients: Sequence[str]) -> Rounds:
            local = yield [Train(client, self.start_of(client)) for client in clients]
            average = local.average()
            yield [Measure(client, average, ("score",)) for client in clients]
            return self.finish(local, {client: 0.5 for client in clients}, {})

    rounds = run(tmp_path / "run", Checked()).rounds
    assert rounds[2]["of_round"] == {"global_score": 1, "local_score": 2, "score": 2}


@pytest.mark.parametrize("count", [7, 8, 9])
def test_a_coalitions_score_is_no_sites_own_however_many_exchanges_there_are(
    tmp_path: Path, count: int
) -> None:
    # N + 1 models: of eight clients, the ninth is alone in the last exchange.
    targets = {f"site{number}": [number / 10, 0.5] for number in range(count)}
    assert AT_ONCE == 8
    for record in federation(tmp_path / "run", LeaveOneOut(), targets).run().rounds:
        asked = [entry for exchange in record["exchanges"][1:] for entry in exchange]
        assert len(asked) == (count + 1) * count
        for measured in record["measurements"].values():
            assert set(measured) == {"global_score", "local_score"}
        assert set(record["of_round"]) == {"global_score", "local_score"}


def test_different_measurements_in_two_exchanges_are_the_sites_own(tmp_path: Path) -> None:
    class TwoQuestions(Strategy):
        def round(self, clients: Sequence[str]) -> Rounds:
            local = yield [Train(client, self.start_of(client)) for client in clients]
            average = local.average()
            yield [Measure(client, average, ("score",)) for client in clients]
            yield [Measure(client, average, ("cka",)) for client in clients]
            return self.finish(local, {client: 0.5 for client in clients}, {})

    rounds = run(tmp_path / "run", TwoQuestions()).rounds
    assert rounds and all(record["measurements"] for record in rounds)
    for record in rounds:
        for measured in record["measurements"].values():
            assert set(measured) == {"global_score", "local_score", "score", "cka"}


def test_the_opening_names_format_and_version(tmp_path: Path) -> None:
    history = run(tmp_path / "run")
    assert (history.records[0]["format"], history.records[0]["package"]) == (FORMAT, __version__)


def test_another_version_that_writes_the_same_format_may_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(records, "__version__", "0.0.1")
        assert run(tmp_path / "run").records[0]["package"] == "0.0.1"
    assert len(federation(tmp_path / "run", rounds=4).run(resume=True).rounds) == 4
