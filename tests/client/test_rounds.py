# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""From round to round: what a client stores, and that nothing goes wrong in between."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.client_requests import (
    abort_at,
    after,
    broken,
    measure,
    own_model,
    same,
    train,
)
from helpers.refusals import refused

from monai_fairfl import Reply, Request
from monai_fairfl.audit import read_receipts
from monai_fairfl.errors import ConfigError, TransportAborted
from monai_fairfl.run import digest_of

Weights = dict[str, torch.Tensor]


def closing(client: Any, weights: Weights) -> None:
    """Let the client store the model that it uses."""
    measure(client, weights, "personal_score", number=9, closing=1.0)


def test_a_new_process_and_a_repeated_round_go_on_to_the_same_bits(
    new_small: Any, parameters: Weights, tmp_path: Path
) -> None:
    """Optimizer, schedule, statistics of batches that nobody sends, and a personal model."""
    context = {"ditto_lambda": 0.3}
    lasting = new_small("lasting")
    models = [parameters]
    for number in range(4):
        expected = train(lasting, models[number], number, **context)
        if number != 1:
            restarted = new_small("restarted")
        found = train(restarted, models[number], number, **context)
        assert same(found.update, expected.update)
        models.append(after(models[number], expected))
    closing(lasting, models[4])
    closing(restarted, models[4])
    final = own_model(tmp_path, "lasting")
    assert same(own_model(tmp_path, "restarted"), final)

    # The server resumed from the newest checkpoint but one.
    for number in (2, 3):
        repeated = train(lasting, models[number], number, **context)
    assert same(repeated.update, expected.update)
    closing(lasting, models[4])
    assert same(own_model(tmp_path, "lasting"), final)
    # Only the newest states stay.
    assert len(list((tmp_path / "alder" / "lasting").glob("*round*"))) == 3


def test_a_run_takes_nothing_of_an_earlier_one_of_its_name_or_of_one_that_begins_alike(
    new_small: Any, parameters: Weights, caplog: pytest.LogCaptureFixture
) -> None:
    # The longest name.
    run = "FedCE 3T.v1-".ljust(118, "x")
    alike = f"{run}-round-2"

    def trained(client: Any, run: str, run_id: str, number: int) -> Reply:
        # Statistics of batches stay at the site, so that they come from its state.
        request = Request("alder", "train", parameters, run=run, round=number, run_id=run_id)
        reply: Reply = client.answer(request)
        return reply

    expected = trained(new_small("clean"), run, "new", 1)
    client = new_small("used")
    trained(client, alike, "other", 0)
    trained(client, run, "old", 0)
    found = trained(client, run, "new", 1)
    assert same(found.update, expected.update) and run in caplog.text


def test_a_run_whose_name_is_no_file_name_is_refused(new_small: Any, small: Weights) -> None:
    client = new_small()
    for run in ("", "../other", ".hidden", "a*", "a" * 129):
        with refused("run name", repr(run)[:20], by=ConfigError):
            client.answer(Request("alder", "train", small, run=run, round=0))


# ---- states that are lost, damaged, foreign or closed


class Code:
    """What runs when somebody reads it carelessly."""

    def __init__(self, marker: Path):
        self.marker = str(marker)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.marker,)


def test_a_damaged_or_foreign_state_is_refused_by_name_and_without_it_the_client_goes_on(
    new_small: Any, parameters: Weights, tmp_path: Path
) -> None:
    client = new_small()
    for number in range(2):
        train(client, parameters, number)
    state = tmp_path / "alder" / "state" / "r-round-0001.pt"
    whole = state.read_bytes()
    values = client.trainer.network.state_dict()["0.weight"]
    # PyTorch itself would read a changed weight without a word.
    changed = bytearray(whole)
    changed[whole.index(values.numpy().tobytes()) + 5] ^= 0x80
    torch.save(Code(tmp_path / "marker"), tmp_path / "code")
    restarted = new_small()
    for damage in (b"", whole[: len(whole) // 2], changed, (tmp_path / "code").read_bytes()):
        state.write_bytes(damage)
        with refused(state.name, "damaged", by=ConfigError):
            train(restarted, parameters, 2)
    assert not (tmp_path / "marker").exists()
    state.unlink()
    assert train(restarted, parameters, 2).update


# ---- trainings that fail, diverge or are aborted


def test_a_training_that_fails_leaves_no_trace_in_the_one_that_follows(
    new_small: Any, small: Weights
) -> None:
    other = new_small("undisturbed")
    undisturbed = [train(other, small, number) for number in range(2)]
    client = new_small()
    train(client, small, 0, ditto_lambda=0.1)
    usual = client.trainer.loss_function
    stepping: Any = broken(usual, 2, MemoryError("a step fails"))
    diverging: Any = lambda predicted, label: usual(predicted, label) * math.nan  # noqa: E731
    for loss, error, words in (
        (stepping, MemoryError, "a step fails"),
        (diverging, ValueError, "diverged"),
        (usual, TransportAborted, "aborted"),
    ):
        client.trainer.loss_function = loss
        if loss is usual:
            # The last two of four steps are the personal model's.
            abort_at(client, client.trainer, 3)
        with refused(words, by=error):
            train(client, small, 1, ditto_lambda=0.1)
        client.trainer.loss_function = usual
        found = train(client, small, 1, ditto_lambda=0.1)
        assert found.num_steps == 2
        assert same(found.update, undisturbed[1].update)
        assert same(found.buffers, undisturbed[1].buffers)


# ---- random numbers, receipts


def test_each_answer_leaves_a_receipt_with_the_head_and_the_digest_of_the_update_as_sent(
    new_small: Any, small: Weights, tmp_path: Path
) -> None:
    client = new_small()
    reply = client.answer(Request("alder", "train", small, run="r", round=0, ledger_head="ab"))
    assert reply.digest == digest_of({**reply.update, **reply.buffers})
    # A request of no ledger, such as one of a valuation, leaves none.
    client.answer(Request("alder", "measure", small, ("score",), run="v", round=0))
    ended = {"ended": 1.0}
    client.answer(Request("alder", "measure", {}, (), ended, run="r", round=1, ledger_head="cd"))
    trained, last = read_receipts(tmp_path / "alder" / "state" / "receipts.jsonl")
    assert (trained.run, trained.round, trained.head, trained.ended) == ("r", 0, "ab", False)
    assert trained.update == reply.digest
    assert (last.head, last.update, last.ended) == ("cd", None, True)
