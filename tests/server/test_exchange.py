# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Exchanges that mix training and measuring: what is taken in, and what the guards see."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from monai_fairfl.guards import DEFAULT
from monai_fairfl.protocol.messages import Measure, Reply, Request, Train
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.server.exchange import Inbox
from monai_fairfl.server.guarding import guarded
from monai_fairfl.transports.in_process import InProcess

SPEC = ModelSpec(("w",), layers={"w": "w"})
MODEL = {"w": torch.zeros(2)}


def update(*values: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor(values)}


def mixed() -> list[Request]:
    asked = [
        Train("A", MODEL, ("global_loss",)),
        Measure("A", MODEL, ("score", "global_loss")),
        Train("B", MODEL, ("global_loss",)),
        Train("C", MODEL),
    ]
    return [Request(r.client, r.task, r.weights, r.measure, id=i) for i, r in enumerate(asked)]


@pytest.mark.parametrize("bad", [float("nan"), 1e30])
def test_guards_check_those_who_trained_beside_those_who_measured(bad: float) -> None:
    inbox = Inbox(mixed(), SPEC, MODEL)
    inbox.arrived(Reply("A", None, 0, {"score": 0.5}, id=1))
    for client, id, sent in (
        ("C", 3, update(0.0, 3.0)),
        ("B", 2, update(bad, 0.0)),
        ("A", 0, update(1.0, 0.0)),
    ):
        inbox.arrived(Reply(client, sent, 1, id=id))
    replies, verdicts = guarded(inbox.close(), DEFAULT)
    assert list(verdicts) == ["B"] and replies.missing["B"].startswith("quarantined")
    assert [(reply.client, reply.id) for reply in replies] == [("A", 0), ("A", 1), ("C", 3)]
    assert replies[1].measurements == {"score": 0.5}
    assert replies.matrix.rows.tolist() == [[1.0, 0.0], [0.0, 3.0]]


def test_who_was_to_measure_and_sends_an_update_is_refused_with_the_reason() -> None:
    reasons: list[str | None] = []
    inbox = Inbox(mixed(), SPEC, MODEL, lambda client, reason: reasons.append(reason))
    inbox.arrived(Reply("A", update(1.0, 0.0), 0, {"score": 0.5}, id=1))
    inbox.arrived(Reply("B", update(1.0, 0.0), 1, id=2))
    replies, verdicts = guarded(inbox.close(), DEFAULT)
    assert reasons == ["refused: measured, and sent an update that was not asked for", None]
    assert [reply.id for reply in replies] == [2] and not verdicts


@pytest.mark.parametrize("error", [None, "disk full"])
def test_a_refused_answer_is_the_first_one_and_counts(error: str | None) -> None:
    reasons: list[str | None] = []
    inbox = Inbox(mixed(), SPEC, MODEL, lambda client, reason: reasons.append(reason))
    inbox.arrived(Reply("B", {"v": torch.zeros(2)}, 1, id=2))
    inbox.arrived(Reply("B", update(1.0, 0.0), 1, id=2, error=error))
    replies = inbox.close()
    assert len(reasons) == 1 and str(reasons[0]).startswith("refused: update has other tensors")
    assert not replies and replies.missing["B"] == reasons[0]


def test_a_late_answer_to_another_rounds_request_does_not_stand_in_for_the_first_one() -> None:
    """Over a transport that hands it to the present exchange: ids begin at 0 in every round."""
    requests = [replace(request, run="run", round=1) for request in mixed()]
    for error in (None, "disk full"):
        inbox = Inbox(requests, SPEC, MODEL)
        inbox.arrived(Reply("B", update(9.0, 9.0), 1, id=2, run="run", round=0, error=error))
        inbox.arrived(Reply("B", update(1.0, 0.0), 1, id=2, run="run", round=1))
        inbox.arrived(Reply("B", update(9.0, 9.0), 1, id=2, run="run", round=0, error=error))
        [reply] = inbox.close()
        assert reply.update is not None and reply.update["w"].tolist() == [1.0, 0.0]


def test_measurements_that_are_not_finite_are_dropped_on_arrival_and_stay_on_record() -> None:
    inbox = Inbox(mixed(), SPEC, MODEL)
    inbox.arrived(Reply("A", None, 0, {"score": float("nan"), "global_loss": 0.5}, id=1))
    inbox.arrived(Reply("A", update(1.0, 0.0), 1, {"global_loss": float("inf")}, id=0))
    inbox.arrived(Reply("B", update(float("nan"), 0.0), 1, {"global_loss": 0.25}, id=2))
    arrived = inbox.close()
    assert [reply.measurements for reply in arrived] == [
        {},
        {"global_loss": 0.5},
        {"global_loss": 0.25},
    ]
    assert arrived.not_finite == {0: ["global_loss"], 1: ["score"]}

    replies, verdicts = guarded(arrived, DEFAULT)  # which builds the list again without B
    assert list(verdicts) == ["B"]
    assert replies.not_finite == {0: ["global_loss"], 1: ["score"]}


def test_an_update_and_a_buffer_are_copied_when_they_arrive() -> None:
    """A transport may read the next answer into the same arrays."""
    spec = ModelSpec(("w",), buffers=("mean",), layers={"w": "w", "mean": "w"})
    model = {"w": torch.zeros(2), "mean": torch.zeros(2)}
    requests = [Request(client, "train", model, id=id) for id, client in enumerate("AB")]
    inbox = Inbox(requests, spec, model)
    array, buffer = torch.empty(2), torch.empty(2)
    for id, value in enumerate((1.0, 3.0)):
        array.fill_(value)
        buffer.fill_(value)
        inbox.arrived(Reply("AB"[id], {"w": array}, 1, buffers={"mean": buffer}, id=id))
    average = inbox.close().average()
    assert average["w"].tolist() == average["mean"].tolist() == [2.0, 2.0]


def zeros() -> tuple[dict[str, torch.Tensor], ModelSpec]:
    """The initial model of 1013 numbers."""
    return {"w": torch.zeros(1013)}, SPEC


class Static:
    """A client that sends the same tensors in every round."""

    def __init__(self, update: torch.Tensor):
        self.update = {"w": update}

    def answer(self, request: Request) -> Reply:
        echo = {"id": request.id, "run": request.run, "round": request.round}
        sent = self.update if request.task == "train" else None
        return Reply(request.client, sent, 10, {"score": 0.5}, **echo)  # type: ignore[arg-type]


def test_a_client_that_there_is_not_is_named_so_and_not_as_one_that_failed() -> None:
    replies: list[Reply] = []
    InProcess({"elm": partial(Static, {})}).exchange([Measure("oak", {}, ())], replies.append)
    assert replies[0].error == "ConfigError: no such client; there are elm"
