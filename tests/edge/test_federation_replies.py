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
from helpers.driving import LeastSquares, vector
from helpers.least_squares_federation import (
    TARGETS,
    Faulty,
    changing,
    clients,
    federation,
    global_weights,
    ledger_bytes,
    ledger_file,
    losing,
)

from monai_fairfl import Estimate, InProcess, Measure, Reply, Request, Train, read_ledger
from monai_fairfl import strategies as shipped
from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.protocol import Range
from monai_fairfl.run_folder import recorded_rounds
from monai_fairfl.strategies import FedAvg, FedCE, Rounds, Standalone, Strategy

QUIET: dict[str, Any] = {"evaluate": (), "final": ()}


def trained_by_b_in_round_1(request: Request) -> bool:
    return (request.client, request.round, request.task) == ("B", 1, "train")


# --- one client's reply


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (None, ["timeout"]),
        ({"error": "disk full"}, ["error", "disk full"]),
        ({"update": {"v": vector([1.0, 2.0])}}, ["refused", "'w'", "'v'"]),
        ({"update": {}}, ["refused", "'w'"]),
        ({"update": None}, ["refused", "update"]),
        ({"update": {"w": vector([1.0])}}, ["refused", "'w'"]),
        ({"update": {"w": "text"}}, ["refused", "'w'"]),
        ({"update": [vector([1.0, 2.0])]}, ["refused", "update", "list"]),
        ({"buffers": [1.0]}, ["refused", "buffers", "list"]),
        ({"round": 7}, ["refused", "7"]),
        ({"run": "other"}, ["refused", "other"]),
        ({"num_samples": -1}, ["refused", "num_samples", "-1"]),
        ({"num_samples": 10**9}, ["refused", "num_samples", "1000000000", "most_samples"]),
        ({"num_samples": 10**5000}, ["refused", "num_samples"]),
        ({"measurements": None}, ["refused", "measurements", "NoneType"]),
        ({"labelled": 1}, ["refused", "labelled", "int"]),
        ({"update": {"w": vector([math.nan, 0.0])}}, ["quarantined", "'w'"]),
    ],
)
def test_a_bad_reply_is_left_out_with_its_reason_and_the_others_go_on(
    tmp_path: Path, change: dict[str, Any] | None, words: list[str]
) -> None:
    bad = losing(trained_by_b_in_round_1)
    if change is not None:
        bad = changing(trained_by_b_in_round_1, **change)
    history = federation(tmp_path, transport=bad).run()
    reason = history.rounds[1]["missing"]["B"]
    assert all(word in reason for word in words) and len(reason) < 500
    assert [set(record["aggregation"]) for record in history.rounds] == [
        set("ABC"), set("AC"), set("ABC"), set("ABC"),
    ]  # fmt: skip
    assert len(set(history.rounds[3]["aggregation"].values())) == 3  # they do not stay uniform
    assert torch.isfinite(global_weights(tmp_path)).all()


@pytest.mark.parametrize(("most", "refused"), [(10, False), (9, True)])
def test_as_many_images_as_the_settings_allow_are_believed(
    most: int, refused: bool, tmp_path: Path
) -> None:
    made = federation(tmp_path, FedAvg(), most_samples=most, retries=0)
    if refused:
        with pytest.raises(FederationError, match="most_samples"):
            made.run()
    else:
        assert not any(record["missing"] for record in made.run().rounds)


def test_what_is_no_reply_is_an_error_of_its_client_alone(tmp_path: Path) -> None:
    """Whether a client returns it, or a transport brings it."""
    odd: Any = {"update": 1}

    class Odd:
        def answer(self, request: Request) -> Reply:
            return odd

    mixed = InProcess({**clients(), "B": Odd})
    carrier = Faulty(lambda request, reply: [odd] if request.client == "B" else [reply])
    for name, transport, word in (("client", mixed, "dict"), ("carrier", carrier, "timeout")):
        history = federation(tmp_path / name, FedAvg(), transport).run()
        assert history.finished and word in history.rounds[0]["missing"]["B"]
        assert set(history.rounds[0]["missing"]) == {"B"}


def test_a_client_that_there_is_not_is_named_so() -> None:
    replies: list[Reply] = []
    InProcess(clients("A")).exchange([Measure("oak", {}, ())], replies.append)
    assert "no such client" in str(replies[0].error) and "A" in str(replies[0].error)


def test_a_client_that_fails_to_end_fails_no_run_and_keeps_no_other_one_from_it(
    tmp_path: Path,
) -> None:
    ended: list[str] = []

    class Ending(LeastSquares):
        def finalize(self) -> None:
            ended.append("")
            raise RuntimeError("its log cannot be closed")

    made = InProcess({name: lambda: Ending([0.0, 1.0]) for name in "ABC"})
    assert federation(tmp_path, FedAvg(), made).run().finished
    assert len(ended) == 3


def test_an_update_and_a_buffer_are_copied_when_they_arrive(tmp_path: Path) -> None:
    """A transport may read the next answer into the same arrays."""
    arrays: dict[str, torch.Tensor] = {}

    class Reusing(odd_federation.OddClient):
        def answer(self, request: Request) -> Reply:
            reply = super().answer(request)
            for tensors in (reply.update, reply.buffers):
                for name, tensor in (tensors or {}).items():
                    arrays.setdefault(name, torch.empty_like(tensor)).copy_(tensor)
                    tensors[name] = arrays[name]  # type: ignore[index]
            return reply

    odd_federation.federation(FedAvg(), tmp_path / "plain" / "run").run()
    reusing = odd_federation.federation(FedAvg(), tmp_path / "reused" / "run")
    makers = {name: lambda name=name: Reusing(name) for name in odd_federation.CLIENTS}
    reusing.transport = InProcess(makers)
    reusing.run()
    assert ledger_bytes(tmp_path / "reused") == ledger_bytes(tmp_path / "plain")


# --- layers and statistics


FROZEN = ("head.bias", "head.weight")


def test_a_frozen_layer_counts_as_one_that_did_not_move(tmp_path: Path) -> None:
    def frozen(request: Request, reply: Reply) -> Reply:
        if reply.update is None:
            return reply
        zeros = {name: torch.zeros_like(reply.update[name]) for name in FROZEN}
        return replace(reply, update={**reply.update, **zeros})

    settings: dict[str, Any] = {"rounds": 1, "final": (), "record_updates": True}
    plain = odd_federation.federation(FedAvg(), tmp_path / "plain", **settings)
    plain.run()
    run = odd_federation.federation(FedAvg(), tmp_path / "run", faults={"oak": frozen}, **settings)
    [record] = run.run().rounds
    assert record["missing"] == {} and record["guards"] == {}
    [recorded] = recorded_rounds(tmp_path / "plain")
    own = {reply.client: reply.update for reply in recorded.replies()}["oak"]
    share = odd_federation.IMAGES["oak"] / sum(odd_federation.IMAGES.values())
    for name in odd_federation.SPEC.parameters:
        expected = plain.strategy.weights[name]
        if name in FROZEN:
            assert own is not None
            expected = expected - share * own[name]
        torch.testing.assert_close(run.strategy.weights[name], expected)


def test_a_site_that_leaves_out_tensors_is_refused_by_their_names(tmp_path: Path) -> None:
    def left_out(request: Request, reply: Reply) -> Reply:
        if reply.update is None:
            return reply
        sent = {name: tensor for name, tensor in reply.update.items() if name not in FROZEN}
        return replace(reply, update=sent)

    run = odd_federation.federation(FedAvg(), tmp_path / "run", faults={"oak": left_out}).run()
    for record in run.rounds:
        reason = record["missing"]["oak"]
        assert reason.startswith("refused") and all(name in reason for name in FROZEN)
        assert "oak" not in record["aggregation"]


def test_a_client_without_statistics_of_batch_normalisation_is_noted_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def without(request: Request, reply: Reply) -> Reply:
        return replace(reply, buffers=None)

    run = odd_federation.federation(FedAvg(), tmp_path / "run", faults={"elm": without}).run()
    for record in run.rounds:
        assert list(record["notes"]) == ["elm"]
        assert "body.running_mean" in record["notes"]["elm"]
    assert caplog.text.count("body.running_mean") == 1


def same_for_all(factor: float) -> odd_federation.Fault:
    """Every client sends ``factor`` in every entry, and the same measurements."""

    def change(request: Request, reply: Reply) -> Reply:
        measured: dict[str, Any] = {}
        for name, value in reply.measurements.items():
            measured[name] = dict.fromkeys(value, 0.5) if isinstance(value, dict) else 0.5
        if reply.update is None:
            return replace(reply, measurements=measured)
        update = {name: torch.full_like(of, factor) for name, of in reply.update.items()}
        return replace(reply, update=update, measurements=measured, num_samples=10)

    return change


@pytest.mark.parametrize(
    "name",
    [
        name for name in shipped.__all__
        if isinstance(getattr(shipped, name), type)
        and issubclass(getattr(shipped, name), Strategy) and name != "Strategy"
    ],
)  # fmt: skip
def test_clients_that_cannot_be_told_apart_weigh_the_same(name: str, tmp_path: Path) -> None:
    """Also where all updates are zero: no 0 / 0."""
    for factor in (0.0, 0.1):
        faults = dict.fromkeys(odd_federation.CLIENTS, same_for_all(factor))
        strategy = getattr(shipped, name)()
        run = odd_federation.federation(strategy, tmp_path / str(factor), faults=faults)
        for record in run.run().rounds:
            assert record["missing"] == {}
            rows = [record["aggregation"]]
            if any(isinstance(row, dict) for row in rows[0].values()):
                rows = list(rows[0].values())
            for row in rows:
                np.testing.assert_allclose(list(row.values()), len(row) * [1 / max(len(row), 1)])
        assert all(tensor.isfinite().all() for tensor in run.strategy.weights.values())


# --- measurements


@pytest.mark.parametrize(
    "odd",
    [
        math.nan,
        math.inf,
        {"gland": 0.5},
        Estimate({"a": 0.5}, None, 1),  # type: ignore[arg-type]
        np.array([0.5, 0.5]),
        10**400,
    ],
)
def test_one_clients_odd_measurement_is_listed_and_the_federation_goes_on(
    tmp_path: Path, odd: Any
) -> None:
    spoilt = changing(lambda request: request.client == "C", measurements={"global_score": odd})
    history = federation(tmp_path, FedAvg(), spoilt).run()
    assert history.finished
    for record in history.rounds:
        assert record["not_finite"] == {"C": ["global_score"]}
        assert record["measurements"]["C"] == {}
        assert set(record["aggregation"]) == set("ABC")


@pytest.mark.parametrize(
    ("settings", "value", "counts"),
    [
        ({}, 1.0, True),
        ({}, 1.01, False),
        ({}, -0.01, False),
        ({"ranges": {"global_score": [-1, 100]}}, 85.0, True),
        ({"ranges": {"global_score": [0, 0.5]}}, 0.6, False),
    ],
)
def test_a_value_outside_of_its_range_is_dropped_with_value_and_range(
    settings: dict[str, Any], value: float, counts: bool,
    tmp_path: Path, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    sent = changing(lambda request: request.client == "B", measurements={"global_score": value})
    history = federation(tmp_path, FedAvg(), sent, final=(), **settings).run()
    for record in history.rounds:
        assert ("global_score" in record["measurements"]["B"]) == counts
        assert (record["dropped"] == {}) == counts
        if not counts:
            reason = record["dropped"]["B"]["global_score"]
            assert f"{value:g}" in reason and " to " in reason
    # In every round, and logged once.
    assert caplog.text.count("client B") == int(not counts)


class Flatness(FedAvg):
    """Asks for a measurement that the package does not know."""

    ranges = {"flatness": Range("degrees", 0, 90), "score": Range("percent", 0, 100)}

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield [Train(client, self.start_of(client), ("flatness",)) for client in clients]
        known = self.known(local, "flatness")
        return self.finish(local, dict.fromkeys(known, 1 / len(known)), contributions=known)


@pytest.mark.parametrize(("ranges", "dropped"), [({}, {"B"}), ({"flatness": [0, 500]}, set())])
def test_a_strategy_declares_ranges_and_the_run_has_the_last_word(
    ranges: dict[str, Any], dropped: set[str], tmp_path: Path
) -> None:
    def tilted(request: Request, reply: Reply) -> Reply:
        degrees = 450.0 if request.client == "B" else 45.0
        return replace(reply, measurements={"flatness": degrees, "score": 85.0})

    history = federation(tmp_path, Flatness(), Faulty(tilted), ranges=ranges, evaluate=()).run()
    for record in history.rounds:
        bad = {client for client, of in record["dropped"].items() if "flatness" in of}
        assert bad == dropped and set(record["aggregation"]) == set("ABC") - dropped
    end = history.records[-1]
    assert {"flatness"} == set(end["dropped"]["A"])  # nobody asked for it
    assert end["scores"]["A"]["own"] == {"score": 85.0}


@pytest.mark.parametrize("unasked", [False, True])
def test_a_measurement_that_nobody_asked_for_counts_on_request_only(
    unasked: bool, tmp_path: Path
) -> None:
    sent = changing(lambda request: True, measurements={"mine": 0.5})
    [record, *_] = federation(tmp_path, FedAvg(), sent, unasked=unasked).run().rounds
    assert record["measurements"]["A"] == ({"mine": 0.5} if unasked else {})
    assert ("mine" in record["dropped"].get("A", {})) != unasked


def test_an_error_says_why_no_measurement_can_be_used(tmp_path: Path) -> None:
    percent = {"A": 85.0, "B": math.nan, "C": 90.0}

    def spoil(request: Request, reply: Reply) -> Reply:
        measured = {name: percent[request.client] for name in request.measure}
        return replace(reply, measurements=measured)

    with pytest.raises(FederationError, match=r"A .*85.*B .*C .*90"):
        federation(tmp_path, FedCE(), Faulty(spoil)).run()


# --- exchanges that mix training and measuring


class Mixed(FedAvg):
    """Trains, and then again, while A measures in the same exchange."""

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield [Train(client, self.start_of(client)) for client in clients]
        requests = [Train(client, self.start_of(client)) for client in clients]
        requests.insert(1, Measure("A", self.weights, ("score",)))
        mixed = yield requests
        weights = dict.fromkeys(clients, 0.0)
        trained = [reply.client for reply in mixed if reply.update is not None]
        for client, row in zip(trained, mixed.matrix.rows, strict=True):
            weights[client] = float(row.norm())
        total = sum(weights.values())
        weights = {client: weight / total for client, weight in weights.items()}
        return self.finish(local, weights, weights)


@pytest.mark.parametrize(
    ("spoilt", "change", "word"),
    [
        (("B", "train"), {"update": {"w": vector([math.nan, 0.0])}}, "quarantined"),
        (("B", "train"), {"update": {"w": vector([1e30, 0.0])}}, "quarantined"),
        (("A", "measure"), {"update": {"w": vector([9.0, 9.0])}}, "refused"),
    ],
)
def test_those_who_train_and_those_who_measure_are_checked_beside_each_other(
    spoilt: tuple[str, str], change: dict[str, Any], word: str, tmp_path: Path
) -> None:
    def in_second_exchange(request: Request) -> bool:
        return (request.client, request.task) == spoilt and request.id >= 3

    bad = changing(in_second_exchange, **change)
    [record] = federation(tmp_path, Mixed(), bad, rounds=1, **QUIET).run().rounds
    plain = federation(tmp_path / "plain", Mixed(), rounds=1, **QUIET).run().rounds[0]
    assert list(record["missing"]) == [spoilt[0]] and word in record["missing"][spoilt[0]]
    asked = [("A", "train"), ("A", "measure"), ("B", "train"), ("C", "train")]
    entries = record["exchanges"][1]
    assert [(entry["client"], entry["task"]) for entry in entries] == asked
    lost = [asked[place] for place in range(4) if entries[place]["measured"] is None]
    assert lost == [spoilt]
    weights = dict(plain["aggregation"])
    if spoilt[1] == "train":
        weights["B"] = 0.0
    total = sum(weights.values())
    expected = {client: weight / total for client, weight in weights.items()}
    assert record["aggregation"] == pytest.approx(expected)


# --- replies that do not belong to the exchange


def test_a_second_or_foreign_answer_does_not_count(tmp_path: Path) -> None:
    def answer_twice_and_for_another(request: Request, reply: Reply) -> Sequence[Reply]:
        second = replace(reply, num_samples=999)
        foreign = replace(reply, client="B" if request.client == "A" else "A")
        return [foreign, reply, second, foreign]

    federation(tmp_path / "plain").run()
    federation(tmp_path / "twice", transport=Faulty(answer_twice_and_for_another)).run()
    assert ledger_bytes(tmp_path / "plain") == ledger_bytes(tmp_path / "twice")


@pytest.mark.parametrize("change", [{"num_samples": -1}, {"error": "disk full"}])
def test_a_second_answer_does_not_count_where_the_first_one_is_refused(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    def answer_well_the_second_time(request: Request, reply: Reply) -> Sequence[Reply]:
        if not trained_by_b_in_round_1(request):
            return [reply]
        return [replace(reply, **change), reply]

    changed = changing(trained_by_b_in_round_1, **change)
    once = federation(tmp_path / "once", transport=changed).run()
    twice = federation(tmp_path / "twice", transport=Faulty(answer_well_the_second_time)).run()
    assert "B" in twice.rounds[1]["missing"] and twice.records == once.records


@pytest.mark.parametrize("error", [None, "disk full"])
def test_a_late_answer_does_not_stand_in_for_the_own_one_of_a_round(
    error: str | None, tmp_path: Path
) -> None:
    """Over a transport that hands it to the present exchange: ids begin at 0 in every round."""
    late: list[Reply] = []

    def delay(request: Request, reply: Reply) -> Sequence[Reply]:
        if (request.client, request.round) == ("B", 0):
            poisoned = {"w": vector([99.0, 99.0])}
            late.append(replace(reply, update=poisoned, error=error, num_samples=500))
            return []
        return [*late, reply, *late] if request.round == 1 else [reply]

    run = federation(tmp_path / "late", FedAvg(), Faulty(delay), **QUIET).run()
    lost = losing(lambda request: (request.client, request.round) == ("B", 0))
    assert run.rounds == federation(tmp_path / "lost", FedAvg(), lost, **QUIET).run().rounds
    assert run.rounds[0]["missing"] == {"B": "timeout"} and run.rounds[1]["missing"] == {}


def test_a_reply_to_a_closed_exchange_changes_nothing_of_a_later_one(tmp_path: Path) -> None:
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

    lost = federation(tmp_path / "lost", FedAvg(), Slow(comes=False), **QUIET).run()
    late = federation(tmp_path / "late", FedAvg(), Slow(comes=True), **QUIET).run()
    assert late.rounds == lost.rounds and late.rounds[0]["missing"] == {"B": "timeout"}


def test_a_late_reply_to_an_attempt_that_was_undone_is_ignored(tmp_path: Path) -> None:
    late: list[Reply] = []

    def lose_the_first_attempt(request: Request, reply: Reply) -> Sequence[Reply]:
        if len(late) < len(TARGETS):
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


@pytest.mark.parametrize("number", [1, 4], ids=["a round", "the end"])
def test_below_min_clients_it_is_tried_again_and_nothing_of_the_first_try_remains(
    number: int, tmp_path: Path
) -> None:
    asked: list[str] = []

    def in_first_try(request: Request) -> bool:
        if request.round != number or request.context.get("ended"):
            return False
        asked.append(request.client)
        return len(asked) <= 3 and request.client != "A"

    federation(tmp_path / "plain").run()
    federation(tmp_path / "retried", transport=losing(in_first_try)).run()
    assert ledger_bytes(tmp_path / "plain") == ledger_bytes(tmp_path / "retried")
    assert len(asked) == 6


@pytest.mark.parametrize("number", [2, 4], ids=["a round", "the end"])
@pytest.mark.parametrize(("left", "missing"), [("A", "B, C"), ("", "A, B, C")])
def test_below_min_clients_for_good_the_run_stops_and_can_be_resumed(
    number: int, left: str, missing: str, tmp_path: Path
) -> None:
    asked: list[str] = []

    def gone(request: Request) -> bool:
        asked.extend([request.client] if request.round == number else [])
        return request.round == number and request.client not in left

    with pytest.raises(FederationError, match=f"{len(left)} of 3 .*{missing}.*timeout") as error:
        federation(tmp_path / "parts", transport=losing(gone), retries=2).run()
    assert "--resume True" in str(error.value) and f"{number} rounds" in str(error.value)
    assert len(asked) == 9
    assert [record["kind"] for record in read_ledger(ledger_file(tmp_path / "parts"))] == [
        "start", *["round"] * number,
    ]  # fmt: skip
    federation(tmp_path / "parts").run(resume=True)
    federation(tmp_path / "whole").run()
    assert ledger_bytes(tmp_path / "parts") == ledger_bytes(tmp_path / "whole")


@pytest.mark.parametrize(("least", "finished"), [(2, True), (3, False)])
def test_just_min_clients_are_enough(least: int, finished: bool, tmp_path: Path) -> None:
    lost = losing(lambda request: request.client == "C")
    run = federation(tmp_path, FedAvg(), lost, min_clients=least, retries=0)
    if finished:
        assert run.run().finished
    else:
        with pytest.raises(FederationError, match="2 of 3"):
            run.run()


class TwoPhases(FedAvg):
    """Trains, then measures the average at the clients that trained."""

    state = ("finished",)
    finished = 0

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield [Train(client, self.start_of(client)) for client in clients]
        average = local.average()
        yield [Measure(client, average, ("score",)) for client in local.clients]
        self.finished += 1
        equal = dict.fromkeys(local.clients, 1 / len(local))
        return self.finish(local, equal, {})


def test_min_clients_holds_in_every_phase_and_the_strategy_is_unchanged(tmp_path: Path) -> None:
    strategy = TwoPhases()

    def lost(request: Request) -> bool:
        return request.round == 1 and request.task == "measure" and request.client != "C"

    with pytest.raises(FederationError, match="round 1"):
        federation(tmp_path, strategy, losing(lost)).run()
    assert strategy.finished == 1


def test_one_client_is_too_few_for_fedce_and_enough_for_fedavg(tmp_path: Path) -> None:
    alone = InProcess(clients("A"))
    with pytest.raises(FederationError, match="FedCE-sum.*2.*'A'"):
        federation(tmp_path / "ce", transport=alone, min_clients=1).run()
    assert federation(tmp_path / "avg", FedAvg(), alone, min_clients=1).run().finished


def test_an_answer_without_its_requests_numbers_is_no_timeout(tmp_path: Path) -> None:
    silent_on_them = changing(lambda request: True, id=0, run="", round=-1)
    with pytest.raises(FederationError, match="A .*refused.*B, C .*ignored") as error:
        federation(tmp_path, FedAvg(), silent_on_them, retries=0).run()
    assert "timeout" not in str(error.value)


def test_a_reason_that_all_clients_share_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reason = "ValueError: this client cannot do 'beauty'"
    refusing = changing(lambda request: True, error=reason)
    with pytest.raises(FederationError, match="A, B, C") as error:
        federation(tmp_path, transport=refusing, retries=0).run()
    assert str(error.value).count(reason) == caplog.text.count(reason) == 1


# --- models that are not finite


def poisoned(request: Request, reply: Reply) -> Reply:
    """B's update of round 1 is not finite, and no guard looks at it."""
    if (request.client, request.round) != ("B", 1):
        return reply
    return replace(reply, update={"w": vector([math.nan, 1.0])})


def test_a_round_without_a_finite_model_fails_with_tensor_and_client_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    settings: dict[str, Any] = {"guards": (), "record_updates": True}
    with pytest.raises(FederationError, match="round 1.*'w'.*'B'"):
        federation(tmp_path / "parts", FedAvg(), Faulty(poisoned), **settings).run()
    records = read_ledger(ledger_file(tmp_path / "parts"))
    assert [record["kind"] for record in records] == ["start", "round"]
    assert not (tmp_path / "parts" / "run" / "updates" / "round-0001").exists()

    # The site was mended: the run goes on as if nothing had happened.
    federation(tmp_path / "parts", FedAvg(), **settings).run(resume=True)
    federation(tmp_path / "whole", FedAvg(), **settings).run()
    assert ledger_bytes(tmp_path / "parts") == ledger_bytes(tmp_path / "whole")


def test_a_reward_is_checked_as_the_global_model_is(tmp_path: Path) -> None:
    class Rewarding(Standalone):
        def round(self, clients: Sequence[str]) -> Rounds:
            result = yield from super().round(clients)
            rewards = {**result.rewards, "B": {"w": vector([1.0, math.inf])}}
            return replace(result, rewards=rewards)

    with pytest.raises(FederationError, match="model of B.*'w'"):
        federation(tmp_path, Rewarding()).run()


def test_an_average_that_overflows_half_precision_is_refused(tmp_path: Path) -> None:
    """Every update is finite in float32, and the sum is not in float16."""

    def large(request: Request, reply: Reply) -> Reply:
        if reply.update is None:
            return reply
        update = {name: change.float() * 0 + 60_000.0 for name, change in reply.update.items()}
        return replace(reply, update=update)

    faults = dict.fromkeys(odd_federation.CLIENTS, large)
    settings: dict[str, Any] = {"dtype": torch.float16, "guards": ()}
    run = odd_federation.federation(FedAvg(), tmp_path / "run", faults=faults, **settings)
    with pytest.raises(FederationError, match=r"'body\.\w+'.*6e\+04"):
        run.run()


def test_a_constant_mask_may_be_infinite_and_a_sum_may_overflow(tmp_path: Path) -> None:
    mask = torch.tensor([0.0, -math.inf])
    weights, spec = odd_federation.start(torch.float32), odd_federation.SPEC
    large = torch.full_like(weights["body.weight"], 3e38)
    assert not large.sum().isfinite()
    buffers = (*spec.buffers, "body.mask")
    spec = replace(spec, buffers=buffers, layers={**spec.layers, "body.mask": "body"})

    def masked(request: Request, reply: Reply) -> Reply:
        if reply.update is None or reply.buffers is None:
            return reply
        update = {name: 0 * change for name, change in reply.update.items()}
        return replace(reply, update=update, buffers={**reply.buffers, "body.mask": mask})

    faults = dict.fromkeys(odd_federation.CLIENTS, masked)
    for before, word in ((mask, ""), (torch.zeros(2), "body.mask")):
        folder = tmp_path / (word or "constant")
        run = odd_federation.federation(FedAvg(), folder, faults=faults, guards=())
        first = {**weights, "body.weight": large, "body.mask": before}
        run.initial = lambda first=first: (first, spec)
        if word:
            with pytest.raises(FederationError, match=word):
                run.run()
        else:
            assert run.run().finished


# --- strategies that slip


class WithoutYield(FedAvg):
    def round(self, clients: Sequence[str]) -> Any:
        return [Train(client, self.weights) for client in clients]


class WithoutReturn(FedAvg):
    def round(self, clients: Sequence[str]) -> Any:
        yield from super().round(clients)


class WithoutList(FedAvg):
    def round(self, clients: Sequence[str]) -> Any:
        yield Train(clients[0], self.weights)


class WithClients(FedAvg):
    def round(self, clients: Sequence[str]) -> Any:
        yield list(clients)


class WithOneName(FedAvg):
    def round(self, clients: Sequence[str]) -> Any:
        yield [Train(client, self.weights, "train_loss") for client in clients]


class Giving(FedAvg):
    """Gives to the ledger what it cannot hold."""

    def __init__(self, **fields: Any):
        super().__init__()
        self.fields = fields

    @property
    def name(self) -> str:
        return "Giving"

    def round(self, clients: Sequence[str]) -> Rounds:
        result = yield from super().round(clients)
        return replace(result, **self.fields)


class Remembering(FedAvg):
    """Keeps a number of NumPy in its state, which no checkpoint can hold."""

    state = ("seen",)
    seen: Any = None

    def round(self, clients: Sequence[str]) -> Rounds:
        result = yield from super().round(clients)
        self.seen = dict.fromkeys(clients, np.float32(0.5))
        return result


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (WithoutYield(), "WithoutYield.*yield.*list"),
        (WithoutReturn(), "WithoutReturn.*return"),
        (WithoutList(), "WithoutList.*Request"),
        (WithClients(), "WithClients.*str"),
        (WithOneName(), "'train_loss'"),
        (Giving(contributions=None), "Giving.*contributions.*None"),
        (Giving(contributions={"A": "0.5"}), r"Giving.*contributions\['A'\].*str"),
        (Giving(details={"q": 3.0}), r"Giving.*details\['q'\].*float"),
        (Giving(details={"q": {"A": [1, 2]}}), r"Giving.*details\['q'\]\['A'\].*list"),
        (Giving(aggregation=[0.5, 0.5]), "Giving.*aggregation.*list"),
        (Remembering(), "Remembering.*'seen'.*float32"),
    ],
)
def test_a_slip_in_a_round_is_named_before_anything_of_it_is_recorded(
    tmp_path: Path, strategy: Strategy, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        federation(tmp_path, strategy).run()
    assert [record["kind"] for record in read_ledger(ledger_file(tmp_path))] == ["start"]


class Summing(FedAvg):
    """FedAvg whose weights have another sum."""

    def __init__(self, total: float, by_layer: bool) -> None:
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
    for total, declared, warnings in ((3.0, False, 1), (1.0, False, 0), (3.0, True, 0)):
        caplog.clear()
        strategy = Summing(total, by_layer)
        strategy.weights_sum_to_one = not declared
        federation(tmp_path / f"{total}-{declared}", strategy).run()
        assert sum("sum" in message for message in caplog.messages) == warnings
