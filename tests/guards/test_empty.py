# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from helpers.updates import (
    clients_judged,
    honest,
    random_updates,
    replies_in_layers,
    replies_with,
)

from monai_fairfl.guards import Empty
from monai_fairfl.guards.directions import medians_of_others

NAMES = "ABCDE"


@pytest.mark.parametrize("length", [0.0, 0.9e-3])
def test_an_update_far_shorter_than_the_others_is_empty_and_both_lengths_are_named(
    length: float,
) -> None:
    updates = honest(NAMES)
    updates["C"] = updates["C"] * length
    replies = replies_with(updates)
    verdicts = Empty().check(replies)
    assert clients_judged(verdicts, replies) == ["C"]
    verdict = verdicts[2]
    assert verdict.action == "quarantine"
    assert f"length {length:.4g}, the median of the others is 1:" in verdict.reason
    assert verdict.evidence["median_of_others"] == pytest.approx(1, abs=1e-6)


def test_a_thousandth_of_the_usual_length_passes() -> None:
    updates = honest(NAMES)
    updates["C"] = updates["C"] * 1.1e-3
    assert Empty().check(replies_with(updates)) == {}


@pytest.mark.parametrize("length", [0.0, 1e-13, 1e-6])
def test_at_the_end_of_a_schedule_nobody_stands_out(length: float) -> None:
    updates = {client: update * length for client, update in honest(NAMES).items()}
    assert Empty().check(replies_with(updates)) == {}


def test_of_two_clients_only_one_without_any_length_is_empty() -> None:
    updates = honest("AB")
    short = replies_with({"A": updates["A"] * 1e-5, "B": updates["B"]})
    assert Empty().check(short) == {}
    nothing = replies_with({"A": np.zeros_like(updates["A"]), "B": updates["B"]})
    assert clients_judged(Empty().check(nothing), nothing) == ["A"]


@pytest.mark.parametrize("rest", [0.0, 0.9e-3])
@pytest.mark.parametrize("clients", ["ABC", "ABCDE"])
def test_numbers_in_the_output_layer_alone_are_empty_whatever_their_length(
    rest: float, clients: str
) -> None:
    updates = random_updates(clients)
    updates["B"][:2000] *= rest
    updates["B"][2000:] *= 10
    assert np.linalg.norm(updates["B"]) > 1
    [verdict] = Empty().check(replies_in_layers(updates)).values()
    assert verdict.action == "quarantine" and "98% of the parameters" in verdict.reason
    assert verdict.evidence["empty_share"] == pytest.approx(2000 / 2040)


def test_a_small_layer_that_a_client_does_not_train_is_no_reason() -> None:
    updates = random_updates("ABCD")
    updates["B"][2000:] = 0
    assert Empty().check(replies_in_layers(updates)) == {}


def test_layers_that_nobody_else_trains_do_not_count() -> None:
    updates = random_updates("ABCD")
    for client in "ABC":
        updates[client][:2000] = 0
    # D trains the body alone: it lacks all that the others train.
    updates["D"][2000:] = 0
    found = replies_in_layers(updates)
    assert clients_judged(Empty().check(found), found) == ["D"]
    updates["D"][2000:] = 1
    assert Empty().check(replies_in_layers(updates)) == {}


def test_beside_one_other_client_a_short_body_may_be_honest() -> None:
    updates = random_updates("AB")
    updates["B"][:2000] *= 1e-5
    assert Empty().check(replies_in_layers(updates)) == {}
    updates["B"][:2000] = 0
    found = replies_in_layers(updates)
    assert clients_judged(Empty().check(found), found) == ["B"]


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_the_medians_of_the_others_are_those_of_numpy(count: int) -> None:
    values = np.random.default_rng(count).integers(0, 4, count).astype(float)
    expected = [float(np.median(np.delete(values, row))) for row in range(count)]
    assert medians_of_others(values).tolist() == expected

    values[0] = np.nan
    expected = [float(np.median(np.delete(values, row))) for row in range(count)]
    np.testing.assert_array_equal(medians_of_others(values), expected)


def test_a_client_alone_is_never_empty() -> None:
    assert Empty().check(replies_with({"A": honest("A")["A"] * 0.0})) == {}
