# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Clients in real worker processes: the same replies, and what happens when one ends."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.checkout import CHECKOUT
from helpers.driving import vector
from helpers.least_squares_federation import federation, ledger_bytes
from helpers.worker_clients import (
    TARGETS,
    Acting,
    Deterministic,
    Echo,
    Reporting,
    Talking,
    Unsendable,
    all_end,
    honest,
)

from monai_fairfl.errors import ConfigError
from monai_fairfl.protocol.messages import Measure, Reply, Request, Train
from monai_fairfl.protocol.values import Weights
from monai_fairfl.run_folder.ledger import read_ledger
from monai_fairfl.transports.in_process import InProcess
from monai_fairfl.transports.workers import WorkerClients, WorkerPool, dealt_out

pytestmark = pytest.mark.slow

MODEL = {"w": vector([1.0, 2.0])}


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    """Three workers for all tests of this file."""
    with WorkerPool(3) as made:
        yield made


def workers_of(pool: WorkerPool, makers: Mapping[str, Any], number: int = 2) -> WorkerClients:
    """The clients, dealt out to the first workers of the pool: A to 0, B to 1, C to 0, ..."""
    return WorkerClients(pool, makers, dealt_out(dict.fromkeys(makers, 1), number))


def answers(transport: Any, requests: list[Request]) -> dict[str, Reply]:
    """client -> its reply."""
    replies: list[Reply] = []
    transport.exchange(requests, replies.append)
    assert len({reply.client for reply in replies}) == len(replies) == len(requests)
    return {reply.client: reply for reply in replies}


def measured(transport: Any, names: str, weights: Weights = MODEL) -> dict[str, Any]:
    """client -> what it measures."""
    replies = answers(transport, [Measure(name, weights) for name in names])
    return {name: reply.measurements for name, reply in replies.items()}


def with_one(name: str, action: str, number: int, folder: Path) -> dict[str, Callable[[], Any]]:
    """Honest clients, of which one acts in a round."""
    makers: dict[str, Callable[[], Any]] = dict(honest())
    makers[name] = partial(Acting, TARGETS[name], action, number, folder / f"{name}-{action}")
    return makers


# --- the same replies


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_ledger_is_that_of_one_process_whatever_the_number_of_workers(
    number: int, pool: WorkerPool, tmp_path: Path
) -> None:
    federation(tmp_path / "one", transport=InProcess(honest())).run()
    federation(tmp_path / "many", transport=workers_of(pool, honest(), number)).run()
    assert ledger_bytes(tmp_path / "one") == ledger_bytes(tmp_path / "many")


@pytest.mark.long
def test_replies_that_come_in_another_order_give_the_same_ledger(
    pool: WorkerPool, tmp_path: Path
) -> None:
    federation(tmp_path / "one", transport=InProcess(honest())).run()
    slow = workers_of(pool, with_one("A", "sleep", 1, tmp_path))
    order = []
    exchange = slow.exchange

    def noted(requests: Any, arrived: Any, timeout: Any = None) -> None:
        def note(reply: Reply) -> None:
            order.append((reply.round, reply.client))
            arrived(reply)

        exchange(requests, note, timeout)

    slow.exchange = noted  # type: ignore[method-assign]
    federation(tmp_path / "slow", transport=slow).run()
    assert order.index((1, "B")) < order.index((1, "A"))
    assert ledger_bytes(tmp_path / "one") == ledger_bytes(tmp_path / "slow")


def test_tensors_of_every_kind_arrive_as_they_are(pool: WorkerPool) -> None:
    model = {
        "float": torch.randn(3, 5),
        "half": torch.randn(7).to(torch.bfloat16),
        "steps": torch.tensor(2**40 + 1),
        "mask": torch.tensor([True, False, True]),
        "turned": torch.randn(4, 6).t(),
        "empty": torch.empty(0, 3),
        "learned": torch.nn.Parameter(torch.randn(2)),
        "last": vector([float("nan"), float("inf")]),
    }
    reply = answers(workers_of(pool, {"A": Echo}), [Train("A", model)])["A"]
    for received in (reply.update, reply.buffers):
        assert received is not None
        assert list(received) == list(model)
        for name, tensor in model.items():
            assert received[name].dtype == tensor.dtype
            assert received[name].shape == tensor.shape
            assert torch.equal(received[name].nan_to_num(5), tensor.nan_to_num(5))


def test_a_longer_model_comes_after_a_shorter_one(pool: WorkerPool) -> None:
    clients = workers_of(pool, {"A": Echo, "B": Echo, "C": Echo})
    for size in (0, 10, 100_000, 1_000, 1_000_000):
        model = {"w": torch.arange(size)}
        for reply in answers(clients, [Train(name, model) for name in "ABC"]).values():
            assert reply.update is not None
            assert torch.equal(reply.update["w"], model["w"])


def test_what_a_reply_brought_stays_when_the_next_one_comes(pool: WorkerPool) -> None:
    clients = workers_of(pool, {"A": Echo})
    first = answers(clients, [Train("A", {"w": vector([1.0])})])["A"]
    answers(clients, [Train("A", {"w": vector([2.0])})])
    assert first.update == {"w": vector([1.0])}


def test_the_clients_of_a_worker_share_one_copy_of_the_weights(pool: WorkerPool) -> None:
    clients = workers_of(pool, dict.fromkeys("ABC", Reporting))
    found = measured(clients, "ABC", {"w": torch.randn(1000)})
    assert found["A"]["address"] == found["C"]["address"]


def test_numbers_that_the_server_changed_in_place_are_sent_again(pool: WorkerPool) -> None:
    clients = workers_of(pool, {"A": Echo})
    model = {"w": vector([1.0])}
    answers(clients, [Train("A", model)])
    model["w"].add_(1)
    reply = answers(clients, [Train("A", model)])["A"]
    assert reply.update == {"w": vector([2.0])}


def test_other_weights_for_the_next_client_of_a_worker_are_sent(pool: WorkerPool) -> None:
    clients = workers_of(pool, {"A": Echo, "B": Echo}, number=1)
    requests = [Train(name, {"w": vector([value])}) for name, value in (("A", 1.0), ("B", 2.0))]
    found = answers(clients, requests)
    assert found["A"].update == {"w": vector([1.0])}
    assert found["B"].update == {"w": vector([2.0])}


def test_a_client_lives_in_one_worker_until_its_transport_is_closed(
    pool: WorkerPool, tmp_path: Path
) -> None:
    log = tmp_path / "let go"
    clients = workers_of(pool, dict.fromkeys("ABC", partial(Reporting, log)))
    first = measured(clients, "ABC")
    second = measured(clients, "ABC")
    places = {name: found["process"] for name, found in first.items()}
    assert places["A"] == places["C"] != places["B"]
    assert {name: found["process"] for name, found in second.items()} == places
    assert [found["answered"] for found in second.values()] == [2, 2, 2]
    clients.close()
    let_go = sorted(map(int, log.read_text().split()))
    assert let_go == sorted(int(place) for place in places.values())

    again = measured(clients, "ABC")
    assert {name: found["process"] for name, found in again.items()} == places
    assert [found["answered"] for found in again.values()] == [1, 1, 1]


def test_two_transports_of_a_pool_have_clients_of_their_own(pool: WorkerPool) -> None:
    one = workers_of(pool, {"A": Reporting})
    other = workers_of(pool, {"A": Reporting})
    measured(one, "A")
    assert measured(other, "A")["A"]["answered"] == 1
    other.close()
    assert measured(one, "A")["A"]["answered"] == 2


def test_a_client_computes_with_the_settings_of_this_process(pool: WorkerPool) -> None:
    clients = workers_of(pool, {"A": Reporting})
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        torch.use_deterministic_algorithms(True)
        found = measured(clients, "A")["A"]
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(False)
    assert (found["threads"], found["deterministic"]) == (3, 1)
    found = measured(clients, "A")["A"]
    assert (found["threads"], found["deterministic"]) == (threads, 0)


@pytest.mark.long
def test_what_a_client_sets_when_it_is_built_stays_in_later_rounds(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each request brings the settings of this process, where another test may have set it.
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    clients = workers_of(pool, {"A": Deterministic})
    for _ in range(2):
        found = measured(clients, "A")["A"]
        assert found["cudnn_deterministic"] == 1


def test_a_worker_imports_the_modules_of_its_pool_and_does_without_those_that_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A method of one's own may declare a measurement where it is defined.
    (tmp_path / "own_method.py").write_text(
        "from helpers.worker_clients import DECLARED\nDECLARED.append('own_measurement')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with WorkerPool(1, ["not_there", "own_method"]) as pool:
        clients = workers_of(pool, {"A": Reporting}, number=1)
        assert measured(clients, "A")["A"]["declared"] == 1


# --- errors, logs and warnings


def test_a_clients_error_has_the_words_that_it_has_in_one_process(
    pool: WorkerPool, tmp_path: Path
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    federation(here, transport=InProcess(with_one("B", "raise", 1, here))).run()
    federation(there, transport=workers_of(pool, with_one("B", "raise", 1, there))).run()
    assert ledger_bytes(here) == ledger_bytes(there)
    missing = read_ledger(there / "run" / "ledger.jsonl")[2]["missing"]
    reason = "ConfigError: slices must be 1 or more, got 0; because of ValueError: range"
    assert missing == {"B": f"error: {reason}"}


def test_a_reply_that_cannot_be_sent_is_an_error_of_its_client(pool: WorkerPool) -> None:
    found = answers(
        workers_of(pool, {"A": Unsendable, "B": Echo}), [Train(name, MODEL) for name in "AB"]
    )
    assert "pickle" in str(found["A"].error)
    assert found["B"].error is None


def test_what_cannot_be_made_elsewhere_is_refused_by_the_clients_name(pool: WorkerPool) -> None:
    with pytest.raises(ConfigError, match="client 'A' cannot be made in a worker .* jobs=1"):
        workers_of(pool, {"A": lambda: Echo()})


def test_a_client_whose_module_is_not_there_is_missing_with_the_reason(
    pool: WorkerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("class Client: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_here  # type: ignore[import-not-found]

    found = answers(
        workers_of(pool, {"A": only_here.Client, "B": Echo}), [Train(name, MODEL) for name in "AB"]
    )
    assert found["A"].error == "ModuleNotFoundError: No module named 'only_here'"
    assert found["B"].error is None


def test_logs_and_warnings_of_clients_are_shown_by_this_process(
    pool: WorkerPool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    makers = with_one("A", "log", 0, tmp_path)
    makers.update({"B": with_one("B", "log", 0, tmp_path)["B"]})
    requests = [Request(name, "train", MODEL, round=0) for name in "AB"]
    caplog.set_level(logging.INFO, "monai_fairfl")
    with pytest.warns(UserWarning, match="an odd image") as warned:
        answers(workers_of(pool, makers), requests)
    records = [record for record in caplog.records if record.name == "monai_fairfl.tests"]
    assert [record.getMessage() for record in records] == ["of the client"] * 2
    assert {record.site for record in records} == {"elm"}  # type: ignore[attr-defined]
    assert Path(warned[0].filename).name == "worker_clients.py"


def test_threads_and_forked_processes_of_a_client_do_not_mix_their_messages(
    pool: WorkerPool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "monai_fairfl")
    found = measured(workers_of(pool, {"A": Talking}), "A")
    assert found == {"A": {"score": 1.0}}
    records = [record for record in caplog.records if record.name == "monai_fairfl.tests"]
    assert len(records) == 800
    assert not [record for record in records if "forked" in record.getMessage()]


@pytest.mark.long
def test_an_interrupted_exchange_leaves_no_answer_for_the_next(
    pool: WorkerPool, tmp_path: Path
) -> None:
    clients = workers_of(pool, with_one("A", "sleep", 0, tmp_path))

    def interrupted(reply: Reply) -> None:
        raise KeyboardInterrupt

    # A sleeps when B's reply comes.
    requests = [Request(name, "train", MODEL, round=0, id=7) for name in "AB"]
    with pytest.raises(KeyboardInterrupt):
        clients.exchange(requests, interrupted)
    found = answers(clients, [Request(name, "train", MODEL, round=1, id=8) for name in "AB"])
    assert {name: reply.id for name, reply in found.items()} == {"A": 8, "B": 8}


# --- a worker that ends


@pytest.mark.long
@pytest.mark.parametrize(
    ("action", "how"),
    [
        ("kill", "was ended by the signal SIGKILL (for want of memory? fewer jobs need less)"),
        ("exit", "ended with status 3; what it printed says why"),
    ],
)
def test_the_client_of_a_worker_that_ends_is_missing_in_that_round_alone(
    action: str, how: str, pool: WorkerPool, tmp_path: Path
) -> None:
    # A and C live in the same worker, and C is asked after A.
    transport = workers_of(pool, with_one("A", action, 1, tmp_path))
    federation(tmp_path, transport=transport).run()
    rounds = read_ledger(tmp_path / "run" / "ledger.jsonl")[1:-1]
    reason = f"error: its worker process {how}; another one answers its next request"
    assert [record["missing"] for record in rounds] == [{}, {"A": reason}, {}, {}]

    # All numbers are those of a federation in one process that loses A's answer.
    others = InProcess(honest())
    exchange = others.exchange

    def losing(requests: Any, arrived: Any, timeout: Any = None) -> None:
        def pass_on(reply: Reply) -> None:
            if (reply.client, reply.round) != ("A", 1):
                arrived(reply)

        exchange(requests, pass_on, timeout)

    others.exchange = losing  # type: ignore[method-assign]
    federation(tmp_path / "lost", transport=others).run()
    expected = read_ledger(tmp_path / "lost" / "run" / "ledger.jsonl")[1:-1]
    for record, one in zip(rounds, expected, strict=True):
        assert record["model"] == one["model"]
        assert record["aggregation"] == one["aggregation"]


@pytest.mark.long
def test_a_worker_that_ends_between_two_exchanges_costs_no_client_anything(
    pool: WorkerPool,
) -> None:
    clients = workers_of(pool, dict.fromkeys("ABC", Reporting))
    before = measured(clients, "ABC")
    process = pool.worker(0).process
    process.kill()
    process.wait()
    after = measured(clients, "ABC")
    assert before["B"]["process"] == after["B"]["process"]
    assert before["A"]["process"] != after["A"]["process"] == after["C"]["process"]


@pytest.mark.long
def test_where_no_worker_can_run_every_client_is_missing_and_later_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "python"
    starts = tmp_path / "starts"
    broken.write_text(f"#!/bin/sh\necho start >> {starts}\nexit 5\n")
    broken.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(broken))
        with WorkerPool(1) as pool:
            clients = workers_of(pool, dict.fromkeys("ABC", Reporting), number=1)
            found = answers(clients, [Measure(name, MODEL) for name in "ABC"])
            for reply in found.values():
                assert "its worker process ended with status 5" in str(reply.error)
            # With the pool, and where that was noticed in time once more; not for every client.
            assert len(starts.read_text().split()) <= 2
            patch.undo()
            assert set(measured(clients, "ABC")) == {"A", "B", "C"}


# --- no process is left

FEDERATION = """
import os, signal, sys, threading, time
from functools import partial
from pathlib import Path
from helpers.driving import vector
from helpers.worker_clients import Endless
from monai_fairfl.protocol.messages import Train
from monai_fairfl.transports.workers import WorkerClients, WorkerPool

how, file = sys.argv[1], Path(sys.argv[2])
# A shell starts what runs in the background with Ctrl-C ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

def end_when_both_work():
    while not file.exists() or len(file.read_text().split()) < 4:
        time.sleep(0.05)
    os.kill(os.getpid(), signal.Signals[how])

threading.Thread(target=end_when_both_work, daemon=True).start()
with WorkerPool(2) as pool:
    makers = dict.fromkeys("AB", partial(Endless, file))
    clients = WorkerClients(pool, makers, {"A": 0, "B": 1})
    clients.exchange([Train(name, {"w": vector([0.0])}) for name in "AB"], print)
"""


@pytest.mark.long
@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_no_worker_and_no_process_of_a_worker_outlives_the_federations(
    how: str, tmp_path: Path
) -> None:
    script, file = tmp_path / "script.py", tmp_path / "processes"
    script.write_text(FEDERATION)
    path = os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "tests")])
    with (tmp_path / "log").open("w") as log:
        status = subprocess.call(
            [sys.executable, str(script), how, str(file)],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    assert status == -signal.Signals[how], log.name
    processes = [int(word) for word in file.read_text().split()]
    assert len(processes) == 4
    ended = all_end(processes)
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    assert ended


@pytest.mark.long
def test_a_pool_that_is_left_has_no_process(tmp_path: Path) -> None:
    with WorkerPool(2) as pool:
        clients = workers_of(pool, dict.fromkeys("AB", Reporting))
        processes = [int(found["process"]) for found in measured(clients, "AB").values()]
    assert all_end(processes, seconds=0)
    clients.close()
    with pytest.raises(RuntimeError, match="the pool of worker processes is closed"):
        measured(clients, "AB")


UNGUARDED = """
import sys
from functools import partial
from helpers.driving import LeastSquares, vector
from monai_fairfl.protocol.messages import Train
from monai_fairfl.transports.workers import WorkerClients, WorkerPool

with open(sys.argv[1], "a") as file:
    file.write("begun\\n")
with WorkerPool(1) as pool:
    clients = WorkerClients(pool, {"A": partial(LeastSquares, [1.0])}, {"A": 0})
    clients.exchange([Train("A", {"w": vector([0.0])})], lambda reply: print(reply.error))
"""


@pytest.mark.long
def test_a_script_is_not_run_again_by_its_workers(tmp_path: Path) -> None:
    # With multiprocessing it would need an "if __name__ == '__main__'".
    script, begun = tmp_path / "script.py", tmp_path / "begun"
    script.write_text(UNGUARDED)
    path = os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "tests")])
    done = subprocess.run(
        [sys.executable, str(script), str(begun)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr
    assert begun.read_text() == "begun\n"


def test_ctrl_c_while_workers_are_ended_leaves_none_and_no_traceback() -> None:
    class Interrupted(WorkerPool):
        def end(self, number: int) -> None:
            signal.raise_signal(signal.SIGINT)
            super().end(number)

    before = signal.getsignal(signal.SIGINT)
    with Interrupted(2) as pool:
        processes = [pool.worker(number).process for number in range(2)]
    assert all(process.poll() is not None for process in processes)
    assert signal.getsignal(signal.SIGINT) is before
