# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from helpers.updates import clients_judged, honest, replies_with

from monai_fairfl.guards import Empty

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


def test_a_client_alone_is_never_empty() -> None:
    assert Empty().check(replies_with({"A": honest("A")["A"] * 0.0})) == {}
