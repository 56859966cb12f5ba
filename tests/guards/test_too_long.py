# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
from helpers.updates import (
    BODY,
    clients_judged,
    honest,
    random_updates,
    replies_in_layers,
    replies_with,
)

from monai_fairfl import Replies, Request
from monai_fairfl.guards import DEFAULT, TooLong
from monai_fairfl.protocol.values import value_of
from monai_fairfl.server.guarding import guarded
from monai_fairfl.strategies import ShapFed
from monai_fairfl.strategies.playing import play_round

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


def test_a_long_output_layer_is_cut_though_the_whole_update_is_of_usual_length() -> None:
    updates = random_updates(NAMES)
    updates["C"][BODY:] *= 10
    replies = replies_in_layers(updates)
    lengths = replies.geometry.norms
    assert lengths[2] < 2 * lengths[0]
    [verdict] = TooLong().check(replies).values()
    assert verdict.action == "clip"
    assert verdict.reason.startswith("its update of the output layer has length")
    passed, _ = guarded(replies, [TooLong()])
    heads = passed.geometry.norms_of_layers["head"]
    assert heads[2] == pytest.approx(np.quantile(np.delete(heads, 2), 0.5, method="higher"))

    updates["C"][BODY:] /= 2
    assert TooLong().check(replies_in_layers(updates)) == {}


def test_the_output_layer_is_looked_at_as_it_is_after_the_cut_of_the_whole() -> None:
    updates = random_updates(NAMES)
    updates["C"] *= 8
    [verdict] = TooLong().check(replies_in_layers(updates)).values()
    assert verdict.reason.startswith("its update has length")
    assert verdict.factor == pytest.approx(1 / 8, rel=0.1)

    updates["C"][BODY:] *= 20
    [verdict] = TooLong().check(replies_in_layers(updates)).values()
    assert verdict.reason.startswith("its update of the output layer has length")
    assert verdict.factor == pytest.approx(1 / 160, rel=0.4)


def answer(replies: Replies, requests: Sequence[Request]) -> Replies:
    return replies


@pytest.mark.parametrize("clients", ["ABC", "ABCDEF"])
def test_a_long_output_layer_does_not_buy_class_values(clients: str) -> None:
    updates = {client: update + 1 for client, update in random_updates(clients).items()}
    updates["A"][BODY:] = 10 * np.random.default_rng(9).normal(size=40)
    contributions = []
    for guards in ([], list(DEFAULT)):
        replies, _ = guarded(replies_in_layers(updates), guards)
        strategy = ShapFed()
        strategy.start(replies.start(replies[0]), list(clients), replies.spec)
        found = play_round(strategy, list(clients), partial(answer, replies)).contributions
        contributions.append({client: value_of(value) for client, value in found.items()})
    unguarded, with_guards = contributions
    assert unguarded["A"] == max(unguarded.values())
    assert with_guards["A"] == min(with_guards.values())
