# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Clients in real worker processes: the same replies, and what happens when one ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import warm_python, worker_clients
from helpers.checkout import CHECKOUT, wait_for
from helpers.driving import vector
from helpers.faulty_transports import FaultyTransport
from helpers.least_squares_federation import clients as honest
from helpers.least_squares_federation import federation
from helpers.worker_clients import Acting, Echo, Reporting, all_end, is_alive

from monai_fairfl import Measure, Reply, Request, Train, read_ledger
from monai_fairfl.transports.workers import WorkerClients

MODEL = {"w": vector([1.0, 2.0])}


Workers = Callable[..., WorkerClients]


@pytest.fixture
def workers_of() -> Iterator[Workers]:
    """Makes clients, dealt out to workers: A to 0, B to 1, C to 0, ..."""
    made = []

    def make(makers: Mapping[str, Any], number: int = 2) -> WorkerClients:
        places = {name: place % number for place, name in enumerate(makers)}
        made.append(WorkerClients(makers, places))
        return made[-1]

    yield make
    for transport in made:
        transport.close()


def answers(transport: WorkerClients, requests: list[Request]) -> dict[str, Reply]:
    """Client -> its reply."""
    replies = list(transport.ask(requests))
    assert len(replies) == len(requests)
    return {reply.client: reply for reply in replies}


def measured(transport: WorkerClients) -> dict[str, Any]:
    """Client -> what it measures."""
    found = answers(transport, [Measure(name, MODEL) for name in transport.clients])
    assert {reply.error for reply in found.values()} == {None}
    return {name: reply.measurements for name, reply in found.items()}


def with_one(
    name: str, action: Callable[[], object], number: int, folder: Path
) -> dict[str, Callable[[], Any]]:
    """Honest clients, of which one acts in a round."""
    return {**honest(), name: partial(Acting, name, action, number, folder / "done")}


# --- the same replies


def test_models_of_every_kind_and_size_arrive_as_they_are(workers_of: Workers) -> None:
    clients = workers_of({"A": Echo, "B": Echo, "C": Echo})
    odd = {
        "half": torch.randn(7).to(torch.bfloat16),
        "turned": torch.randn(4, 6).t(),
        "empty": torch.empty(0, 3),
        "learned": torch.nn.Parameter(torch.randn(2)),
        "last": vector([float("nan"), float("inf")]),
    }
    models: list[dict[str, torch.Tensor]] = [odd, {"w": torch.arange(100_000)}, {}]
    # Each client has another one in each exchange.
    sent = [dict(zip("ABC", models[turn:] + models[:turn], strict=True)) for turn in range(3)]
    received = [answers(clients, list(map(Train, each, each.values()))) for each in sent]
    # Looked at last: what one reply brought stays when the next one comes.
    for each, found in zip(sent, received, strict=True):
        for name, model in each.items():
            for tensors in (found[name].update, found[name].buffers):
                torch.testing.assert_close(tensors, model, rtol=0, atol=0, equal_nan=True)


def test_a_client_lives_in_one_worker_until_its_own_transport_is_closed(
    workers_of: Workers,
) -> None:
    one, other = (workers_of(dict.fromkeys("AB", Reporting)) for _ in range(2))
    first, second = measured(one), measured(one)
    assert first["A"]["process"] != first["B"]["process"]
    assert second["A"]["process"] == first["A"]["process"]
    assert second["A"]["answered"] == 2
    assert measured(other)["A"]["answered"] == 1
    other.close()
    third = measured(one)
    assert third["A"]["answered"] == 3
    one.close()
    assert all_end([int(found["process"]) for found in third.values()], seconds=0)
    open_files = sorted(Path("/proc/self/fd").iterdir())
    assert measured(one)["A"]["answered"] == 1
    one.close()
    assert sorted(Path("/proc/self/fd").iterdir()) == open_files


def test_what_cannot_be_sent_is_refused_with_the_clients_name(
    workers_of: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "only_here.py").write_text("class Client: pass\n")
    import only_here

    (tmp_path / "only_here.py").unlink()
    makers = {"A": worker_clients.Unsendable, "B": only_here.Client, "C": Echo}
    found = answers(workers_of(makers), [Train(name, MODEL) for name in makers])
    assert "pickle" in str(found["A"].error)
    assert "only_here" in str(found["B"].error)
    assert found["C"].error is None


# --- a worker that ends


def test_the_client_of_a_worker_that_ends_is_missing_in_that_round_alone(
    workers_of: Workers, tmp_path: Path
) -> None:
    # A and C live in the same worker, and C is asked after A.
    transport = workers_of(with_one("A", worker_clients.end_by_kill, 1, tmp_path))
    federation(tmp_path, transport=transport).run()

    def lose(request: Request, reply: Reply) -> Reply | None:
        return None if (request.client, request.round) == ("A", 1) else reply

    federation(tmp_path / "lost", transport=FaultyTransport(honest(), lose)).run()
    rounds = read_ledger(tmp_path / "run" / "ledger.jsonl")[1:-1]
    expected = read_ledger(tmp_path / "lost" / "run" / "ledger.jsonl")[1:-1]
    assert [list(record["missing"]) for record in rounds] == [[], ["A"], [], []]
    assert "SIGKILL" in rounds[1]["missing"]["A"]
    for record, one in zip(rounds, expected, strict=True):
        assert record["model"] == one["model"]


# --- no process is left


def test_an_interrupted_exchange_leaves_no_answer_for_the_next(
    workers_of: Workers, tmp_path: Path
) -> None:
    clients = workers_of(with_one("A", partial(time.sleep, 600), 0, tmp_path))

    # A sleeps when B's reply comes.
    with pytest.raises(KeyboardInterrupt):
        for _ in clients.ask([Request(name, "train", MODEL, round=0, id=7) for name in "AB"]):
            raise KeyboardInterrupt
    found = answers(clients, [Request(name, "train", MODEL, round=1, id=8) for name in "AB"])
    assert [found["A"].id, found["B"].id] == [8, 8]


SCRIPT = """
import sys
from functools import partial
from pathlib import Path
from helpers.worker_clients import Endless
from monai_fairfl import Train
from monai_fairfl.transports.workers import WorkerClients

with open(sys.argv[1], "a") as begun:
    begun.write("begun ")
makers = dict.fromkeys("AB", partial(Endless, Path(sys.argv[2])))
clients = WorkerClients(makers, {"A": 0, "B": 1})
list(clients.ask([Train(name, {}) for name in "AB"]))
"""


def test_no_worker_and_no_process_of_a_worker_outlives_a_script_that_is_killed(
    tmp_path: Path,
) -> None:
    begun, file = tmp_path / "begun", tmp_path / "processes"
    (tmp_path / "script.py").write_text(SCRIPT)
    path = os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "tests")])
    words = ["-m", "script", str(begun), str(file)]
    script = warm_python.start(words, tmp_path, shared=True, PYTHONPATH=path)

    def processes() -> list[int]:
        return [int(word) for word in file.read_text().split()] if file.exists() else []

    wait_for("the work of both", lambda: len(processes()) == 4, 120)
    script.kill()
    ended = all_end(processes())
    for process in processes():
        if is_alive(process):
            os.kill(process, signal.SIGKILL)
    assert ended
    # Its workers do not run it again; with multiprocessing it would need a guard.
    assert begun.read_text() == "begun "
