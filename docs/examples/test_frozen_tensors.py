# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A guard needs no federation to be tested: give it replies, look at its verdicts."""

from __future__ import annotations

import torch
from frozen_tensors import FrozenTensors

from monai_fairfl.messages import ModelSpec, Reply, Request
from monai_fairfl.replies import Replies

SPEC = ModelSpec(("w",), buffers=("encoder.weight",))
MODEL = {"w": torch.zeros(2), "encoder.weight": torch.tensor([1.0, 2.0])}


def test_who_changed_the_encoder_is_quarantined_and_who_left_it_is_not() -> None:
    requests = [Request(client, "train", MODEL, id=id) for id, client in enumerate("AB")]
    returned = {"A": torch.tensor([1.0, 2.0]), "B": torch.tensor([1.0, 9.0])}
    replies = []
    for request in requests:
        buffers = {"encoder.weight": returned[request.client]}
        reply = Reply(request.client, {"w": torch.ones(2)}, 10, buffers=buffers, id=request.id)
        replies.append(reply)
    verdicts = FrozenTensors(["encoder.weight"]).check(Replies(replies, requests, SPEC))
    assert list(verdicts) == [1] and verdicts[1].action == "quarantine"
    assert verdicts[1].reason == "it changed 1 entries of 'encoder.weight', which is frozen"
