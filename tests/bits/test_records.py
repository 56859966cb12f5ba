# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a run records: whose model a score is of, the best model, sizes as facts, lost states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.least_squares_federation import (
    Faulty,
    federation,
    global_weights,
)

from monai_fairfl import Reply, Request
from monai_fairfl.messages import MEASUREMENTS
from monai_fairfl.strategies import (
    FedAvg,
)

Change = Callable[[Request, Reply], Any]


# --- the model that a score is of


def test_every_score_carries_the_round_of_the_model_that_it_is_of(tmp_path: Path) -> None:
    names = tuple(name for name in MEASUREMENTS if MEASUREMENTS[name].of == "received")
    evaluate = ("local_score", *names)
    history = federation(tmp_path, FedAvg(), evaluate=evaluate).run()
    assert "global_score" in names and "global_loss" in names
    for number, record in enumerate(history.rounds):
        assert record["of_round"] == {"local_score": number, **dict.fromkeys(names, number - 1)}
    assert history.records[-1]["of_round"] == {"score": 3}


# --- the best model: the mean over everybody


FIRST_SCORES = {"A": 0.9, "B": 0.8, "C": 0.1}
"""C is the hard one, and every round is worse than the previous one."""
OF_EVERYBODY = {"round": 0, "score": pytest.approx(0.55)}


def worsening(fault: Change) -> Faulty:
    def change(request: Request, reply: Reply) -> Any:
        score = FIRST_SCORES[request.client] - 0.05 * request.round
        return fault(request, replace(reply, measurements=dict.fromkeys(request.measure, score)))

    return Faulty(change)


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


def test_a_declared_number_counts_from_the_first_round_on(tmp_path: Path) -> None:
    run = federation(tmp_path, FedAvg(), samples={"B": 80}).run()
    for record in run.rounds:
        assert record["aggregation"] == pytest.approx({"A": 0.1, "B": 0.8, "C": 0.1})
        assert record["samples"]["B"] == 80 and "80" in record["notes"]["B"]
    assert run.rounds[0]["facts"]["B"] == {"cases": 2}
