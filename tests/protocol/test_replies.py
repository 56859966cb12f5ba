# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from helpers.driving import replies_of


def test_without_leaves_out_a_row_and_records_why() -> None:
    replies = replies_of({"A": [1.0], "B": [5.0], "C": [3.0]})
    assert replies.matrix is not None
    rest = replies.without({1: "quarantined"})
    assert rest.clients == ["A", "C"] and rest.missing == {"B": "quarantined"}
    assert rest.average()["w"].tolist() == [2.0]


def test_an_update_that_two_guards_shorten_has_both_factors_and_its_client_is_named() -> None:
    replies = replies_of({"A": [8.0], "B": [4.0], "C": [3.0]})
    twice = replies.scaled({0: 0.5}).scaled({0: 0.5, 1: 0.25})
    assert [reply.update["w"].item() for reply in twice if reply.update] == [2.0, 1.0, 3.0]
    assert twice.shortened == {"A", "B"} and replies.shortened == frozenset()
    assert twice.without({0: "quarantined"}).shortened == {"A", "B"}


def test_a_group_is_of_those_who_are_there() -> None:
    replies = replies_of({"A": [1.0], "B": [5.0], "C": [1.0]}).sharing([("A", "C")])
    assert replies.scaled({1: 0.5}).groups == [("A", "C")]
    assert replies.without({2: "late"}).groups == []
