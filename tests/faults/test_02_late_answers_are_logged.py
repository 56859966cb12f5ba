# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fault 2: an answer that comes after its exchange counts nowhere, and the log names its round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.driving import SPEC, vector
from helpers.least_squares_federation import Faulty, federation, losing

from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.server.exchange import Inbox
from monai_fairfl.strategies import FedAvg


def test_a_late_answer_is_ignored_and_the_log_names_client_and_rounds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    late: list[Reply] = []

    def delay(request: Request, reply: Reply) -> Sequence[Reply]:
        if (request.client, request.round) == ("B", 0):
            late.append(replace(reply, num_samples=500))
            return []
        if (request.client, request.round) == ("A", 1):
            return [*late, reply]
        return [reply]

    quiet = {"evaluate": (), "final": ()}
    history = federation(tmp_path / "late", FedAvg(), Faulty(delay), **quiet).run()
    lost = losing(lambda request: (request.client, request.round) == ("B", 0))
    assert history.rounds == federation(tmp_path / "lost", FedAvg(), lost, **quiet).run().rounds
    assert "client B does not count in this exchange: refused: answers request 1" in caplog.text
    assert "round 0, asked was request 1 of run run round 1" in caplog.text


def test_an_answer_to_a_closed_exchange_is_ignored_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    request = Request("B", "train", {"w": vector([0.0])}, id=1, run="run", round=3)
    inbox = Inbox([request], SPEC, request.weights)
    assert inbox.close().missing == {"B": "timeout"}
    inbox.arrived(Reply("B", {"w": vector([1.0])}, 10, id=1, run="run", round=3))
    assert "client B: its answer to request 1 of round 3 is ignored: it came after" in caplog.text
    assert not inbox.close()
