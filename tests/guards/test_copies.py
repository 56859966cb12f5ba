# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.updates import SPEC, at_cosine, clients_judged, directions, honest, replies_with

from monai_fairfl.guards import Copies, Verdict
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.protocol.values import Estimate
from monai_fairfl.server.exchange import TooFewClients, require_min_clients
from monai_fairfl.server.guarding import guarded
from monai_fairfl.server.sharing import divided, shares_of_groups
from monai_fairfl.strategies import RoundResult

NAMES = "ABCDE"


def with_a_copy(cosine: float, agreement: float = 0.3) -> dict[str, np.ndarray]:
    """E is at a cosine to A; all other pairs agree less."""
    updates = honest(NAMES, agreement)
    apart = directions(20)[-1]
    apart = apart - (apart @ updates["A"]) * updates["A"]
    return {**updates, "E": at_cosine(cosine, updates["A"], apart / np.linalg.norm(apart))}


def test_nearly_the_same_updates_share_one_weight_by_their_images() -> None:
    replies = replies_with(with_a_copy(0.95), samples={"A": 300, "E": 100})
    verdicts = Copies().check(replies)
    assert clients_judged(verdicts, replies) == ["A", "E"]
    assert [verdicts[id].factor for id in (0, 4)] == [0.75, 0.25]
    assert verdicts[0].group == ("A", "E")
    assert "updates of A, E are nearly the same (cosines of at least 0.950)" in verdicts[0].reason

    merged, _ = guarded(replies, [Copies()])
    assert merged.clients == ["A", "B", "C", "D"]
    assert merged[0].num_samples == 200
    assert merged.missing == {"E": "shares one weight with A"}
    mean = (replies_with(with_a_copy(0.95)).matrix.rows[[0, 4]]).mean(0)
    torch.testing.assert_close(merged.matrix.rows[0], mean)
    torch.testing.assert_close(merged[0].update["out.bias"].flatten(), mean[2400:2403])


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
    replies = replies_with(updates)
    merged, verdicts = guarded(replies, [Copies()])
    assert merged.clients == ["A", "B", "C"] and sorted(verdicts) == ["A", "D", "E"]
    assert shares_of_groups(verdicts) == {"A": dict.fromkeys("ADE", pytest.approx(1 / 3))}


@pytest.mark.parametrize("samples", [{"A": 1}, {"E": 1}, {"A": 1, "E": 10**30}, {"A": 10**400}])
def test_a_strange_number_of_images_ends_nothing(samples: dict[str, int]) -> None:
    merged, verdicts = guarded(replies_with(with_a_copy(0.95), samples=samples), [Copies()])
    shares = shares_of_groups(verdicts)["A"]
    assert merged.clients == ["A", "B", "C", "D"]
    assert sum(shares.values()) == pytest.approx(1) and min(shares.values()) >= 0


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


def test_a_class_is_averaged_over_the_copies_that_label_it() -> None:
    updates = with_a_copy(0.95)
    replies = replies_with(updates)
    labelled = {"A": (True, True, False), "E": (True, False, False)}
    partial = [replace(reply, labelled=labelled.get(reply.client, ())) for reply in replies]
    before = {reply.client: dict(reply.update) for reply in replies_with(updates)}
    merged = Replies(partial, replies.requests.values(), SPEC).merged([("A", "E")])
    assert merged[0].labelled == (True, True, False)
    rows = merged[0].update["out.weight"]
    a, e = before["A"]["out.weight"], before["E"]["out.weight"]
    torch.testing.assert_close(rows[0], (a[0] + e[0]) / 2)
    torch.testing.assert_close(rows[1], a[1])


def test_the_weight_of_a_group_that_joins_another_is_divided_twice() -> None:
    def share(part: float, *group: str) -> Verdict:
        return Verdict("share", "", {}, part, group)

    verdicts = {
        "B": [share(0.25, "B", "C"), share(0.5, "A", "B")],
        "C": [share(0.75, "B", "C")],
        "A": [share(0.5, "A", "B")],
    }
    assert shares_of_groups(verdicts) == {"A": {"A": 0.5, "B": 0.125, "C": 0.375}}


def test_weights_by_layer_estimates_and_rewards_are_divided() -> None:
    result = RoundResult(
        {},
        {"conv": {"A": 0.6, "B": 0.4}, "out": {"A": 0.2, "B": 0.8}},
        {"A": Estimate(0.4, 0.1, 7), "B": 0.6},
        {"A": {"w": torch.ones(1)}, "B": {}, "C": {}},
    )
    shared = divided(result, {"A": {"A": 0.75, "C": 0.25}})
    assert shared.aggregation["conv"] == pytest.approx({"A": 0.45, "B": 0.4, "C": 0.15})
    assert shared.aggregation["out"] == pytest.approx({"A": 0.15, "B": 0.8, "C": 0.05})
    assert shared.contributions["C"] == Estimate(pytest.approx(0.1), pytest.approx(0.025), 7)
    assert shared.rewards is not None and shared.rewards["C"] is shared.rewards["A"]
    assert divided(result, {}) is result


def test_copies_count_as_present_unless_their_group_was_quarantined() -> None:
    merged, verdicts = guarded(replies_with(with_a_copy(0.95)), [Copies()])
    require_min_clients(merged, 5, verdicts)
    with pytest.raises(TooFewClients, match="3 of 5 clients answered"):
        require_min_clients(merged.without({0: "quarantined: noise"}), 5, verdicts)
