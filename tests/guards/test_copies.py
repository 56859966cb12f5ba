# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.updates import SPEC, at_cosine, clients_judged, directions, honest, replies_with

from monai_fairfl.guards import Copies
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.protocol.values import Estimate
from monai_fairfl.server.guarding import guarded

NAMES = "ABCDE"


def with_a_copy(cosine: float, agreement: float = 0.3) -> dict[str, np.ndarray]:
    """E is at a cosine to A; all other pairs agree less."""
    updates = honest(NAMES, agreement)
    apart = directions(20)[-1]
    apart = apart - (apart @ updates["A"]) * updates["A"]
    return {**updates, "E": at_cosine(cosine, updates["A"], apart / np.linalg.norm(apart))}


def test_nearly_the_same_updates_share_one_weight() -> None:
    replies = replies_with(with_a_copy(0.95), samples={"A": 300, "E": 100})
    verdicts = Copies().check(replies)
    assert clients_judged(verdicts, replies) == ["A", "E"]
    assert verdicts[0].group == ("A", "E")
    assert "updates of A, E are nearly the same (cosines of at least 0.950)" in verdicts[0].reason

    passed, _ = guarded(replies, [Copies()])
    assert passed.clients == list(NAMES) and not passed.missing
    weights = {"A": 0.3, "B": 0.2, "C": 0.2, "D": 0.2, "E": 0.1}
    by_hand = {"A": 0.15 / 0.8, "B": 0.25, "C": 0.25, "D": 0.25, "E": 0.05 / 0.8}
    assert passed.shared(weights) == pytest.approx(by_hand)
    # What is no share of a whole is divided, too: their mean of 1.7 by their samples.
    values = {"A": Estimate(0.4, 0.1, 7), "B": -2.0, "E": 3.0}
    assert passed.shared(values) == {"A": Estimate(1.275, 0.05, 7), "B": -2.0, "E": 0.425}


def test_a_cosine_with_the_others_leaves_out_copies_and_counts_them_once() -> None:
    copied = with_a_copy(1.0)
    alone = {name: update for name, update in copied.items() if name != "E"}
    passed, _ = guarded(replies_with(copied), [Copies()])
    found = passed.geometry.cosines_with_sum([0.2] * 5, without_own=True)
    expected = replies_with(alone).geometry.cosines_with_sum([0.2] * 4, without_own=True)
    assert found == pytest.approx([*expected, expected[0]], abs=1e-6)


def test_a_cosine_below_the_limit_passes() -> None:
    assert Copies().check(replies_with(with_a_copy(0.89))) == {}


@pytest.mark.parametrize("agreement", [0.7, 0.95, 0.9999, 1.0])
def test_even_shares_of_one_data_set_are_no_copies(agreement: float) -> None:
    assert Copies().check(replies_with(honest(NAMES, agreement))) == {}


@pytest.mark.parametrize("clients", ["ABE", "ABCE", "ABCDE"])
def test_one_update_of_another_direction_makes_no_copies_of_sites_that_are_alike(
    clients: str,
) -> None:
    updates = honest(clients, 0.96)
    updates["E"] = directions(20)[-1]
    assert Copies().check(replies_with(updates)) == {}


def test_updates_without_length_are_no_copies() -> None:
    nothing = {client: update * 0 for client, update in honest(NAMES).items()}
    assert Copies().check(replies_with(nothing)) == {}


def test_three_copies_are_one_group_also_where_two_of_them_meet_through_the_third() -> None:
    updates = with_a_copy(0.95)
    updates["D"] = updates["A"]
    passed, verdicts = guarded(replies_with(updates), [Copies()])
    assert passed.groups == [("A", "D", "E")] and sorted(verdicts) == ["A", "D", "E"]


@pytest.mark.parametrize("honest_ones", ["AB", "A", ""])
@pytest.mark.parametrize("scale", [0.0, 0.3])
def test_copies_are_found_also_where_most_pairs_are_of_copies(
    honest_ones: str, scale: float
) -> None:
    clients = "ABCDEFGH"
    updates = honest(clients)
    copies = [client for client in clients if client not in honest_ones]
    for number, client in enumerate(copies):
        updates[client] = updates["H"] * (1 + scale * number)
    replies = replies_with(updates)
    # Where all are the same, there is nobody else to count.
    expected = copies if honest_ones else []
    assert clients_judged(Copies().check(replies), replies) == expected


def test_two_groups_of_copies_are_two_groups() -> None:
    updates = honest("ABCD")
    verdicts = Copies().check(replies_with({**updates, "C": updates["A"], "D": updates["B"]}))
    assert {verdict.group for verdict in verdicts.values()} == {("A", "C"), ("B", "D")}


def test_a_client_that_trained_several_models_is_no_copy_of_itself() -> None:
    replies = replies_with(with_a_copy(0.99))
    twice = [replace(reply, client="A") if reply.client == "E" else reply for reply in replies]
    assert Copies().check(Replies(twice, replies.requests.values(), SPEC)) == {}
