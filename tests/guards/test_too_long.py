# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from helpers.updates import clients_judged, honest, replies_with

from monai_fairfl.guards import DEFAULT, TooLong
from monai_fairfl.server.guarding import guarded

NAMES = "ABCDE"


def test_a_long_update_is_cut_to_the_median_of_the_others() -> None:
    updates = honest(NAMES)
    updates["C"] = updates["C"] * 6.1
    replies = replies_with(updates)
    verdicts = TooLong().check(replies)
    assert clients_judged(verdicts, replies) == ["C"]
    assert verdicts[2].action == "clip"
    assert verdicts[2].factor == pytest.approx(1 / 6.1)
    assert "length 6.1, the median of the others is 1 (allowed: 6 times" in verdicts[2].reason

    passed, _ = guarded(replies, [TooLong()])
    assert passed.geometry.norms == pytest.approx([1.0] * 5, abs=1e-5)
    assert passed.geometry.cosine([0, 0, 1, 0, 0], [1, 0, 0, 0, 0]) == pytest.approx(0.5, abs=1e-5)


def test_six_times_the_usual_length_passes_and_so_does_the_short_one() -> None:
    updates = honest(NAMES)
    updates["C"] = updates["C"] * 5.9
    updates["D"] = updates["D"] * 0.3
    assert TooLong().check(replies_with(updates)) == {}


def test_a_tiny_update_does_not_make_the_longer_of_two_others_too_long() -> None:
    updates = honest("ABC")
    updates["A"] = updates["A"] * 3.3
    updates["C"] = updates["C"] * 0.005
    assert TooLong().check(replies_with(updates)) == {}


def test_of_two_clients_none_is_too_long() -> None:
    updates = honest("AB")
    assert TooLong().check(replies_with({"A": updates["A"] * 900, "B": updates["B"]})) == {}


def test_beside_updates_of_no_length_nobody_is_too_long() -> None:
    updates = {client: update * 0 for client, update in honest(NAMES).items()}
    updates["A"] = honest(NAMES)["A"]
    assert TooLong().check(replies_with(updates)) == {}


def test_one_enormous_update_does_not_make_two_honest_ones_empty() -> None:
    # It is shorter than the model, so that Outsized leaves it; the others' median is then its own.
    updates = {client: update * 1e-3 for client, update in honest("ABC").items()}
    updates["A"] = updates["A"] * 4000
    passed, verdicts = guarded(replies_with(updates), DEFAULT)
    assert passed.clients == ["A", "B", "C"] and list(verdicts) == ["A"]
    assert passed.geometry.norms == pytest.approx([1e-3] * 3, rel=1e-4)


def test_short_copies_do_not_make_honest_updates_too_long() -> None:
    updates = honest("ABS")
    short = updates["S"] * 0.01
    replies = replies_with({"A": updates["A"], "B": updates["B"], "S": short, "T": short})
    _, verdicts = guarded(replies, DEFAULT)
    assert sorted(verdicts) == ["S", "T"]
    assert verdicts["S"][0].action == "share"
