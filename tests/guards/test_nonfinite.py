# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
from helpers.driving import replies_of

from monai_fairfl.guards import NonFinite
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.replies import Replies


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_an_update_that_is_not_finite_is_quarantined_and_the_tensor_named(bad: float) -> None:
    verdicts = NonFinite().check(replies_of({"A": [1.0, 2.0], "B": [bad, 0.0], "C": [1e30, 0.0]}))
    assert list(verdicts) == [1]
    assert verdicts[1].action == "quarantine" and "'w' is not finite" in verdicts[1].reason


def test_a_buffer_that_is_not_finite_counts_too() -> None:
    spec = ModelSpec(("w",), buffers=("bn.running_var",), layers={"w": "w"})
    request = Request("A", "train", {"w": torch.zeros(1)}, id=0)
    reply = Reply(
        "A", {"w": torch.ones(1)}, 1, buffers={"bn.running_var": torch.tensor([float("nan")])}, id=0
    )
    assert "bn.running_var" in NonFinite().check(Replies([reply], [request], spec))[0].reason


def test_finite_updates_pass() -> None:
    assert NonFinite().check(replies_of({"A": [1.0], "B": [0.0]})) == {}


@pytest.mark.parametrize("value", [float("-inf"), float("nan")])
def test_a_buffer_that_was_sent_with_such_values_may_keep_them_but_gain_no_others(
    value: float,
) -> None:
    spec = ModelSpec(("w",), buffers=("attention_mask",), layers={"w": "w"})
    mask = torch.tensor([[0.0, value], [0.0, 0.0]])
    requests = [
        Request(name, "train", {"w": torch.zeros(1), "attention_mask": mask}, id=i)
        for i, name in enumerate("AB")
    ]
    spoilt = mask.clone()
    spoilt[1, 0] = value
    replies = [
        Reply(
            request.client,
            {"w": torch.ones(1)},
            1,
            buffers={"attention_mask": buffer},
            id=request.id,
        )
        for request, buffer in zip(requests, (mask.clone(), spoilt))
    ]
    verdicts = NonFinite().check(Replies(replies, requests, spec))
    assert list(verdicts) == [1] and "attention_mask" in verdicts[1].reason
