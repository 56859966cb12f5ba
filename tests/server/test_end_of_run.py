# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""After the last round: the closing scores, the clients that do not give them, the best model."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.driving import LeastSquares
from helpers.least_squares_federation import (
    Fault,
    Faulty,
    changing,
    federation,
    ledger_bytes,
    ledger_file,
    losing,
    watching,
)

from monai_fairfl.errors import FederationError
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.run_folder.ledger import read_ledger
from monai_fairfl.strategies import CGSV, Ditto, FedAvg, Mixed, Standalone, Strategy, compose
from monai_fairfl.transports.in_process import InProcess


def test_a_closing_score_that_is_not_finite_is_on_record(tmp_path: Path) -> None:
    def closing_of_b(request: Request) -> bool:
        return request.client == "B" and "score" in request.measure

    spoilt = changing(closing_of_b, measurements={"score": math.nan})
    end = federation(tmp_path, FedAvg(), spoilt).run().records[-1]
    assert end["not_finite"] == {"B": ["score"]}
    assert end["scores"]["B"] == {"own": {}}
    assert end["missing"] == {}


def test_a_client_that_fails_to_end_fails_no_run_and_keeps_no_other_one_from_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[str] = []

    class Ending(LeastSquares):
        def finalize(self) -> None:
            ended.append("")
            if len(ended) == 1:
                raise RuntimeError("its log cannot be closed")

    clients = InProcess({name: lambda: Ending([0.0, 1.0]) for name in "ABC"})
    assert federation(tmp_path, FedAvg(), clients).run().finished
    assert len(ended) == 3
    assert "client A: its finalize failed: RuntimeError: its log cannot be closed" in caplog.text


def test_a_client_that_scores_only_its_own_model_is_named_and_no_model_is_the_best(
    tmp_path: Path,
) -> None:
    def score_of_the_global_model_by_c(request: Request) -> bool:
        return request.client == "C" and request.task == "measure" and not request.context

    transport = losing(score_of_the_global_model_by_c)
    end = federation(tmp_path, Standalone(), transport).run().records[-1]
    assert end["best"] == {}
    assert end["missing"] == {"C": "timeout"}
    assert "own" in end["scores"]["C"]


def test_a_reward_is_not_recorded_as_the_global_model_of_who_has_a_personal_one(
    tmp_path: Path,
) -> None:
    def score_of_the_global_model_by_c(request: Request) -> bool:
        is_at_end = request.round == 4 and not request.context.get("ended")
        return request.client == "C" and is_at_end and "closing" not in request.context

    strategy = compose(Ditto(), reward=Mixed("max"))
    end = federation(tmp_path, strategy, losing(score_of_the_global_model_by_c)).run().records[-1]
    assert end["missing"] == {"C": "timeout"}
    assert set(end["scores"]["C"]) == {"own"}
    assert set(end["scores"]["A"]) == {"own", "global"}


def test_who_has_a_reward_need_not_be_sent_the_global_model(tmp_path: Path) -> None:
    at_the_end: list[Request] = []

    def note(request: Request) -> None:
        if request.round == 4:
            at_the_end.append(request)

    run = federation(tmp_path, CGSV(gamma=None), watching(note), score_global=False).run()
    end = run.records[-1]
    assert {client: set(models) for client, models in end["scores"].items()} == {
        client: {"own"} for client in "ABC"
    }
    assert end["best"] == {}
    measured = [request.client for request in at_the_end if request.weights]
    assert measured == ["A", "B", "C"]
    assert all("closing" in request.context for request in at_the_end if request.weights)


def test_a_client_without_the_models_of_its_own_that_it_was_asked_for_is_noted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def only_the_models_it_received(request: Request, reply: Reply) -> Reply:
        if request.client != "C":
            return reply
        kept = {name: reply.measurements[name] for name in ("score",) if name in request.measure}
        return replace(reply, measurements=kept)

    def end_of(folder: str, strategy: Strategy, **settings: Any) -> Any:
        carrier = Faulty(only_the_models_it_received)
        return federation(tmp_path / folder, strategy, carrier, **settings).run().records[-1]

    no_personal = (
        "no score of a personal model came: its own score is of the model that it received"
    )
    no_gain = "no gain came: it did not take part in the last mile"
    assert end_of("ditto", Ditto())["notes"] == {"C": no_personal}
    assert end_of("mile", FedAvg(), adapt_epochs=2)["notes"] == {"C": no_gain}
    both = end_of("both", Ditto(), adapt_epochs=2)["notes"]
    assert both == {"C": f"{no_personal}; {no_gain}"}
    assert end_of("plain", FedAvg())["notes"] == {}
    assert caplog.text.count(f"client C: {no_personal}") == 2


# --- too few replies


@pytest.mark.slow
def test_an_end_that_too_few_answer_is_tried_again_and_changes_no_bit(tmp_path: Path) -> None:
    federation(tmp_path / "plain").run()
    asked: list[str] = []

    def in_first_try(request: Request) -> bool:
        if request.round != 4 or request.context.get("ended"):
            return False
        asked.append(request.client)
        return len(asked) <= 3

    federation(tmp_path / "retried", transport=losing(in_first_try)).run()
    assert ledger_bytes(tmp_path / "plain") == ledger_bytes(tmp_path / "retried")
    assert len(asked) == 6


@pytest.mark.slow
def test_an_end_that_too_few_answer_for_good_stops_the_run_and_can_be_resumed(
    tmp_path: Path,
) -> None:
    gone = losing(lambda request: request.round == 4 and request.client != "A")
    message = r"the end: 1 of 3 clients answered.*4 rounds are done.*--resume True"
    with pytest.raises(FederationError, match=message):
        federation(tmp_path / "parts", transport=gone).run()
    assert read_ledger(ledger_file(tmp_path / "parts"))[-1]["kind"] == "round"
    federation(tmp_path / "parts").run(resume=True)
    federation(tmp_path / "whole").run()
    assert ledger_bytes(tmp_path / "parts") == ledger_bytes(tmp_path / "whole")


# --- the best model


def mean(scores: list[float]) -> float:
    return sum(scores) / len(scores)


def test_the_best_model_by_validation_is_stored(tmp_path: Path) -> None:
    history = federation(tmp_path, FedAvg(), rounds=6).run()
    # The score of a round's result is measured in the next round, and after the last one.
    means = []
    for record in history.rounds[1:]:
        measured = record["measurements"].values()
        means.append(mean([scores["global_score"] for scores in measured]))
    closing = history.records[-1]["scores"].values()
    means.append(mean([scores["own"]["score"] for scores in closing]))

    best = history.records[-1]["best"]
    assert best["round"] == means.index(max(means))
    assert best["score"] == pytest.approx(max(means))
    assert (tmp_path / "run" / "models" / "best.pt").exists()


def test_without_a_global_model_only_the_closing_measurement_counts(tmp_path: Path) -> None:
    alone = federation(tmp_path / "alone", Standalone()).run()
    assert alone.records[-1]["best"]["round"] == 3


def test_the_best_model_is_not_chosen_by_which_clients_were_drawn(tmp_path: Path) -> None:
    history = federation(tmp_path, FedAvg(), rounds=6, clients_per_round=2).run()
    end = history.records[-1]
    closing = [scores["own"]["score"] for scores in end["scores"].values()]
    assert len(closing) == 3
    assert end["best"] == {"round": 5, "score": pytest.approx(mean(closing))}


# C is the hard one, and every round is worse than the previous one.
FIRST_SCORES = {"A": 0.9, "B": 0.8, "C": 0.1}
BEST_OF_EVERYBODY = {"round": 0, "score": pytest.approx(0.55)}


def worsening(request: Request, reply: Reply) -> Reply:
    score = FIRST_SCORES[request.client] - 0.05 * request.round
    return replace(reply, measurements={name: score for name in request.measure})


def best_model(folder: Path, fault: Fault) -> dict[str, Any]:
    """The best model of a run in which :func:`worsening` and then ``fault`` change replies."""
    transport = Faulty(lambda request, reply: fault(request, worsening(request, reply)))
    best: dict[str, Any] = federation(folder, FedAvg(), transport).run().records[-1]["best"]
    return best


def test_the_best_model_is_that_of_the_best_round(tmp_path: Path) -> None:
    assert best_model(tmp_path, lambda request, reply: reply) == BEST_OF_EVERYBODY


def test_a_client_that_is_absent_at_the_end_does_not_make_the_last_model_the_best(
    tmp_path: Path,
) -> None:
    def lose_c_at_the_end(request: Request, reply: Reply) -> Reply | None:
        if (request.client, request.task) == ("C", "measure"):
            return None
        return reply

    assert best_model(tmp_path, lose_c_at_the_end) == BEST_OF_EVERYBODY


def test_without_the_scores_of_one_client_no_model_is_the_best(tmp_path: Path) -> None:
    def silence_c(request: Request, reply: Reply) -> Reply:
        if request.client != "C":
            return reply
        return replace(reply, measurements={"global_score": math.nan})

    assert best_model(tmp_path, silence_c) == {}


def test_a_client_that_left_before_a_resume_does_not_make_a_later_model_the_best(
    tmp_path: Path,
) -> None:
    federation(tmp_path, FedAvg(), Faulty(worsening), rounds=2).run()
    resumed = federation(tmp_path, FedAvg(), Faulty(worsening, names="AB")).run(resume=True)
    assert resumed.records[-1]["best"] == BEST_OF_EVERYBODY


@pytest.mark.parametrize("between", [[], [3]], ids=["extended once", "extended twice"])
def test_the_best_model_that_an_earlier_end_found_is_not_replaced_by_a_worse_one(
    between: list[int], tmp_path: Path
) -> None:
    """With two of three clients a round, only the end measures a model at all of them."""

    def run(rounds: int, resume: bool) -> dict[str, Any]:
        transport = Faulty(worsening)
        settings = {"rounds": rounds, "clients_per_round": 2}
        end: dict[str, Any] = (
            federation(tmp_path, FedAvg(), transport, **settings).run(resume).records[-1]
        )
        return end

    best = run(2, False)["best"]
    assert best["round"] == 1
    model = (tmp_path / "run" / "models" / "best.pt").read_bytes()
    for rounds in (*between, 4):
        assert run(rounds, True)["best"] == best
        assert (tmp_path / "run" / "models" / "best.pt").read_bytes() == model
