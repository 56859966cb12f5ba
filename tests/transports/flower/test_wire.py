# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Requests and replies survive the way through Flower's own serialisation; what cannot be read is
an error of its sender alone.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict  # noqa: E402
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto  # noqa: E402

from monai_fairfl.protocol.messages import Reply, Request  # noqa: E402
from monai_fairfl.protocol.values import Estimate  # noqa: E402
from monai_fairfl.transports.flower.wire import (  # noqa: E402
    reply_content,
    reply_of,
    request_content,
    request_of,
)

pytestmark = pytest.mark.flower

SENT = {
    "w": torch.tensor([1.0, -2.0]),
    "scalar": torch.tensor(0.1, dtype=torch.float64),
    "half": torch.tensor([1.5, math.pi], dtype=torch.bfloat16),
    "count": torch.tensor(7),
    "empty": torch.zeros(0, 3),
    "transposed": torch.arange(6.0).reshape(2, 3).T,
}
REQUEST = Request(
    "elm",
    "train",
    SENT,
    ("train_loss",),
    {"previous_weight": 0.25},
    id=3,
    run="r",
    round=2,
    seed=2**62 + 1,
    ledger_head="ab",
    run_id="0f",
)


def carried(content: RecordDict) -> RecordDict:
    """A message's content as it comes out at the other end of Flower's wire."""
    return recorddict_from_proto(recorddict_to_proto(content))


def same(one: Any, two: Any) -> bool:
    """The same tensors: names, types, shapes and bits, those of NaN included."""
    if set(one) != set(two):
        return False
    for name in one:
        if one[name].dtype != two[name].dtype or one[name].shape != two[name].shape:
            return False
        if not torch.equal(one[name].nan_to_num(), two[name].nan_to_num()):
            return False
    return True


def reply(**given: Any) -> Reply:
    known = {"num_cases": 2, "num_steps": 4, "id": 3, "run": "r", "round": 2}
    update = {"w": torch.tensor([0.5, math.nan]), "half": SENT["half"]}
    return Reply("elm", update, 9, **{"buffers": {"count": SENT["count"]}, **known, **given})


def test_a_request_arrives_to_the_bit_in_every_type_bfloat16_too() -> None:
    found, rounds = request_of(carried(request_content(REQUEST, 5)), "elm")

    assert same(found.weights, SENT) and rounds == 5
    assert {**vars(found), "weights": 0} == {**vars(REQUEST), "weights": 0}


def test_the_last_message_arrives_without_a_model() -> None:
    last = Request("elm", "measure", {}, (), {"ended": 1}, run="r", round=2, ledger_head="cd")
    found, _ = request_of(carried(request_content(last, 5)), "elm")
    assert {**vars(found), "weights": 0} == {**vars(last), "weights": 0}
    assert dict(found.weights) == {}


def test_a_site_refuses_a_request_to_another() -> None:
    with pytest.raises(ValueError, match="knows this site's key as 'elm'.* says 'oak'"):
        request_of(request_content(REQUEST, 5), "oak")


def test_a_reply_arrives_as_it_was_sent() -> None:
    sent = reply(
        measurements={"score": Estimate(0.5, None, 2)}, labelled=(True, False), precision="bfloat16"
    )
    found = reply_of(carried(reply_content(sent)), REQUEST)

    assert same(found.update, sent.update) and same(found.buffers, sent.buffers)
    rest = {"update": 0, "buffers": 0}
    assert {**vars(found), **rest} == {**vars(sent), **rest}


def test_a_measurement_without_training_has_no_update() -> None:
    found = reply_of(carried(reply_content(Reply("elm", None, 1, {"score": 0.5}, id=3))), REQUEST)

    assert found.update is None and found.buffers is None and found.measurements == {"score": 0.5}


def test_the_server_goes_by_whom_it_asked_and_not_by_what_an_answer_says() -> None:
    assert reply_of(reply_content(Reply("mallory", None, 1)), REQUEST).client == "elm"


def bytes_of_shape(*shape: int) -> bytes:
    """A safetensors file of one tensor without numbers, whatever its shape."""
    header = json.dumps({"tensor": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}})
    return len(header).to_bytes(8, "little") + header.encode()


ENDLESS = Array("float32", (0,), "safetensors", bytes_of_shape(0, 2**62, 4))
"""A tensor whose strides no machine can count."""


def broken(**records: Any) -> RecordDict:
    content = reply_content(reply())
    for name, record in records.items():
        content[name] = record
    return content


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (RecordDict(), "another app runs at the other end"),
        (broken(fairfl=ConfigRecord({"json": "[1]"})), "holds no JSON object but a list"),
        (broken(fairfl=ConfigRecord({"json": '{"a":' * 100_000})), "nested deeper than"),
        (broken(fairfl=ConfigRecord({"json": '{"id": 3}'})), "KeyError"),
        (broken(fairfl=ConfigRecord({})), "KeyError"),
        (broken(update=ConfigRecord({})), "a ConfigRecord, not an ArrayRecord"),
        (
            broken(update=ArrayRecord({"w": Array("float32", (2,), "numpy.ndarray", b"x")})),
            "'w' is written as 'numpy.ndarray', not as 'safetensors'",
        ),
        (
            broken(update=ArrayRecord({"w": Array("float32", (2,), "safetensors", b"x" * 99)})),
            "'w' is no tensor",
        ),
        (broken(update=ArrayRecord({"w": ENDLESS})), "'w' is no tensor"),
    ],
    ids=["nothing", "list", "bomb", "half", "no text", "no arrays", "numpy", "damaged", "endless"],
)
def test_an_answer_that_cannot_be_read_is_an_error_of_its_client(
    content: RecordDict, says: str
) -> None:
    found = reply_of(content, REQUEST)

    assert found.client == "elm" and found.id == 3
    assert "cannot be read" in str(found.error) and says in str(found.error)
