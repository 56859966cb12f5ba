# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Replies that are lost, late, malformed or poisoned: what of them counts, and what is recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import odd_federation
from helpers.driving import vector
from helpers.least_squares_federation import (
    TARGETS,
    Faulty,
    changing,
    clients,
    federation,
    global_weights,
    ledger_bytes,
    losing,
)

from monai_fairfl.errors import FederationError
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.values import Estimate
from monai_fairfl.strategies import FedAvg, FedCE
from monai_fairfl.transports.in_process import InProcess

# --- one client's reply


def test_a_client_that_is_lost_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    lost = losing(lambda request: (request.client, request.round) == ("B", 1))
    history = federation(tmp_path, transport=lost).run()
    assert history.rounds[1]["missing"] == {"B": "timeout"}
    assert set(history.rounds[1]["aggregation"]) == {"A", "C"}
    assert set(history.rounds[2]["aggregation"]) == {"A", "B", "C"}


def trained_by_b_in_round_1(request: Request) -> bool:
    return (request.client, request.round, request.task) == ("B", 1, "train")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"error": "disk full"}, "error: disk full"),
        ({"update": {"v": vector([1.0, 2.0])}}, "refused: update has other tensors"),
        ({"round": 7}, "refused: answers request"),
        ({"num_samples": -1}, "refused: num_samples"),
        ({"measurements": None}, "refused: measurements must be a mapping, got NoneType"),
        ({"labelled": 1}, "refused: labelled must be a tuple, got int"),
        (
            {"update": [vector([1.0, 2.0])]},
            "refused: update must be a mapping of tensors, got list",
        ),
        ({"buffers": [1.0]}, "refused: buffers must be a mapping of tensors, got list"),
        ({"update": {"w": vector([math.nan, 0.0])}}, "quarantined: 'w' is not finite"),
    ],
)
def test_a_bad_reply_is_left_out_with_its_reason(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    bad = changing(trained_by_b_in_round_1, **change)
    history = federation(tmp_path, transport=bad).run()
    assert history.rounds[1]["missing"]["B"].startswith(reason)
    for record in history.rounds:
        for weight in record["aggregation"].values():
            assert math.isfinite(weight)


@pytest.mark.parametrize("returned", [None, {"update": 1}])
def test_what_is_no_reply_is_an_error_of_its_client_alone(tmp_path: Path, returned: Any) -> None:
    class Odd:
        def answer(self, request: Request) -> Reply:
            return returned

    mixed = InProcess({**clients(), "B": Odd})
    history = federation(tmp_path, FedAvg(), mixed).run()
    kind = type(returned).__name__
    told = f"error: its answer is a {kind}, and a client returns a Reply"
    assert history.finished and history.rounds[0]["missing"] == {"B": told}


def test_a_transport_that_brings_no_reply_loses_that_client_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    odd: Any = {"update": 1}
    carrier = Faulty(lambda request, reply: [odd] if request.client == "B" else [reply])
    history = federation(tmp_path, FedAvg(), carrier).run()
    assert history.finished and set(history.rounds[0]["missing"]) == {"B"}
    assert "the transport brought a dict, which is no Reply" in caplog.text


def test_one_nan_update_does_not_poison_later_rounds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    poison = changing(trained_by_b_in_round_1, update={"w": vector([math.nan, math.nan])})
    history = federation(tmp_path, transport=poison).run()
    assert history.rounds[1]["guards"]["B"].startswith("quarantine")
    assert "client B: quarantine by NonFinite: 'w' is not finite" in caplog.text
    # The weights do not stay uniform.
    assert len(set(history.rounds[3]["aggregation"].values())) == 3
    assert torch.isfinite(global_weights(tmp_path)).all()


@pytest.mark.parametrize(
    "odd",
    [
        {"gland": 0.5},
        Estimate({"a": 0.5}, None, 1),  # type: ignore[arg-type]
        np.array([0.5, 0.5]),
        10**400,
    ],
)
def test_one_clients_odd_measurement_is_listed_and_the_federation_goes_on(
    tmp_path: Path, odd: Any
) -> None:
    def spoil(request: Request, reply: Reply) -> Reply:
        if request.client != "C":
            return reply
        return replace(reply, measurements=dict.fromkeys(reply.measurements, odd))

    history = federation(tmp_path, FedAvg(), Faulty(spoil)).run()
    assert history.finished
    for record in history.rounds:
        assert record["not_finite"] == {"C": ["global_score"]}


@pytest.mark.parametrize("number", [np.float32, torch.tensor, np.array])
def test_numbers_of_numpy_and_pytorch_count_as_pythons(
    tmp_path: Path, number: Callable[[float], Any]
) -> None:
    def wrapped(request: Request, reply: Reply) -> Reply:
        changed: dict[str, Any] = {}
        for name, value in reply.measurements.items():
            assert isinstance(value, float)
            changed[name] = {"mean": Estimate(number(value), number(0.5), 3)}
        return replace(reply, measurements=changed)

    found = federation(tmp_path, FedAvg(), Faulty(wrapped)).run().rounds[0]
    assert not found["not_finite"] and not found["dropped"]
    for measured in found["measurements"].values():
        assert measured["global_score"]["mean"]["n"] == 3
        assert isinstance(measured["global_score"]["mean"]["stderr"], float)


def test_an_error_and_the_log_say_why_no_measurement_can_be_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    percent = {"A": 85.0, "B": math.nan, "C": 90.0}

    def spoil(request: Request, reply: Reply) -> Reply:
        if "leave_one_out_error" not in request.measure:
            return reply
        return replace(reply, measurements={"leave_one_out_error": percent[request.client]})

    told = (
        r"what the clients sent cannot be used: A \(85, outside of 0 to 1 \(1 - Dice\).*; B \(no "
    )
    with pytest.raises(FederationError, match=told):
        federation(tmp_path, FedCE(), Faulty(spoil)).run()
    assert "client A: its 'leave_one_out_error' does not count: 85, outside" in caplog.text

    # In every round, and logged once.
    caplog.clear()
    some = changing(lambda request: request.client == "B", measurements={"global_score": 85.0})
    history = federation(tmp_path / "some", FedAvg(), some).run()
    assert all(record["dropped"]["B"]["global_score"] for record in history.rounds)
    assert caplog.text.count("client B: its 'global_score' does not count") == 1


def test_a_client_without_statistics_of_batch_normalisation_is_noted_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def without(request: Request, reply: Reply) -> Reply:
        return replace(reply, buffers=None)

    history = odd_federation.federation(FedAvg(), tmp_path / "run", faults={"elm": without}).run()
    for record in history.rounds:
        assert list(record["notes"]) == ["elm"]
        assert "lacks running statistics, such as 'body.running_mean'" in record["notes"]["elm"]
    assert caplog.text.count("lacks running statistics") == 1


# --- replies that do not belong to the exchange


def test_a_second_or_foreign_answer_does_not_count(tmp_path: Path) -> None:
    federation(tmp_path / "plain").run()

    def answer_twice_and_for_another(request: Request, reply: Reply) -> Sequence[Reply]:
        second = replace(reply, num_samples=999)
        foreign = replace(reply, client="B" if request.client == "A" else "A")
        return [reply, second, foreign]

    federation(tmp_path / "twice", transport=Faulty(answer_twice_and_for_another)).run()
    assert ledger_bytes(tmp_path / "plain") == ledger_bytes(tmp_path / "twice")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"num_samples": -1}, "refused: num_samples must be"),
        ({"update": {"v": vector([1.0, 2.0])}}, "refused: update has other tensors"),
        ({"error": "disk full"}, "error: disk full"),
    ],
)
def test_a_second_answer_does_not_count_where_the_first_one_is_refused(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    def answer_well_the_second_time(request: Request, reply: Reply) -> Sequence[Reply]:
        if not trained_by_b_in_round_1(request):
            return [reply]
        return [replace(reply, **change), reply]

    changed = changing(trained_by_b_in_round_1, **change)
    once = federation(tmp_path / "once", transport=changed).run()
    twice = federation(tmp_path / "twice", transport=Faulty(answer_well_the_second_time)).run()
    assert twice.rounds[1]["missing"]["B"].startswith(reason)
    assert twice.records == once.records


def test_a_reply_of_an_earlier_exchange_changes_nothing_of_a_later_one(tmp_path: Path) -> None:
    class Slow(InProcess):
        """B misses the first round; its answer comes in the second, or never."""

        def __init__(self, comes: bool):
            super().__init__(clients())
            self.comes = comes
            self.late: list[tuple[Callable[[Reply], None], Reply]] = []

        def exchange(
            self,
            requests: Sequence[Request],
            arrived: Callable[[Reply], None],
            timeout: float | None = None,
        ) -> None:
            def delay(reply: Reply) -> None:
                if (reply.client, reply.round) != ("B", 0):
                    arrived(reply)
                elif self.comes:
                    poisoned = replace(reply, update={"w": vector([99.0, 99.0])})
                    self.late.append((arrived, poisoned))

            super().exchange(requests, delay, timeout)
            if requests[0].round == 1:
                # After all answers of this exchange, before the server looks at them.
                for hand_over, reply in self.late:
                    hand_over(reply)

    lost = federation(tmp_path / "lost", FedAvg(), Slow(comes=False), evaluate=()).run()
    late = federation(tmp_path / "late", FedAvg(), Slow(comes=True), evaluate=()).run()
    assert late.rounds == lost.rounds
    assert late.rounds[0]["missing"] == {"B": "timeout"}


def test_a_late_reply_to_an_attempt_that_was_undone_is_ignored(tmp_path: Path) -> None:
    late: list[Reply] = []
    everybody = len(TARGETS)

    def lose_the_first_attempt(request: Request, reply: Reply) -> Sequence[Reply]:
        if len(late) < everybody:
            # Accepted, it would give the first client nearly all of the weight.
            samples = reply.num_samples if late else 10_000
            late.append(replace(reply, num_samples=samples))
            return []
        return [*late, reply]

    carrier = Faulty(lose_the_first_attempt)
    done = federation(tmp_path, FedAvg(), carrier, rounds=1, retries=1, final=()).run()
    plain = federation(tmp_path / "plain", FedAvg(), rounds=1, final=()).run()
    assert done.rounds[0]["aggregation"] == plain.rounds[0]["aggregation"]


# --- too few replies


def test_below_min_clients_the_round_is_tried_again_and_nothing_of_the_first_try_remains(
    tmp_path: Path,
) -> None:
    federation(tmp_path / "plain").run()
    asked: list[str] = []

    def in_first_try(request: Request) -> bool:
        if request.round != 1:
            return False
        asked.append(request.client)
        return len(asked) <= 3 and request.client != "A"

    federation(tmp_path / "retried", transport=losing(in_first_try)).run()
    assert ledger_bytes(tmp_path / "plain") == ledger_bytes(tmp_path / "retried")
    assert len(asked) == 6


def test_below_min_clients_for_good_the_run_stops_and_can_be_resumed(tmp_path: Path) -> None:
    gone = losing(lambda request: request.round == 2 and request.client != "A")
    message = r"round 2: 1 of 3 clients answered.*2 rounds are done.*--resume True"
    with pytest.raises(FederationError, match=message):
        federation(tmp_path / "parts", transport=gone).run()
    federation(tmp_path / "parts").run(resume=True)
    federation(tmp_path / "whole").run()
    assert ledger_bytes(tmp_path / "parts") == ledger_bytes(tmp_path / "whole")


def test_an_answer_without_its_requests_numbers_is_no_timeout(tmp_path: Path) -> None:
    silent_on_them = changing(lambda request: True, id=0, run="", round=-1)
    with pytest.raises(FederationError) as error:
        federation(tmp_path, FedAvg(), silent_on_them, retries=0).run()
    told = str(error.value)
    assert "A (refused: answers request 0 of run  round -1, asked was" in told
    assert "B, C (ignored: it answered request 0 of round -1, which it was not asked; a" in told
    assert "timeout" not in told and "Bring the clients back" not in told
    assert "Mend these causes, and run the same command with --resume True (in Python: run(" in told


def test_a_reason_that_all_clients_share_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reason = "ValueError: this client cannot do 'beauty'"
    refusing = changing(lambda request: True, error=reason)
    with pytest.raises(FederationError, match=r"missing: A, B, C \(error: ValueError") as error:
        federation(tmp_path, transport=refusing, retries=0).run()
    assert str(error.value).count(reason) == 1

    assert caplog.text.count(reason) == 1
    assert f"client A does not count in this exchange: error: {reason}" in caplog.text
    for client in ("B", "C"):
        same = f"client {client} does not count in this exchange, for the same reason as A"
        assert caplog.text.count(same) == 1
