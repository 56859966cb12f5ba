# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Requests and replies survive the way through NVFlare's own serialisation; what cannot be read is
an error.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("nvflare")

from nvflare.apis.fl_context import FLContext  # noqa: E402
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType  # noqa: E402
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy  # noqa: E402
from nvflare.app_common.filters.svt_privacy import SVTPrivacy  # noqa: E402
from nvflare.app_common.utils.fl_model_utils import FLModelUtils  # noqa: E402
from nvflare.fuel.utils import fobs  # noqa: E402

from monai_fairfl.protocol.messages import Reply, Request  # noqa: E402
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.values import Estimate
from monai_fairfl.server.exchange import Inbox  # noqa: E402
from monai_fairfl.transports.flare.wire import (  # noqa: E402
    register_tensors,
    reply_model,
    reply_of,
    request_model,
    request_of,
)

pytestmark = pytest.mark.nvflare
SPEC = ModelSpec(("w",), {}, ("count", "mean"), {"w": "", "count": "", "mean": ""})
SENT = {"w": torch.tensor([1.0, -2.0]), "mean": torch.ones(2), "count": torch.tensor(7)}


def carried(model: FLModel) -> FLModel:
    """``model`` as it comes out at the other end of NVFlare's wire."""
    register_tensors()
    return FLModelUtils.from_shareable(fobs.loads(fobs.dumps(FLModelUtils.to_shareable(model))))


def request(**given: Any) -> Request:
    known = {
        "measure": ("train_loss",),
        "context": {"previous_weight": 0.25},
        "id": 3,
        "run": "r",
        "round": 2,
    }
    return Request(
        "elm",
        "train",
        SENT,
        **{**known, "seed": 2**62 + 1, "ledger_head": "ab", "run_id": "0f", **given},
    )


def reply(**given: Any) -> Reply:
    known: dict[str, Any] = {
        "num_samples": 9,
        "num_cases": 2,
        "num_steps": 4,
        "id": 3,
        "run": "r",
        "round": 2,
    }
    buffers = {"mean": torch.zeros(2), "count": torch.tensor(8)}
    return Reply(
        "elm", {"w": torch.tensor([0.5, float("nan")])}, **{**known, "buffers": buffers, **given}
    )


def same(one: Any, two: Any) -> bool:
    return set(one) == set(two) and all(
        torch.equal(one[k].nan_to_num(), two[k].nan_to_num()) for k in one
    )


def test_a_request_arrives_as_it_was_sent() -> None:
    found = request_of(carried(request_model(request(), 5)), "elm")

    assert same(found.weights, SENT) and found.weights["count"].dtype == torch.int64
    assert {**vars(found), "weights": 0} == {**vars(request()), "weights": 0}


def test_a_site_answers_under_its_own_name_also_where_another_was_asked() -> None:
    assert request_of(request_model(request(), 5), "oak").client == "oak"


def test_the_digest_that_a_site_states_arrives() -> None:
    stated = reply_model(reply(digest="ab" * 32))
    assert reply_of(carried(stated), request()).digest == "ab" * 32


def test_a_site_of_another_version_is_refused_by_its_name_and_no_other() -> None:
    of_another = reply_model(reply())
    of_another.meta["fairfl"].update(format=99, package="9.0.0")
    found = reply_of(carried(of_another), request())
    assert found.update is None and found.error is not None
    assert "this site has monai_fairfl 9.0.0" in found.error


def test_the_last_message_arrives_without_a_model() -> None:
    last = Request("elm", "measure", {}, (), {"ended": 1}, run="r", round=2, ledger_head="cd")
    found = request_of(carried(request_model(last, 5)), "elm")
    assert {**vars(found), "weights": 0} == {**vars(last), "weights": 0}
    assert dict(found.weights) == {}


numbers = st.floats(allow_nan=True) | st.integers(-5, 5)
estimates = st.builds(Estimate, st.floats(), st.none() | st.floats(0, 1), st.integers(1, 9))
measurements = st.dictionaries(
    st.sampled_from(["score", "cka", "train_loss"]),
    numbers | estimates | st.dictionaries(st.text("abc", min_size=1), numbers | estimates),
)


@settings(max_examples=50)
@given(measurements)
def test_every_measurement_arrives_as_it_was_made(measured: dict[str, Any]) -> None:
    found = reply_of(carried(reply_model(reply(measurements=measured))), request())

    assert repr(found.measurements) == repr(measured)


def test_a_reply_arrives_as_it_was_sent() -> None:
    sent = reply(labelled=(True, False))
    found = reply_of(carried(reply_model(sent)), request())

    assert same(found.update, sent.update) and same(found.buffers, sent.buffers)
    assert math.isnan(found.update["w"][1])  # type: ignore[index]
    rest = {"update": 0, "buffers": 0}
    assert {**vars(found), **rest} == {**vars(sent), **rest}


def test_a_measurement_without_training_has_no_update() -> None:
    found = reply_of(carried(reply_model(Reply("elm", None, 1, {"score": 0.5}, id=3))), request())

    assert found.update is None and found.buffers is None and found.measurements == {"score": 0.5}


def test_the_server_believes_the_engine_about_who_answered() -> None:
    assert reply_of(reply_model(Reply("mallory", None, 1)), request()).client == "elm"


@pytest.mark.parametrize(
    "model",
    [
        FLModel(metrics={}, meta={}),
        FLModel(metrics={}, meta={"fairfl": "text"}),
        FLModel(metrics={}, meta={"fairfl": {"id": 3}}),
        FLModel(ParamsType.DIFF, {"w": torch.ones(2)}, meta={"fairfl": None}),
    ],
    ids=["nothing", "text", "half", "none"],
)
def test_an_answer_that_cannot_be_read_is_an_error_of_its_client(model: FLModel) -> None:
    found = reply_of(model, request())

    assert found.client == "elm" and "cannot be read" in str(found.error) and found.id == 3


def test_a_long_text_is_cut_before_it_reaches_the_ledger() -> None:
    """Of a client that failed, and of one that answers another run's request."""
    million = "x" * 1_000_000
    for model in (reply_model(reply(error=million)), reply_model(reply(run=million))):
        inbox = Inbox([request()], SPEC, SENT)
        inbox.arrived(reply_of(model, request()))
        assert len(inbox.close().missing["elm"]) < 1200


@pytest.mark.parametrize("value", [b"encrypted", object()], ids=["bytes", "object"])
def test_an_encrypted_update_is_told_apart(value: object) -> None:
    model = reply_model(reply())
    model.params["w"] = value

    inbox = Inbox([request()], SPEC, SENT)
    with pytest.raises(TypeError, match="'w' is a .*, not a tensor"):
        inbox.arrived(reply_of(model, request()))


@pytest.mark.parametrize("make", [PercentilePrivacy, SVTPrivacy], ids=["percentile", "svt"])
def test_nvflares_privacy_filters_see_the_update_and_leave_the_rest(make: Any) -> None:
    big = Reply(
        "elm",
        {"w": torch.linspace(-1, 1, 50)},
        9,
        num_steps=2,
        buffers={"mean": torch.ones(2)},
        id=3,
    )
    shareable = FLModelUtils.to_shareable(reply_model(big))
    filtered = make().process(shareable, FLContext())

    found = reply_of(FLModelUtils.from_shareable(filtered), request())

    assert found.error is None and found.update is not None and found.buffers is not None
    assert found.update["w"].shape == (50,) and not torch.equal(found.update["w"], big.update["w"])  # type: ignore[index]
    assert torch.equal(found.buffers["mean"], torch.ones(2))


def test_arrays_are_as_good_as_tensors() -> None:
    model = reply_model(reply())
    model.params["w"] = np.array([1.5, 2.5], np.float32)

    assert torch.equal(reply_of(model, request()).update["w"], torch.tensor([1.5, 2.5]))  # type: ignore[index]


def test_a_site_that_could_not_read_its_request_is_heard_all_the_same() -> None:
    """It does not know which request it answers."""
    unread = FLModel(metrics={}, meta={"fairfl": {"error": "unknown context key"}})
    inbox = Inbox([request()], SPEC, SENT)
    for answer in (reply_model(Reply("elm", None, 0, error="unknown context key")), unread):
        inbox.arrived(reply_of(answer, request()))

    assert inbox.close().missing == {"elm": "error: unknown context key"}
