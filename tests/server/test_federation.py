# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A run without faults: its ledger, models and scores, its requests, its bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.driving import LeastSquares
from helpers.faulty_transports import ReorderingTransport
from helpers.least_squares_federation import (
    ROUNDS,
    TARGETS,
    clients,
    federation,
    ledger_bytes,
    ledger_file,
    losing,
    watching,
)

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.protocol.messages import Measure, Request, Train
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.protocol.values import Estimate
from monai_fairfl.run_folder.ledger import heads_of, read_ledger
from monai_fairfl.strategies import (
    FedAvg,
    FedCE,
    FedCI,
    FedISM,
    LeaveOneOut,
    Rounds,
    Standalone,
    Strategy,
    compose,
)
from monai_fairfl.transports.in_process import InProcess
from monai_fairfl.utils.random_state import seed_of


@pytest.mark.parametrize("strategy", [FedAvg, FedCE, Standalone])
def test_a_run_leaves_ledger_models_and_scores(tmp_path: Path, strategy: type[Strategy]) -> None:
    history = federation(tmp_path, strategy()).run()
    assert history.finished
    assert [record["round"] for record in history.rounds] == [0, 1, 2, 3]
    kinds = [record["kind"] for record in read_ledger(ledger_file(tmp_path))]
    assert kinds == ["start", "round", "round", "round", "round", "end"]

    scores = history.records[-1]["scores"]
    assert set(scores) == set(TARGETS)
    personal = strategy is Standalone
    models = {"own", "global"} if personal else {"own"}
    for client, scored in scores.items():
        assert set(scored) == models, client
    assert (tmp_path / "run" / "models" / "A.pt").exists() == personal


@pytest.mark.parametrize("strategy", [FedCI, LeaveOneOut])
def test_scores_of_coalitions_models_are_not_recorded_as_a_clients_own(
    tmp_path: Path, strategy: type[Strategy]
) -> None:
    rounds = federation(tmp_path, strategy(), evaluate=("global_score",)).run().rounds
    for record in rounds:
        assert record["details"]
        for measured in record["measurements"].values():
            assert set(measured) == {"global_score"}


def test_what_a_client_trains_is_measured_where_it_trains_and_only_once(tmp_path: Path) -> None:
    asked: list[Request] = []
    evaluate = ("local_score", "global_score", "train_loss")

    def measured_of(strategy: Strategy) -> dict[str, list[tuple[str, ...]]]:
        asked.clear()
        folder = tmp_path / strategy.name
        settings = {"evaluate": evaluate, "final": (), "rounds": 1}
        federation(folder, strategy, watching(asked.append), **settings).run()
        found: dict[str, list[tuple[str, ...]]] = {"measure": [], "train": []}
        for request in asked:
            if request.client == "A" and not request.context.get("ended"):
                found[request.task].append(request.measure)
        return found

    assert measured_of(FedISM()) == {"measure": [], "train": [(*evaluate, "sharpness")]}
    assert measured_of(FedISM(salt=False)) == {
        "measure": [("global_score", "sharpness")],
        "train": [("local_score", "train_loss")],
    }


def test_without_final_measurements_everybody_is_sent_the_last_head_and_asked_for_nothing(
    tmp_path: Path,
) -> None:
    asked: list[Request] = []
    history = federation(tmp_path, final=(), transport=watching(asked.append)).run()
    assert len(asked) == 15
    trained, last = asked[:12], asked[12:]
    assert {(request.task, request.round) for request in trained} == {
        ("train", number) for number in range(ROUNDS)
    }
    require_last_head(last, tmp_path)
    assert history.finished
    end = history.records[-1]
    assert (end["kind"], end["scores"], end["missing"]) == ("end", {}, {})
    assert (tmp_path / "run" / "models" / "global.pt").exists()


# --- requests


def test_requests_are_stamped_and_the_first_exchange_measures_the_received_model(
    tmp_path: Path,
) -> None:
    seen: list[Request] = []
    federation(tmp_path, transport=watching(seen.append)).run()
    training = [request for request in seen if request.task == "train"]
    for request in training:
        assert "global_score" in request.measure
        assert request.run == "run"
    assert len({(request.client, request.seed) for request in training}) == 12
    assert len({request.ledger_head for request in training}) == 4

    measuring = [request for request in seen if request.task == "measure"]
    closing, last = measuring[:3], measuring[3:]
    assert [request.measure for request in closing] == [("score",)] * 3
    assert {request.round for request in measuring} == {4}

    require_last_head(last, tmp_path)


class Pulled(FedAvg):
    """FedAvg whose own requests choose FedProx."""

    def round(self, clients: Sequence[str]) -> Rounds:
        context = {"prox_mu": 0.2}
        local = yield [Train(client, self.weights, (), context) for client in clients]
        equal = {client: 1 / len(clients) for client in clients}
        return self.finish(local, equal, equal)


def test_a_training_that_the_strategy_would_overrule_is_refused_before_anybody_trains(
    tmp_path: Path,
) -> None:
    seen: list[Request] = []
    composed = compose(Pulled(), training={"prox_mu": 0.1})
    with pytest.raises(ConfigError, match=r"has prox_mu 0.1, and the strategy itself sends 0.2"):
        federation(tmp_path, composed, transport=watching(seen.append)).run()
    assert seen == []

    same = compose(Pulled(), training={"prox_mu": 0.2, "local_epochs": 2})
    federation(tmp_path / "same", same, transport=watching(seen.append)).run()
    assert seen[0].context == {"prox_mu": 0.2, "local_epochs": 2}


def require_last_head(requests: Sequence[Request], folder: Path) -> None:
    """When the end is on record, everybody is sent the last head, and asked for nothing."""
    assert [request.client for request in requests] == list(TARGETS)
    for request in requests:
        assert (request.context, dict(request.weights), request.measure) == ({"ended": 1}, {}, ())
        assert request.ledger_head == heads_of(ledger_file(folder))[-1]


def test_clients_are_sampled_by_seed_and_round(tmp_path: Path) -> None:
    def drawn(folder: Path) -> list[tuple[str, ...]]:
        history = federation(folder, FedAvg(), clients_per_round=2, rounds=12).run()
        return [tuple(record["clients"]) for record in history.rounds]

    first = drawn(tmp_path)
    for clients_of_round in first:
        assert len(clients_of_round) == 2
    assert len(set(first)) == 3
    assert drawn(tmp_path / "again") == first


def test_seeds_differ_by_client_round_and_run() -> None:
    seeds = set()
    for run_seed in range(3):
        for client in "ABC":
            for number in range(5):
                seeds.add(seed_of(run_seed, client, number))
    assert len(seeds) == 45
    for seed in seeds:
        assert 0 <= seed < 2**31


# --- several phases


class TwoPhases(Strategy):
    """Trains, then measures the average twice at the clients that trained."""

    state = ("finished",)

    def __init__(self) -> None:
        self.finished = 0

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield [Train(client, self.start_of(client)) for client in clients]
        anchor = local.average()
        requests = []
        for reply in local:
            for _ in range(2):
                requests.append(Measure(reply.client, anchor, ("score",)))
        scores = yield requests
        assert len(scores) == 2 * len(scores.clients)
        self.finished += 1
        return self.finish(local, self.measured_shares(scores), {})

    def measured_shares(self, scores: Replies) -> dict[str, float]:
        values = self.measured(scores, "score")
        return {client: value / sum(values.values()) for client, value in values.items()}


def test_a_strategy_may_use_several_phases_and_ask_one_client_twice(tmp_path: Path) -> None:
    asked: list[Request] = []
    history = federation(tmp_path, TwoPhases(), watching(asked.append)).run()
    assert history.finished
    assert len({(request.round, request.client, request.id) for request in asked}) == len(asked)
    ids = [request.id for request in asked if request.round == 0]
    assert sorted(ids) == list(range(9))


def test_min_clients_holds_in_every_phase_and_the_strategy_is_unchanged(tmp_path: Path) -> None:
    strategy = TwoPhases()

    def lost(request: Request) -> bool:
        return request.round == 1 and request.task == "measure" and request.client != "C"

    with pytest.raises(FederationError, match="round 1"):
        federation(tmp_path, strategy, losing(lost)).run()
    assert strategy.finished == 1


def test_one_client_is_too_few_for_fedce_and_enough_for_fedavg(tmp_path: Path) -> None:
    alone = InProcess({"A": lambda: LeastSquares([1.0, 0.0])})
    with pytest.raises(FederationError, match=r"FedCE-sum needs at least 2 clients, got 1 \['A'\]"):
        federation(tmp_path / "ce", transport=alone, min_clients=1).run()
    assert federation(tmp_path / "avg", FedAvg(), alone, min_clients=1).run().finished


# --- bits


def test_same_seed_same_bits_other_seed_other_bits(tmp_path: Path) -> None:
    for name, seed in (("one", 0), ("two", 0), ("three", 1)):
        federation(tmp_path / name, seed=seed).run()
    one = ledger_bytes(tmp_path / "one")
    assert ledger_bytes(tmp_path / "two") == one
    assert ledger_bytes(tmp_path / "three") != one


def test_the_order_in_which_replies_arrive_changes_no_bit(tmp_path: Path) -> None:
    reversing = ReorderingTransport(clients(), list.reverse)
    federation(tmp_path / "plain").run()
    federation(tmp_path / "reversed", transport=reversing).run()
    assert ledger_bytes(tmp_path / "plain") == ledger_bytes(tmp_path / "reversed")


def test_the_global_random_state_is_left_alone(tmp_path: Path) -> None:
    state: Any = torch.random.get_rng_state()
    federation(tmp_path).run()
    assert torch.equal(state, torch.random.get_rng_state())


class Forgetful(FedAvg):
    """FedAvg that does not return what it computed."""

    def round(self, clients: Sequence[str]) -> Rounds:  # type: ignore[return]
        yield from super().round(clients)


def test_a_round_that_returns_nothing_is_named_with_what_it_must_return(tmp_path: Path) -> None:
    words = r"strategy Forgetful: its round returned nothing; it must end with return self\.finish"
    with pytest.raises(ConfigError, match=words):
        federation(tmp_path, Forgetful()).run()


class WithoutYield(FedAvg):
    def round(self, clients: Sequence[str]) -> Any:
        return [Train(client, self.weights) for client in clients]


class WithoutList(FedAvg):
    def round(self, clients: Sequence[str]) -> Any:
        yield Train(clients[0], self.weights)


class WithClients(FedAvg):
    def round(self, clients: Sequence[str]) -> Any:
        yield list(clients)


class WithOneName(FedAvg):
    def round(self, clients: Sequence[str]) -> Any:
        yield [Train(client, self.weights, "train_loss") for client in clients]


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (WithoutYield, "WithoutYield: its round has no yield, and returned a list; it must ask"),
        (WithoutList, "WithoutList: its round yielded a Request; it must yield a list of requests"),
        (WithClients, "WithClients: its round yielded a list with a str; it must yield a list"),
        (WithOneName, "measure must be a list of measurements, got 'train_loss'"),
    ],
)
def test_a_slip_in_a_round_is_named_with_the_right_form(
    tmp_path: Path, strategy: type[Strategy], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        federation(tmp_path, strategy()).run()


class Giving(FedAvg):
    """FedAvg that gives to the ledger what a test wants."""

    def __init__(self, **fields: Any):
        super().__init__()
        self.fields = fields

    @property
    def name(self) -> str:
        return "Giving"

    def round(self, clients: Sequence[str]) -> Rounds:
        result = yield from super().round(clients)
        return replace(result, **self.fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"contributions": None}, "contributions is None; contributions must map client -> number"),
        ({"contributions": {"A": "0.5"}}, r"contributions\['A'\] is a str"),
        ({"details": {"q": 3.0}}, r"details\['q'\] is a float; details must map name -> client"),
        ({"details": {"q": {"A": [1, 2]}}}, r"details\['q'\]\['A'\] is a list"),
        ({"aggregation": [0.5, 0.5]}, "aggregation is a list; aggregation must map client"),
    ],
)
def test_what_the_ledger_cannot_hold_is_refused_in_the_first_round(
    tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=f"strategy Giving: {words}"):
        federation(tmp_path, Giving(**fields)).run()
    assert [record["kind"] for record in read_ledger(ledger_file(tmp_path))] == ["start"]


class Summing(FedAvg):
    """FedAvg whose weights have another sum."""

    def __init__(self, total: float = 3.0, by_layer: bool = False) -> None:
        super().__init__()
        self.total = total
        self.by_layer = by_layer

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield [Train(client, self.weights) for client in clients]
        weights = dict.fromkeys(local.clients, self.total / len(local.clients))
        return self.finish(local, {"fc": weights} if self.by_layer else weights, weights)


@pytest.mark.parametrize("by_layer", [False, True])
def test_weights_that_do_not_sum_to_one_are_logged_once_unless_the_class_says_so(
    tmp_path: Path, by_layer: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings_of(folder: str, strategy: Strategy) -> int:
        caplog.clear()
        federation(tmp_path / folder, strategy).run()
        return caplog.text.count("the weights of an average sum to 3, and not to 1")

    told = Summing(by_layer=by_layer)
    assert [warnings_of("first", told), warnings_of("second", told)] == [1, 1]
    assert warnings_of("one", Summing(1.0, by_layer)) == 0
    told.weights_sum_to_one = False
    assert warnings_of("declared", told) == 0


class Remembering(FedAvg):
    """FedAvg that keeps a number of NumPy in its state."""

    state = ("seen",)

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, Any] = {}

    def round(self, clients: Sequence[str]) -> Rounds:
        result = yield from super().round(clients)
        self.seen = dict.fromkeys(clients, np.float32(0.5))
        return result


def test_a_state_that_no_checkpoint_can_hold_is_refused_before_the_round_is_recorded(
    tmp_path: Path,
) -> None:
    words = r"strategy Remembering: its state 'seen' is no plain JSON .*float32.*: keep numbers"
    with pytest.raises(ConfigError, match=words):
        federation(tmp_path, Remembering()).run()
    assert [record["kind"] for record in read_ledger(ledger_file(tmp_path))] == ["start"]


def test_numbers_of_numpy_and_pytorch_are_pythons_in_the_ledger(tmp_path: Path) -> None:
    third, half = np.float32(1 / 3), torch.tensor(0.5)
    stated: Any = Estimate(third, half, np.int64(2))  # type: ignore[arg-type]
    given = {
        "aggregation": dict.fromkeys("ABC", third),
        "contributions": dict.fromkeys("ABC", stated),
        "details": {"q": dict.fromkeys("ABC", {"layer": half})},
    }
    [record, *_] = federation(tmp_path, Giving(**given)).run().rounds
    assert record["aggregation"]["A"] == float(third)
    assert record["contributions"]["A"] == {"value": float(third), "stderr": 0.5, "n": 2}
    assert record["details"] == {"q": dict.fromkeys("ABC", {"layer": 0.5})}
