# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Images and cases are facts: the number that a client reports first counts, or a declared one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.least_squares_federation import (
    Faulty,
    Listening,
    federation,
    global_weights,
    ledger_bytes,
    losing,
)

from monai_fairfl.data import SampleSlicesd
from monai_fairfl.protocol.messages import Measure, Reply, Request, Train
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.protocol.values import Estimate
from monai_fairfl.server.facts import Facts
from monai_fairfl.strategies import FedAvg, FedCI

Change = Callable[[Request, Reply], Reply]


def claiming(samples: int, from_round: int, cases: int = 2) -> Change:
    """B claims another number of images and cases from this round on."""

    def change(request: Request, reply: Reply) -> Reply:
        if request.client != "B" or request.round < from_round or reply.update is None:
            return reply
        return replace(reply, num_samples=samples, num_cases=cases)

    return change


def test_a_later_claim_changes_nothing_and_is_noted_with_both_numbers(tmp_path: Path) -> None:
    honest = federation(tmp_path / "honest", FedAvg()).run()
    sleeper = Faulty(claiming(900_000, from_round=2, cases=500))
    history = federation(tmp_path / "lie", FedAvg(), sleeper).run()
    assert torch.equal(global_weights(tmp_path / "lie"), global_weights(tmp_path / "honest"))
    for record, plain in zip(history.rounds, honest.rounds, strict=True):
        for key in ("aggregation", "samples", "cases", "facts", "model"):
            assert record[key] == plain[key]
    assert [record["notes"] for record in history.rounds[:2]] == [{}, {}]
    note = history.rounds[2]["notes"]["B"]
    assert (
        "samples 900000 reported, 10 counts: it was reported first. A sampler may draw another "
        "number in each epoch. Where the site's data changed, begin a new run"
    ) in note
    assert "cases 500 reported, 2 counts" in note and "begin a new run" in note


def test_an_epoch_whose_images_a_sampler_draws_is_not_noted_and_moves_no_weight() -> None:
    label = torch.zeros(1, 4, 4, 24)
    label[..., 6:18] = 1
    facts = Facts()
    spec = ModelSpec(("w",))
    reported = []
    for number in range(4):
        images = 0
        for case in range(6):
            sampler = SampleSlicesd(["image", "label"], num_samples="all", empty_rate=0.35)
            sampler.set_random_state(100 * number + case)
            images += len(sampler({"image": label, "label": label}))
        reported.append(images)
        reply = Reply("A", {"w": torch.ones(1)}, images)
        replies = Replies([reply], [Train("A", {"w": torch.zeros(1)})], spec)
        assert facts.fix(replies) == {}
        assert replies[0].num_samples == reported[0]
    assert len(set(reported)) > 1


@pytest.mark.parametrize(("later", "noted"), [(119, False), (81, False), (120, True), (80, True)])
def test_a_larger_difference_is_noted(later: int, noted: bool) -> None:
    facts = Facts()
    for images, expected in ((100, False), (later, noted)):
        reply = Reply("A", {"w": torch.ones(1)}, images)
        replies = Replies([reply], [Train("A", {"w": torch.zeros(1)})], ModelSpec(("w",)))
        assert bool(facts.fix(replies)) == expected
        assert replies[0].num_samples == 100


def test_the_first_number_of_each_client_is_recorded_once(tmp_path: Path) -> None:
    rounds = federation(tmp_path, FedAvg(), clients_per_round=2, rounds=8).run().rounds
    seen: set[str] = set()
    for record in rounds:
        assert set(record["facts"]) == set(record["clients"]) - seen
        seen.update(record["clients"])
    assert seen == {"A", "B", "C"}
    assert rounds[0]["facts"][rounds[0]["clients"][0]] == {"samples": 10, "cases": 2}


def test_a_declared_number_counts_from_the_first_round_on(tmp_path: Path) -> None:
    history = federation(tmp_path, FedAvg(), samples={"B": 80}).run()
    for record in history.rounds:
        assert record["aggregation"] == pytest.approx({"A": 0.1, "B": 0.8, "C": 0.1})
        assert record["samples"]["B"] == 80
        assert record["notes"]["B"].startswith("samples 10 reported, 80 counts: the settings")
    assert history.rounds[0]["facts"]["B"] == {"cases": 2}


def test_a_declared_name_that_is_no_client_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation(tmp_path, FedAvg(), samples={"b": 80}, rounds=1).run()
    assert "samples names b, and the clients are A, B, C" in caplog.text


def test_more_images_than_a_site_can_have_are_refused_with_the_setting(tmp_path: Path) -> None:
    many = Faulty(claiming(10**9, from_round=1))
    history = federation(tmp_path / "lie", FedAvg(), many).run()
    assert history.rounds[1]["missing"]["B"] == (
        "refused: num_samples is 1000000000, and most_samples allows a site 1000000: correct the "
        "site's count, or raise most_samples"
    )
    allowed = federation(tmp_path / "allowed", FedAvg(), most_samples=10).run()
    assert not any(record["missing"] for record in allowed.rounds)
    fewer = federation(tmp_path / "fewer", FedAvg(), most_samples=20, transport=many).run()
    assert set(fewer.rounds[1]["missing"]) == {"B"}


def test_a_count_of_thousands_of_digits_is_refused_in_few_words(tmp_path: Path) -> None:
    history = federation(tmp_path, FedAvg(), Faulty(claiming(10**5000, from_round=0))).run()
    assert "num_samples is a number of 16610 bits" in history.rounds[0]["missing"]["B"]


@pytest.mark.slow
@pytest.mark.parametrize("stop_in", [0, 2])
def test_a_resumed_run_knows_the_facts_to_the_same_bits(tmp_path: Path, stop_in: int) -> None:
    def lying() -> Faulty:
        return Faulty(claiming(500, from_round=1))

    federation(tmp_path / "whole", FedAvg(), lying(), clients_per_round=2).run()

    def stop(record: Any) -> None:
        if record.get("round") == stop_in:
            stopped.stop()

    folder = tmp_path / "parts"
    settings = {"clients_per_round": 2}
    stopped = federation(folder, FedAvg(), lying(), observer=Listening(stop), **settings)
    stopped.run()
    federation(folder, FedAvg(), lying(), **settings).run(resume=True)
    assert ledger_bytes(folder) == ledger_bytes(tmp_path / "whole")


def test_what_an_undone_round_reported_is_no_fact(tmp_path: Path) -> None:
    tries: list[int] = []

    def first_try_lies(request: Request, reply: Reply) -> Reply | None:
        if request.round == 0 and len(tries) < 3:
            tries.append(request.id)
            return replace(reply, num_samples=99) if request.client == "B" else None
        return reply

    federation(tmp_path / "retried", FedAvg(), Faulty(first_try_lies)).run()
    federation(tmp_path / "plain", FedAvg()).run()
    assert ledger_bytes(tmp_path / "retried") == ledger_bytes(tmp_path / "plain")


def test_a_client_that_is_absent_at_first_reports_its_facts_when_it_comes(tmp_path: Path) -> None:
    late = losing(lambda request: (request.client, request.round) == ("C", 0))
    rounds = federation(tmp_path, FedAvg(), late).run().rounds
    assert "C" not in rounds[0]["facts"] and rounds[1]["facts"] == {
        "C": {"samples": 10, "cases": 2}
    }


def with_cases(claimed: Callable[[Request], int]) -> Faulty:
    """Every score is a mean over cases; B's number of these is claimed."""

    def change(request: Request, reply: Reply) -> Reply:
        measured = {}
        for name, value in reply.measurements.items():
            cases = claimed(request) if request.client == "B" else 5
            measured[name] = Estimate(float(value), 0.1, cases)  # type: ignore[arg-type]
        return replace(reply, measurements=measured)

    return Faulty(change)


def test_the_cases_behind_a_distance_depend_on_the_model_and_are_no_fact() -> None:
    """MONAI's HausdorffDistance is NaN where a model's mask is empty: that case does not count."""
    facts = Facts()
    for cases in (5, 4):
        distance = Estimate(4.0, 1.0, cases)
        reply = Reply("A", None, 0, {"test_hd95": distance})
        replies = Replies([reply], [Measure("A", {}, ("test_hd95",))], ModelSpec(()))
        assert facts.fix(replies) == {}
        assert replies[0].measurements == {"test_hd95": distance}
    assert facts.known == {}


def test_the_cases_behind_a_score_are_a_fact_too(tmp_path: Path) -> None:
    """FedCI's values are means over all clients' cases."""
    plain = federation(tmp_path / "plain", FedCI(), with_cases(lambda request: 5)).run()
    later = with_cases(lambda request: 5 if request.round == 0 else 100_000)
    lied = federation(tmp_path / "lied", FedCI(), later).run()
    for record, honest in zip(lied.rounds, plain.rounds, strict=True):
        assert record["aggregation"] == honest["aggregation"]
        assert record["measurements"] == honest["measurements"]
    assert "n of score 100000 reported, 5 counts" in lied.rounds[1]["notes"]["B"]
    assert lied.rounds[0]["facts"]["B"]["n of score"] == 5
    end = lied.records[-1]
    assert "n of score 100000 reported, 5 counts" in end["notes"]["B"]
    assert end["scores"]["B"]["own"]["score"]["n"] == 5
