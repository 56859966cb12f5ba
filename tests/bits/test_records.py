# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a run records: whose model a score is of, the best model, sizes as facts, lost states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.least_squares_federation import (
    Faulty,
    federation,
    global_weights,
    ledger_bytes,
    ledger_file,
    losing,
    watching,
)

from monai_fairfl import Estimate, Measure, Reply, Request, Train, read_ledger
from monai_fairfl.messages import MEASUREMENTS
from monai_fairfl.replies import uniform
from monai_fairfl.strategies import (
    Ditto,
    FedAvg,
    FedCE,
    FedCI,
    LeaveOneOut,
    Mixed,
    Rounds,
    Standalone,
    Strategy,
)

Change = Callable[[Request, Reply], Any]


@pytest.mark.parametrize("strategy", [FedAvg, FedCE, Standalone])
def test_a_run_leaves_ledger_models_and_scores(tmp_path: Path, strategy: type[Strategy]) -> None:
    history = federation(tmp_path, strategy()).run()
    assert history.finished and history.records == read_ledger(ledger_file(tmp_path))
    kinds = [(record["kind"], record.get("round")) for record in history.records]
    assert kinds == [("start", None), *[("round", n) for n in range(4)], ("end", None)]
    personal = strategy is Standalone
    models = {"own", "global"} if personal else {"own"}
    end = history.records[-1]
    assert {client: set(of) for client, of in end["scores"].items()} == {c: models for c in "ABC"}
    assert (tmp_path / "run" / "models" / "A.pt").exists() == personal
    assert (tmp_path / "run" / "models" / "global.pt").exists()
    assert history.records[0]["configuration"]["_target_"].endswith(strategy.__name__)


def test_where_statistics_stay_at_the_clients_there_is_no_whole_model_to_store(
    tmp_path: Path,
) -> None:
    seen: list[Request] = []
    run = federation(tmp_path, FedAvg(), watching(seen.append), buffers="local")
    weights, spec = run.initial()
    spec = replace(spec, buffers=("mean",), layers={**spec.layers, "mean": "fc"})
    run.initial = lambda: ({**weights, "mean": torch.zeros(1)}, spec)
    assert run.run().finished and not (tmp_path / "run" / "models").exists()
    assert {name for request in seen for name in request.weights} == {"w"}


# --- the model that a score is of


def test_every_score_carries_the_round_of_the_model_that_it_is_of(tmp_path: Path) -> None:
    names = tuple(name for name in MEASUREMENTS if MEASUREMENTS[name].of == "received")
    evaluate = ("local_score", *names)
    history = federation(tmp_path, FedAvg(), evaluate=evaluate).run()
    assert "global_score" in names and "global_loss" in names
    for number, record in enumerate(history.rounds):
        assert record["of_round"] == {"local_score": number, **dict.fromkeys(names, number - 1)}
    assert history.records[-1]["of_round"] == {"score": 3}


class Asking(FedAvg):
    """Trains, and then asks about the average, once for each list of measurements."""

    def __init__(self, *questions: str):
        super().__init__()
        self.questions = questions

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield [Train(client, self.start_of(client)) for client in clients]
        for question in self.questions:
            yield [Measure(client, local.average(), (question,)) for client in clients]
        return self.finish(local, uniform(local), ())


def test_an_average_that_is_measured_in_its_own_round_is_of_that_round(tmp_path: Path) -> None:
    asked: list[Request] = []
    run = federation(tmp_path, Asking("score", "cka"), watching(asked.append)).run()
    for number, record in enumerate(run.rounds):
        assert record["of_round"] == {"global_score": number - 1, "score": number, "cka": number}
        for measured in record["measurements"].values():
            assert set(measured) == {"global_score", "score", "cka"}
    # Numbered over all exchanges of a round.
    assert sorted(request.id for request in asked if request.round == 1) == list(range(9))


@pytest.mark.parametrize("strategy", [FedCI(), LeaveOneOut(), Asking("score", "score")])
def test_scores_of_several_models_are_none_of_a_clients_own(
    strategy: Strategy, tmp_path: Path
) -> None:
    for record in federation(tmp_path, strategy).run().rounds:
        for measured in record["measurements"].values():
            assert set(measured) == {"global_score"}
        assert set(record["of_round"]) == {"global_score"}


# --- the end


def closing(client: str, of_global: bool) -> Callable[[Request], bool]:
    """Whether a request is the closing one of a client, of its own model or of the global one."""

    def chosen(request: Request) -> bool:
        is_end = request.task == "measure" and not request.context.get("ended")
        of_own = "closing" in request.context
        return request.client == client and request.round == 4 and is_end and of_own != of_global

    return chosen


@pytest.mark.parametrize(
    ("strategy", "own", "everybody"),
    [
        (Standalone(), {"own"}, {"own", "global"}),
        (Ditto(reward=Mixed("max")), {"own"}, {"own", "global"}),
    ],
)
def test_who_does_not_score_the_global_model_is_named_and_no_model_is_the_best(
    strategy: Strategy, own: set[str], everybody: set[str], tmp_path: Path
) -> None:
    end = federation(tmp_path, strategy, losing(closing("C", True))).run().records[-1]
    assert end["missing"] == {"C": "timeout"} and end["best"] == {}
    assert set(end["scores"]["C"]) == own and set(end["scores"]["A"]) == everybody


# --- the best model: the mean over everybody


FIRST_SCORES = {"A": 0.9, "B": 0.8, "C": 0.1}
"""C is the hard one, and every round is worse than the previous one."""
OF_EVERYBODY = {"round": 0, "score": pytest.approx(0.55)}


def worsening(fault: Change = lambda request, reply: reply, names: str = "ABC") -> Faulty:
    def change(request: Request, reply: Reply) -> Any:
        score = FIRST_SCORES[request.client] - 0.05 * request.round
        return fault(request, replace(reply, measurements=dict.fromkeys(request.measure, score)))

    return Faulty(change, names)


def lose_c_at_the_end(request: Request, reply: Reply) -> Reply | None:
    return None if (request.client, request.task) == ("C", "measure") else reply


def silence_c(request: Request, reply: Reply) -> Reply:
    return replace(reply, measurements={}) if request.client == "C" else reply


@pytest.mark.parametrize(
    ("fault", "best"),
    [
        (lambda request, reply: reply, OF_EVERYBODY),
        (lose_c_at_the_end, OF_EVERYBODY),
        (silence_c, {}),
    ],
)
def test_the_best_model_is_that_of_the_round_that_all_clients_score_best(
    fault: Change, best: dict[str, Any], tmp_path: Path
) -> None:
    run = federation(tmp_path, FedAvg(), worsening(fault))
    assert run.run().records[-1]["best"] == best
    assert (tmp_path / "run" / "models" / "best.pt").exists() == bool(best)


def test_the_best_model_is_not_chosen_by_which_clients_were_drawn_or_stayed(
    tmp_path: Path,
) -> None:
    settings: dict[str, Any] = {"clients_per_round": 2, "rounds": 2}
    drawn = federation(tmp_path / "drawn", FedAvg(), worsening(), **settings).run()
    assert drawn.records[-1]["best"]["round"] == 1
    federation(tmp_path / "left", FedAvg(), worsening(), rounds=2).run()
    resumed = federation(tmp_path / "left", FedAvg(), worsening(names="AB")).run(resume=True)
    assert resumed.records[-1]["best"] == OF_EVERYBODY


@pytest.mark.parametrize("between", [[], [3]], ids=["extended once", "extended twice"])
def test_the_best_model_that_an_earlier_end_found_is_not_replaced_by_a_worse_one(
    between: list[int], tmp_path: Path
) -> None:
    """With two of three clients a round, only the end measures a model at all of them."""

    def best_of(rounds: int, resume: bool) -> Any:
        settings = {"rounds": rounds, "clients_per_round": 2}
        run = federation(tmp_path, FedAvg(), worsening(), **settings)
        return run.run(resume).records[-1]["best"]

    best = best_of(2, False)
    assert best["round"] == 1
    model = (tmp_path / "run" / "models" / "best.pt").read_bytes()
    for rounds in (*between, 4):
        assert best_of(rounds, True) == best
        assert (tmp_path / "run" / "models" / "best.pt").read_bytes() == model


# --- sizes of data sets are facts: the number that is reported first counts, or a declared one


def claiming(samples: int, from_round: int, cases: int = 2) -> Faulty:
    """B claims another number of images and cases from this round on."""

    def change(request: Request, reply: Reply) -> Reply:
        if request.client != "B" or request.round < from_round or reply.update is None:
            return reply
        return replace(reply, num_samples=samples, num_cases=cases)

    return Faulty(change)


def test_a_later_claim_changes_nothing_and_is_noted_with_both_numbers(tmp_path: Path) -> None:
    honest = federation(tmp_path / "honest", FedAvg()).run()
    run = federation(tmp_path / "lie", FedAvg(), claiming(900_000, 2, cases=500)).run()
    assert torch.equal(global_weights(tmp_path / "lie"), global_weights(tmp_path / "honest"))
    for record, plain in zip(run.rounds, honest.rounds, strict=True):
        for key in ("aggregation", "samples", "cases", "facts", "model"):
            assert record[key] == plain[key]
    assert [set(record["notes"]) for record in run.rounds] == [set(), set(), {"B"}, {"B"}]
    note = run.rounds[2]["notes"]["B"]
    assert all(number in note for number in ("900000", "10", "500", "2"))
    assert run.rounds[0]["facts"] == {c: {"samples": 10, "cases": 2} for c in "ABC"}
    assert run.rounds[1]["facts"] == {}


@pytest.mark.parametrize(("later", "noted"), [(119, False), (81, False), (120, True), (80, True)])
def test_what_a_sampler_may_draw_otherwise_moves_no_weight_and_is_not_noted(
    later: int, noted: bool, tmp_path: Path
) -> None:
    def counted(request: Request, reply: Reply) -> Reply:
        return replace(reply, num_samples=100 if request.round == 0 else later)

    settings = {"rounds": 2, "final": ()}
    _, second = federation(tmp_path, FedAvg(), Faulty(counted), **settings).run().rounds
    assert second["samples"] == dict.fromkeys("ABC", 100)
    assert set(second["notes"]) == (set("ABC") if noted else set())


def test_a_declared_number_counts_from_the_first_round_on(tmp_path: Path) -> None:
    run = federation(tmp_path, FedAvg(), samples={"B": 80}).run()
    for record in run.rounds:
        assert record["aggregation"] == pytest.approx({"A": 0.1, "B": 0.8, "C": 0.1})
        assert record["samples"]["B"] == 80 and "80" in record["notes"]["B"]
    assert run.rounds[0]["facts"]["B"] == {"cases": 2}


def test_what_an_undone_try_reported_is_no_fact(tmp_path: Path) -> None:
    tries: list[int] = []

    def first_try_lies(request: Request, reply: Reply) -> Reply | None:
        if request.round == 0 and len(tries) < 3:
            tries.append(request.id)
            return replace(reply, num_samples=99) if request.client == "B" else None
        return reply

    federation(tmp_path / "retried", FedAvg(), Faulty(first_try_lies)).run()
    federation(tmp_path / "plain", FedAvg()).run()
    assert ledger_bytes(tmp_path / "retried") == ledger_bytes(tmp_path / "plain")


def with_cases(claimed: Callable[[Request], int]) -> Faulty:
    """Every score is a mean over cases; B's number of these is claimed."""

    def change(request: Request, reply: Reply) -> Reply:
        measured = {}
        for name, value in reply.measurements.items():
            cases = claimed(request) if request.client == "B" else 5
            measured[name] = Estimate(float(value), 0.1, cases)  # type: ignore[arg-type]
        return replace(reply, measurements=measured)

    return Faulty(change)


def test_the_cases_behind_a_score_are_a_fact_too(tmp_path: Path) -> None:
    """FedCI's values are means over all clients' cases."""
    plain = federation(tmp_path / "plain", FedCI(), with_cases(lambda request: 5)).run()
    later = with_cases(lambda request: 5 if request.round == 0 else 100_000)
    lied = federation(tmp_path / "lied", FedCI(), later).run()
    for record, honest in zip(lied.rounds, plain.rounds, strict=True):
        for key in ("aggregation", "measurements", "facts"):
            assert record[key] == honest[key]
    assert "100000" in lied.rounds[1]["notes"]["B"]
    end = lied.records[-1]
    assert "100000" in end["notes"]["B"] and end["scores"]["B"]["own"]["score"]["n"] == 5


# --- whether a client goes on from where it stopped


@pytest.mark.parametrize(
    ("stated", "word"),
    [(-1, "-1"), (0, "round 0"), (1, ""), (2, ""), (None, ""), ("no number", "")],
)
def test_a_client_that_goes_on_from_an_earlier_round_than_its_last_is_noted(
    stated: Any, word: str, tmp_path: Path
) -> None:
    """Also by a server that was resumed: it knows from its ledger who trained."""

    def state(request: Request, reply: Reply) -> Reply:
        if request.client != "B" or reply.update is None:
            return reply
        went_on_from = stated if request.round == 2 else request.round - 1
        return replace(reply, digest="ab" * 32, state_round=went_on_from)

    rounds = federation(tmp_path / "whole", FedAvg(), Faulty(state)).run().rounds
    assert [set(record["notes"]) for record in rounds] == [
        set(), set(), {"B"} if word else set(), set(),
    ]  # fmt: skip
    assert word in rounds[2]["notes"].get("B", "")
    federation(tmp_path / "parts", FedAvg(), Faulty(state), rounds=2).run()
    resumed = federation(tmp_path / "parts", FedAvg(), Faulty(state)).run(resume=True)
    assert resumed.rounds[2]["notes"] == rounds[2]["notes"]


# --- what a strategy gives to the ledger
