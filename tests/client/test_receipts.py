# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The receipts that a client of the prostate bundle stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from monai_fairfl.audit import read_receipts
from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.protocol.messages import Request
from monai_fairfl.run_folder.ledger import digest_of


def test_each_answer_leaves_a_receipt_with_the_head_and_the_digest_of_the_update_as_sent(
    prostate_client: Callable[..., FairMonaiAlgo], weights: dict[str, torch.Tensor]
) -> None:
    client = prostate_client()
    sent = Request("alder", "train", weights, run="r", round=0, id=4, ledger_head="ab12")
    reply = client.answer(sent)
    client.answer(replace(sent, task="measure", measure=("score",), round=1, ledger_head="cd34"))

    assert reply.update is not None
    assert reply.digest == digest_of({**reply.update, **(reply.buffers or {})})
    trained, measured = read_receipts(client.receipts.path)
    assert (trained.run, trained.round, trained.head) == ("r", 0, "ab12")
    assert (trained.client, trained.update, trained.ended) == ("alder", reply.digest, False)
    assert (measured.round, measured.head, measured.update) == (1, "cd34", None)


@pytest.mark.slow
def test_the_last_head_is_stored_and_a_request_of_no_ledger_is_not(
    prostate_client: Callable[..., FairMonaiAlgo], weights: dict[str, torch.Tensor]
) -> None:
    client = prostate_client()
    end = Request("alder", "measure", {}, (), {"ended": 1}, run="r", round=1, ledger_head="ef56")
    reply = client.answer(end)
    assert (reply.error, reply.update) == (None, None)
    client.answer(Request("alder", "measure", weights, ("score",), run="valuation", round=0))
    (receipt,) = read_receipts(client.receipts.path)
    assert (receipt.head, receipt.ended) == ("ef56", True)
