# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The plain values of requests and replies survive as JSON; what cannot be a reply is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monai_fairfl import __version__
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.values import Estimate
from monai_fairfl.transports.engines.wire import (
    FORMAT,
    UNREADABLE,
    plain_reply,
    plain_request,
    reply_from,
    request_from,
    unreadable,
)

REQUEST = Request(
    "elm",
    "train",
    {"w": torch.ones(1)},
    ("train_loss",),
    {"previous_weight": 0.25},
    id=3,
    run="r",
    round=2,
    seed=2**62 + 1,
    ledger_head="ab",
    run_id="0f",
)
REPLY = Reply(
    "elm",
    None,
    9,
    num_cases=2,
    num_steps=4,
    id=3,
    run="r",
    round=2,
    digest="ab" * 32,
    state_round=1,
)


def as_json(plain: dict[str, Any]) -> dict[str, Any]:
    """Plain values as an engine without types of its own carries them."""
    found: dict[str, Any] = json.loads(json.dumps(plain))
    return found


def test_a_request_survives_as_json_and_its_site_is_the_one_that_received_it() -> None:
    found = request_from(as_json(plain_request(REQUEST)), {}, "oak")

    assert {**vars(found), "client": 0, "weights": 0} == {
        **vars(REQUEST),
        "client": 0,
        "weights": 0,
    }
    assert found.client == "oak"


def test_the_id_of_a_run_is_a_text() -> None:
    plain = as_json(plain_request(REQUEST))
    with pytest.raises(TypeError, match="run_id is a int, not a text"):
        request_from({**plain, "run_id": 7}, {}, "elm")


numbers = st.floats(allow_nan=True) | st.integers(-5, 5)
estimates = st.builds(Estimate, st.floats(), st.none() | st.floats(0, 1), st.integers(1, 9))
measurements = st.dictionaries(
    st.sampled_from(["score", "cka", "train_loss"]),
    numbers | estimates | st.dictionaries(st.text("abc", min_size=1), numbers | estimates),
)


@given(measurements)
def test_every_measurement_survives_to_the_last_bit(measured: dict[str, Any]) -> None:
    sent = Reply("elm", None, 1, measured)

    found = reply_from(as_json(plain_reply(sent)), None, None, REQUEST)

    assert repr(found.measurements) == repr(measured)


def test_the_client_of_a_reply_is_the_one_that_was_asked() -> None:
    sent = Reply("mallory", None, 1)
    assert reply_from(as_json(plain_reply(sent)), None, None, REQUEST).client == "elm"


@pytest.mark.parametrize("written", [{"format": FORMAT + 1, "package": "9.0.0"}, {}])
def test_another_format_of_messages_is_refused_and_both_versions_are_named(
    written: dict[str, Any],
) -> None:
    request = as_json(plain_request(REQUEST))
    reply = as_json(plain_reply(REPLY))
    for plain in (request, reply):
        del plain["format"], plain["package"]
        plain.update(written)
    named = written.get("package", "of another version")
    words = (
        rf"has monai_fairfl {named} .* has {__version__} \(format {FORMAT}\): install one version"
    )
    with pytest.raises(ValueError, match=f"the server {words}"):
        request_from(request, {}, "elm")
    with pytest.raises(ValueError, match=f"this site {words}"):
        reply_from(reply, None, None, REQUEST)


def test_a_site_that_cannot_read_the_request_says_so_whatever_its_version() -> None:
    plain = {**as_json(plain_reply(REPLY)), "format": FORMAT + 1, "error": "install one version"}
    assert reply_from(plain, None, None, REQUEST).error == "install one version"


def test_half_of_a_character_in_an_error_does_not_keep_the_report_from_being_written() -> None:
    plain = {**as_json(plain_reply(REPLY)), "error": "no \ud800 cases"}
    error = reply_from(plain, None, None, REQUEST).error
    assert error == "no ? cases" and error.encode("utf-8")


def nested(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {"mean": 0.5}
    for _ in range(depth):
        found = {"mean": found}
    return found


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("measurements", {"score": nested(50_000)}, "'score' is nested deeper than one level"),
        ("measurements", {"score": {str(n): 0.5 for n in range(10_001)}}, "more than 10000"),
        ("measurements", {str(n): 0.5 for n in range(10_001)}, "more than 10000"),
        ("measurements", {"score": [0.5] * 100}, "'score' has 100 entries, at most 3"),
        ("measurements", {"x" * 129: 0.5}, "name is no text of at most 128"),
        ("measurements", {"score": {"x" * 129: 0.5}}, "name is no text of at most 128"),
        ("measurements", [0.5], "a list, not a mapping"),
        ("labelled", [True] * 100_001, "labelled has 100001 entries"),
        ("run", {"a": "mapping"}, "run is a dict, not a text"),
        ("state_round", "last", "state_round is a str, not a whole number"),
        ("measurements", {"\ud800": 0.5}, "name holds half of a character: '\\ud800'"),
        ("measurements", {"score": {"\ud800": 0.5}}, "name holds half of a character"),
        ("id", [0], "id is a list, not a whole number"),
        ("id", 3.0, "id is a float, not a whole number"),
        ("round", {"a": 1}, "round is a dict, not a whole number"),
        ("round", True, "round is a bool, not a whole number"),
    ],
)
def test_a_reply_that_is_too_large_or_too_deep_is_an_error_of_its_client_alone(
    field: str, value: Any, says: str
) -> None:
    """Fault 51: nothing is made of a bomb."""
    with pytest.raises(UNREADABLE) as refused:
        reply_from({**plain_reply(REPLY), field: value}, None, None, REQUEST)

    found = unreadable(REQUEST, refused.value)
    assert found.client == "elm" and "cannot be read" in str(found.error)
    assert says in str(found.error) and len(str(found.error)) < 300
