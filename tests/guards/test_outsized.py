# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
from helpers.driving import replies_of

from monai_fairfl.guards import DEFAULT, Outsized
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.replies import Replies


@pytest.mark.parametrize("huge", [1e6, 1e30, 3e38])
def test_a_huge_finite_update_is_quarantined_with_both_lengths(huge: float) -> None:
    replies = replies_of({"A": [0.1, 0.0], "B": [huge, huge], "C": [0.0, 0.3]})
    verdicts = Outsized().check(replies)
    assert list(verdicts) == [1] and verdicts[1].action == "quarantine"
    assert f"length {2**0.5 * huge:.4g}, the median of the others is 0.2" in verdicts[1].reason
    assert verdicts[1].evidence["median_of_others"] == pytest.approx(0.2)
    assert verdicts[1].evidence["length"] == pytest.approx(2**0.5 * huge)
    assert any(isinstance(guard, Outsized) for guard in DEFAULT)


def test_of_two_clients_the_one_with_the_huge_update_is_found() -> None:
    assert list(Outsized().check(replies_of({"A": [0.01], "B": [1e6]}))) == [1]


@pytest.mark.parametrize("next_to_nothing", [0.0, 1e-9])
def test_an_honest_update_beside_those_who_sent_next_to_nothing_stays(
    next_to_nothing: float,
) -> None:
    spec = ModelSpec(("w",), layers={"w": "w"})
    requests = [
        Request(name, "train", {"w": torch.tensor([5.0])}, id=i) for i, name in enumerate("ABC")
    ]
    lengths = (next_to_nothing, 0.5, next_to_nothing)
    replies = [
        Reply(r.client, {"w": torch.tensor([length])}, 1, id=r.id)
        for r, length in zip(requests, lengths)
    ]
    assert Outsized().check(Replies(replies, requests, spec)) == {}


def test_usual_differences_in_length_and_a_client_alone_pass() -> None:
    assert Outsized().check(replies_of({"A": [0.01], "B": [1.0], "C": [9.0]})) == {}
    assert Outsized().check(replies_of({"A": [1e30]})) == {}
