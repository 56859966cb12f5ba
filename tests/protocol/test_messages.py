# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import math

import pytest
import torch

from monai_fairfl.protocol.checks import refusal
from monai_fairfl.protocol.measured import Expected
from monai_fairfl.protocol.messages import Measure, Reply, Request, Train
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.values import Estimate, to_json, value_of

SPEC = ModelSpec(("b", "w"), {}, ("count", "mean"), {"b": "fc", "w": "fc"}, ("fc", 0))
SENT = {
    "w": torch.zeros(2, 3),
    "b": torch.zeros(2),
    "mean": torch.zeros(2),
    "count": torch.tensor(0),
}
REQUEST = Request("A", "train", SENT, id=4, run="r", round=2)


def reply(**changes: object) -> Reply:
    fields = {
        "client": "A",
        "update": {"w": torch.ones(2, 3), "b": torch.ones(2)},
        "num_samples": 5,
        "buffers": {"mean": torch.ones(2), "count": torch.tensor(1)},
        "id": 4,
        "run": "r",
        "round": 2,
    }
    return Reply(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_request_makes_its_reply() -> None:
    assert REQUEST.reply() == Reply("A", None, 0, id=4, run="r", round=2)
    given = {"measurements": {"score": 0.5}, "num_steps": 3}
    made = REQUEST.reply({}, 5, **given)
    assert made == Reply("A", {}, 5, id=4, run="r", round=2, **given)  # type: ignore[arg-type]


def test_a_well_formed_reply_is_taken() -> None:
    assert refusal(REQUEST, reply(), SPEC) is None
    assert refusal(REQUEST, reply(buffers=None), SPEC) is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"id": 5}, "answers request 5"),
        ({"error": "full\n\x1b[2J oak: noise \ud800"}, "error: full  [2J oak: noise  "),
        (
            {"update": {"w": torch.ones(2, 3).to_sparse(), "b": torch.ones(2)}},
            "'w' is sparse, or has no data",
        ),
        (
            {"buffers": {"mean": torch.ones(2, device="meta"), "count": torch.tensor(1)}},
            "'mean' is sparse, or has no data",
        ),
        ({"update": {"w": [[1.0] * 3] * 2, "b": torch.ones(2)}}, "'w' is a list, not a tensor"),
        ({"round": 1}, "round 1"),
        ({"run": "old"}, "run old"),
        ({"update": None}, "no update"),
        ({"update": {"w": torch.ones(2, 3)}}, "missing ['b']"),
        (
            {"update": {"w": torch.ones(2, 3), "b": torch.ones(2), "x": torch.ones(1)}},
            "unexpected ['x']",
        ),
        ({"update": {"w": torch.ones(3, 2), "b": torch.ones(2)}}, "shape (3, 2), expected (2, 3)"),
        (
            {"update": {"w": torch.ones(2, 3, dtype=torch.int64), "b": torch.ones(2)}},
            "type torch.int64",
        ),
        ({"buffers": {"mean": torch.ones(3)}}, "'mean' has shape (3,)"),
        ({"num_samples": 0}, "num_samples"),
        ({"num_samples": -3}, "-3"),
        ({"num_samples": True}, "True"),
        ({"num_samples": 1.5}, "1.5"),
        ({"num_samples": "many"}, "'many'"),
        ({"num_steps": -1}, "num_steps"),
        ({"error": "disk full"}, "error: disk full"),
    ],
)
def test_a_malformed_reply_is_refused_with_the_reason(
    changes: dict[str, object], says: str
) -> None:
    reason = refusal(REQUEST, reply(**changes), SPEC)
    assert reason is not None and says in reason


def test_unknown_context_key_or_task_is_an_error_naming_client_and_known_keys() -> None:
    with pytest.raises(ValueError, match=r"'A': unknown context key 'sam_roh'.*sam_rho"):
        Train("A", {}, context={"sam_roh": 0.1})
    with pytest.raises(ValueError, match="'A'.*'dance'"):
        Request("A", "dance", {})


def test_requests_are_built_with_their_task() -> None:
    assert Train("A", SENT, ("train_loss",), {"sam_rho": 0.1}).context == {"sam_rho": 0.1}
    assert Measure("A", SENT, ("score",)).task == "measure"


def test_measurements_that_are_not_finite_numbers_are_dropped_and_named() -> None:
    measured = {
        "a": 1.0,
        "b": math.nan,
        "c": Estimate(0.5, None, 3),
        "d": Estimate(math.inf),
        "e": {"mean": 0.5, "cup": math.nan},
        "f": {"mean": Estimate(0.4)},
        "g": True,
        "h": "1.0",
        "i": {},
    }
    found = Expected().checked(reply(measurements=measured), None)
    assert sorted(found.usable) == ["a", "c", "f"]
    assert found.not_finite == ["b", "d", "e", "g", "h", "i"]


def test_value_of_reads_numbers_estimates_and_mappings() -> None:
    assert [value_of(m) for m in (0.5, Estimate(0.6), {"mean": Estimate(0.7), "cup": 0.1})] == [
        0.5,
        0.6,
        0.7,
    ]


def test_spec_survives_json_and_adds_aliases() -> None:
    spec = ModelSpec(("w",), {"again.w": "w"}, ("n",), {"w": "", "n": ""}, ("", 1))
    assert ModelSpec.from_json(spec.to_json()) == spec
    assert spec.with_aliases({"w": torch.ones(1)})["again.w"].item() == 1.0


def test_to_json_turns_nan_into_null() -> None:
    assert to_json({"a": [1.0], "b": float("inf")}) == {"a": [1.0], "b": None}
    assert to_json([(1.0, math.inf), {"c": [Estimate(math.nan)]}]) == [
        [1.0, None],
        {"c": [{"value": None, "stderr": None, "n": 1}]},
    ]


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"gland": 0.5},
        {"mean": {"mean": 0.5}},
        {"mean": 0.5, "gland": True},
        {"mean": 0.5, "gland": math.inf},
        {"mean": "0.5"},
        Estimate({"mean": 0.5}),  # type: ignore[arg-type]
        Estimate(True),
        Estimate(0.5, math.nan, 2),
        Estimate(0.5, "0.1", 2),  # type: ignore[arg-type]
        Estimate(0.5, None, 2.0),  # type: ignore[arg-type]
        10**400,
        {"mean": 10**400},
        [0.5],
        None,
    ],
)
def test_a_measurement_that_is_no_number_estimate_or_mapping_with_a_mean_is_not_usable(
    value: object,
) -> None:
    found = Expected().checked(reply(measurements={"score": value, "loss": 1}), None)
    assert found.usable == {"loss": 1} and found.not_finite == ["score"]


@pytest.mark.parametrize(
    "value",
    [
        1,
        0.5,
        Estimate(0.5),
        Estimate(1, 0.1, 3),
        {"mean": 0.5},
        {"mean": Estimate(0.5), "gland": 1},
    ],
)
def test_a_usable_measurement_has_one_number_and_is_plain_json(value: object) -> None:
    found = Expected().checked(reply(measurements={"score": value}), None)
    usable = found.usable
    assert usable == {"score": value} and not found.not_finite and not found.dropped
    assert math.isfinite(value_of(usable["score"])) and json.dumps(to_json(usable), allow_nan=False)
