# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Whole pieces of work, dealt out to real worker processes, and what happens when one ends."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers import worker_clients
from helpers.least_squares_federation import ledger_bytes
from helpers.worker_clients import meet, seen, train

from monai_fairfl.errors import ConfigError
from monai_fairfl.transports.workers import Failed, Turn, at_a_time, carry_out


def results_of(todo: Mapping[str, Callable[[Turn], Any]], **settings: Any) -> dict[str, Any]:
    """Title -> what the piece of work returned, in the order of their ends."""
    found: dict[str, Any] = {}
    carry_out(todo, ended=found.__setitem__, **settings)
    return found


# --- who gets how many processes


def test_pieces_have_a_process_each_and_the_last_has_all_in_this_one(tmp_path: Path) -> None:
    # Each of the first two ends only when both have begun.
    a, b = partial(meet, tmp_path, "a", "b"), partial(meet, tmp_path, "b", "a")
    found = results_of({"a": a, "b": b, "c": seen}, jobs=2, devices=["cuda:0", "cuda:1"])
    assert [found[name]["devices"] for name in "abc"] == [
        ["cuda:0"],
        ["cuda:1"],
        ["cuda:0", "cuda:1"],
    ]
    assert [found[name]["jobs"] for name in "abc"] == [1, 1, 2]
    assert found["c"]["process"] == os.getpid()
    assert len({each["process"] for each in found.values()}) == 3


def test_what_cannot_be_sent_is_done_here_in_the_given_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def of_a_script(turn: Turn) -> Any:
        return seen(turn)

    assert at_a_time(dict.fromkeys("ab", of_a_script), 2) == 1
    of_a_script.__module__, of_a_script.__qualname__ = "__main__", "of_a_script"
    monkeypatch.setattr(sys.modules["__main__"], "of_a_script", of_a_script, raising=False)
    assert at_a_time({"a": of_a_script, "b": seen}, 2) == 1
    assert at_a_time({"a": seen, "b": seen}, 2) == 2

    for jobs in (1, 2):
        found = results_of(dict.fromkeys("cab", of_a_script), jobs=jobs)
        assert list(found) == ["c", "a", "b"]
        for each in found.values():
            assert (each["process"], each["jobs"]) == (os.getpid(), jobs)


# --- a process that ends, an error


def test_a_federation_whose_process_is_killed_goes_on_in_another_one_to_the_same_ledger(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("unhurt", "whole"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "killed").touch()
    whole = train(tmp_path / "whole", Turn())

    rounds: dict[str, list[int]] = {"hurt": [], "unhurt": []}
    todo = {name: partial(train, tmp_path / name) for name in rounds}
    found = results_of(todo, jobs=2, rounds_done=lambda title, number: rounds[title].append(number))

    for name in rounds:
        assert found[name].records == whole.records
        assert ledger_bytes(tmp_path / name) == ledger_bytes(tmp_path / "whole")
    assert rounds == {"hurt": [0, 1, 1, 2, 3, 4], "unhurt": [0, 1, 2, 3, 4]}
    [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "hurt" in warning.getMessage() and "SIGKILL" in warning.getMessage()


def test_a_piece_whose_process_always_ends_fails_and_the_others_go_on() -> None:
    found = results_of({"a": worker_clients.end_always, "b": seen}, jobs=2)
    assert isinstance(found["a"], Failed) and "SIGKILL" in found["a"].reason
    assert found["b"]["again"] is False


def test_an_error_ends_all_pieces(tmp_path: Path) -> None:
    todo = {
        "endless": partial(meet, tmp_path, "begun", "never"),
        "error": worker_clients.raise_error,
    }
    with pytest.raises(ConfigError, match="concerns all"):
        results_of(todo, jobs=2)


# --- Ctrl-C and SIGTERM


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_done_here_ends_and_a_second_signal_ends_it_at_once(number: signal.Signals) -> None:
    ended: list[str] = []
    pieces = dict.fromkeys("ab", lambda turn: signal.raise_signal(number))
    assert carry_out(pieces, ended=lambda title, result: ended.append(title))
    assert ended == ["a"]

    def press_twice(turn: Turn) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        carry_out({"c": press_twice})
