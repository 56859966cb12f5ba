# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Whole pieces of work, dealt out to real worker processes, and what happens when one ends."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers import worker_clients
from helpers.worker_clients import meet, seen, train

from monai_fairfl.errors import ConfigError
from monai_fairfl.transports.workers import Failed, Turn, carry_out


def results_of(todo: Mapping[str, Callable[[Turn], Any]], **settings: Any) -> dict[str, Any]:
    """Title -> what the piece of work returned, in the order of their ends."""
    found: dict[str, Any] = {}
    carry_out(todo, ended=found.__setitem__, **settings)
    return found


# --- who gets how many processes


def test_pieces_have_a_process_each_and_the_last_has_all_in_this_one(tmp_path: Path) -> None:
    # Each of the first two ends only when both have begun.
    a, b = partial(meet, tmp_path, "a", "b"), partial(meet, tmp_path, "b", "a")
    found = results_of({"a": a, "b": b, "c": seen}, all_of=Turn(2, ["cuda:0", "cuda:1"]))
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

    found = results_of(dict.fromkeys("cab", of_a_script), all_of=Turn(2))
    of_a_script.__module__, of_a_script.__qualname__ = "__main__", "of_a_script"
    monkeypatch.setattr(sys.modules["__main__"], "of_a_script", of_a_script, raising=False)
    assert results_of({"c": of_a_script, "a": seen, "b": of_a_script}, all_of=Turn(2)) == found
    assert list(found) == ["c", "a", "b"]
    for each in found.values():
        assert (each["process"], each["jobs"]) == (os.getpid(), 2)


# --- a process that ends, an error


def test_a_piece_whose_process_ends_fails_and_the_others_go_on_and_say_their_rounds(
    tmp_path: Path,
) -> None:
    rounds: list[tuple[str, int]] = []
    todo = {"a": worker_clients.end, "b": partial(train, tmp_path)}
    found = results_of(todo, all_of=Turn(2), rounds_done=lambda *done: rounds.append(done))
    assert isinstance(found["a"], Failed) and "SIGKILL" in found["a"].reason
    assert rounds == [("b", number) for number in range(5)] and found["b"].finished


def test_an_error_ends_all_pieces(tmp_path: Path) -> None:
    todo = {
        "endless": partial(meet, tmp_path, "begun", "never"),
        "error": worker_clients.raise_error,
    }
    with pytest.raises(ConfigError, match="concerns all"):
        results_of(todo, all_of=Turn(2))


# --- Ctrl-C and SIGTERM


def test_what_is_done_here_ends_and_a_second_signal_ends_it_at_once() -> None:
    ended: list[str] = []
    pieces = dict.fromkeys("ab", lambda turn: signal.raise_signal(signal.SIGTERM))
    assert carry_out(pieces, ended=lambda title, result: ended.append(title))
    assert ended == ["a"]

    def press_twice(turn: Turn) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        carry_out({"c": press_twice})
