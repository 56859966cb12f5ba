# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Whole pieces of work, dealt out to real worker processes, and what happens when one ends."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers import works
from helpers.checkout import CHECKOUT
from helpers.least_squares_federation import ledger_bytes
from helpers.worker_clients import all_end, is_alive
from hypothesis import given
from hypothesis import strategies as st

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.transports.workers import Failed, Turn, Work, WorkerPool, can_be_sent, carry_out
from monai_fairfl.transports.workers.scheduler import shares

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    """Two workers for all tests of this file."""
    with WorkerPool(2, ["helpers.works"]) as made:
        yield made


def results_of(todo: dict[str, Callable[[Turn], Any]], **settings: Any) -> dict[str, Any]:
    """Title -> what the piece of work returned."""
    found: dict[str, Any] = {}
    carry_out([Work(title, do) for title, do in todo.items()], ended=found.__setitem__, **settings)
    return found


# --- who gets how many processes


@given(st.integers(1, 40), st.integers(1, 17), st.integers(1, 6))
def test_every_piece_gets_a_process_and_no_process_lies_idle_that_a_piece_could_use(
    number: int, processes: int, most: int
) -> None:
    dealt = shares(number, processes, most)
    assert len(dealt) == number
    assert all(1 <= share <= max(1, most) for share in dealt)
    # All but the last, which are fewer than the processes, have one each, all processes at work.
    last = dealt[number - number % processes :]
    assert dealt[: number - len(last)] == [1] * (number - len(last))
    if last:
        assert sum(last) <= processes
        assert sum(last) == min(processes, most * len(last)) or max(last) == most


def test_as_many_pieces_as_processes_are_done_at_a_time_each_in_one_of_its_own(
    pool: WorkerPool, tmp_path: Path
) -> None:
    # Each of the two ends only when both have begun.
    todo = {name: partial(works.meet, tmp_path, name, 2) for name in "ab"}
    found = results_of(todo, pool=pool, most=3)
    processes = {each["process"] for each in found.values()}
    assert len(processes) == 2 and os.getpid() not in processes
    assert {(each["jobs"], each["has_pool"]) for each in found.values()} == {(1, False)}


def test_what_is_left_of_the_processes_is_given_to_the_last_piece_which_is_done_here(
    pool: WorkerPool,
) -> None:
    found = results_of(dict.fromkeys("abc", works.seen), pool=pool, most=3)
    assert [found[name]["jobs"] for name in "abc"] == [1, 1, 2]
    assert found["c"]["process"] == os.getpid()
    assert found["c"]["has_pool"]
    assert found["a"]["process"] != os.getpid() != found["b"]["process"]


@pytest.mark.long
def test_pieces_that_get_several_processes_start_their_own(tmp_path: Path) -> None:
    with WorkerPool(4, at_once=2) as made:
        todo = {name: partial(works.meet, tmp_path, name, 2) for name in "ab"}
        found = results_of(todo, pool=made, most=2, device_of=lambda number: f"cuda:{number}")
        # The others would only take memory.
        assert len(made.running()) == 2
    assert [found[name]["jobs"] for name in "ab"] == [2, 2]
    assert [found[name]["devices"] for name in "ab"] == [["cuda:0", "cuda:1"], ["cuda:2", "cuda:3"]]
    assert os.getpid() not in {each["process"] for each in found.values()}


def test_without_a_pool_or_where_they_cannot_be_sent_all_are_done_here_one_after_the_other(
    pool: WorkerPool,
) -> None:
    order: list[str] = []

    def here(title: str, turn: Turn) -> dict[str, Any]:
        order.append(title)
        return works.seen(turn)

    todo = {name: partial(here, name) for name in "cab"}
    assert not can_be_sent(todo["a"])
    for settings, jobs in (({}, 1), ({"pool": pool, "together": False}, 2)):
        order.clear()
        found = results_of(todo, **settings)  # type: ignore[arg-type]
        assert order == ["c", "a", "b"]
        assert {each["process"] for each in found.values()} == {os.getpid()}
        assert {each["jobs"] for each in found.values()} == {jobs}


# --- federations


def whole(folder: Path, kind: str = "usual") -> bytes:
    """The ledger of a federation that nothing interrupted."""
    folder.mkdir()
    (folder / "killed").touch()
    works.train(folder, kind, Turn())
    return ledger_bytes(folder)


def test_a_federation_elsewhere_is_that_of_this_process_and_its_rounds_are_reported(
    pool: WorkerPool, tmp_path: Path
) -> None:
    rounds: dict[str, list[int]] = {"a": [], "b": []}
    todo = {name: partial(works.train, tmp_path / name, "usual") for name in rounds}
    found = results_of(
        todo, pool=pool, rounds_done=lambda title, number: rounds[title].append(number)
    )
    assert rounds == {"a": [0, 1, 2, 3, 4], "b": [0, 1, 2, 3, 4]}
    assert ledger_bytes(tmp_path / "a") == ledger_bytes(tmp_path / "b") == whole(tmp_path / "whole")
    assert found["a"].finished
    assert found["a"].records == works.train(tmp_path / "again", "usual", Turn()).records


@pytest.mark.long
def test_a_federation_whose_process_is_killed_goes_on_in_another_one_to_the_same_ledger(
    pool: WorkerPool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    todo = {name: partial(works.train, tmp_path / name, "killing") for name in "ab"}
    with caplog.at_level(logging.WARNING):
        found = results_of(todo, pool=pool)
    assert [found[name].finished for name in "ab"] == [True, True]
    expected = whole(tmp_path / "whole", "killing")
    assert ledger_bytes(tmp_path / "a") == ledger_bytes(tmp_path / "b") == expected
    assert "a: its worker process was ended by the signal SIGKILL" in caplog.text
    assert "another one goes on with what it left" in caplog.text


@pytest.mark.long
def test_a_piece_whose_process_always_ends_fails_after_two_and_the_others_go_on(
    pool: WorkerPool,
) -> None:
    found = results_of({"a": works.end_always, "b": works.seen}, pool=pool)
    assert isinstance(found["a"], Failed)
    assert "was ended by the signal SIGKILL" in found["a"].reason
    assert found["b"]["again"] is False


@pytest.mark.long
def test_where_no_process_can_run_every_piece_fails_and_none_is_tried_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 5\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with WorkerPool(2) as made:
        found = results_of(dict.fromkeys("abcd", works.seen), pool=made)
    assert all("ended with status 5" in found[name].reason for name in "abcd")


# --- errors


@pytest.mark.long
def test_an_error_ends_all_pieces_and_leaves_the_pool_for_others(
    pool: WorkerPool, tmp_path: Path
) -> None:
    file = tmp_path / "endless"
    todo = {"endless": partial(works.endless, file), "error": works.raise_error}
    with pytest.raises(ConfigError, match="this concerns all"):
        results_of(todo, pool=pool)
    if file.exists():
        assert all_end([int(file.read_text())])
    assert set(results_of(dict.fromkeys("ab", works.seen), pool=pool)) == {"a", "b"}


@pytest.mark.parametrize(
    ("do", "words"),
    [
        (works.raise_unsendable, "UnsendableError: 1 and 2"),
        (works.unsendable_result, "cannot pickle"),
    ],
)
def test_what_cannot_be_sent_back_is_an_error_in_words(
    do: Callable[[Turn], Any], words: str, pool: WorkerPool
) -> None:
    with pytest.raises((FederationError, TypeError), match=words):
        results_of({"a": do, "b": works.seen}, pool=pool)


# --- Ctrl-C


def signalled(number: signal.Signals, folder: Path, names: str) -> threading.Thread:
    """A thread that sends this process a signal once federations wait in their first round.

    It lets them go on when they have been asked to stop, which takes half a second at most.
    """

    def send() -> None:
        deadline = time.monotonic() + 60
        # A ledger begins before the first round does: a signal between them undoes that round.
        begun = [folder / name / "in a round" for name in names]
        while not all(file.exists() for file in begun) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), number)
        time.sleep(3)
        (folder / "go").touch()

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_all_federations_end_after_their_round_and_begins_no_other(
    number: signal.Signals, pool: WorkerPool, tmp_path: Path
) -> None:
    # A worker that was asked to stop does nothing more: these are of this test alone.
    with WorkerPool(2) as made:
        thread = signalled(number, tmp_path, "ab")
        todo = {name: partial(works.train, tmp_path / name, "waiting") for name in "abc"}
        found: dict[str, Any] = {}
        listed = [Work(title, do) for title, do in todo.items()]
        assert carry_out(listed, made, ended=found.__setitem__)
        thread.join()
    assert {name: len(history.rounds) for name, history in found.items()} == {"a": 1, "b": 1}
    assert not (tmp_path / "c").exists()

    for name in "ab":
        works.train(tmp_path / name, "waiting", Turn(again=True))
        assert ledger_bytes(tmp_path / name) == whole(tmp_path / f"whole {name}", "waiting")


def test_a_signal_while_a_piece_is_done_here_begins_no_other(tmp_path: Path) -> None:
    thread = signalled(signal.SIGINT, tmp_path, "a")
    todo = {name: partial(works.train, tmp_path / name, "waiting") for name in "ab"}
    found: dict[str, Any] = {}
    assert carry_out([Work(title, do) for title, do in todo.items()], ended=found.__setitem__)
    thread.join()
    assert [len(history.rounds) for history in found.values()] == [1]
    assert not (tmp_path / "b").exists()


ENDING = """
import sys
from functools import partial
from pathlib import Path
from helpers import works
from monai_fairfl.transports.workers import Work, WorkerPool, carry_out

with WorkerPool(2) as pool:
    files = [Path(word) for word in sys.argv[1:]]
    carry_out([Work(file.name, partial(works.endless, file)) for file in files], pool)
"""


@pytest.mark.long
def test_no_process_outlives_this_one_when_it_is_killed(tmp_path: Path) -> None:
    script, files = tmp_path / "script.py", [tmp_path / "a", tmp_path / "b"]
    script.write_text(ENDING)
    path = os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "tests")])
    process = subprocess.Popen(
        [sys.executable, str(script), *map(str, files)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 120
    while not all(file.exists() and file.read_text() for file in files):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    workers = [int(file.read_text()) for file in files]
    assert all(is_alive(worker) for worker in workers)
    process.kill()
    process.wait()
    assert all_end(workers)


# --- what can be sent

SCRIPT = """
from functools import partial
from monai_fairfl.strategies import FedAvg
from monai_fairfl.transports.workers import can_be_sent

class Own(FedAvg):
    pass

print(can_be_sent(Own().round), can_be_sent(partial(print, FedAvg())))
"""


@pytest.mark.long
def test_what_a_script_defines_itself_cannot_be_sent(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False True\n"
