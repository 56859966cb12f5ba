# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Which measurements a server takes: names that were asked for, values in their range."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from monai_fairfl.protocol.measured import (
    LEAST_PARTS,
    MOST_CASES,
    MOST_LISTED,
    MOST_NAME,
    MOST_VALUES,
    RANGES,
    Checked,
    Expected,
    Range,
)
from monai_fairfl.protocol.messages import Measure, Reply, Request
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.protocol.values import IN_TRAINING, IN_VALIDATION, Estimate, to_json
from monai_fairfl.report.numbers import Number, numbers_by_class
from monai_fairfl.run_folder.ledger import number_in


def checked(
    measured: dict[Any, Any], asked: tuple[str, ...] = tuple(RANGES), **context: float
) -> Checked:
    request = Measure("A", {}, asked, context)
    return Expected().checked(Reply("A", None, 0, measured), request)


@pytest.mark.parametrize("name", RANGES)
def test_every_measurement_is_taken_at_its_limits_and_dropped_beyond(name: str) -> None:
    allowed = RANGES[name]
    width = min(allowed.most - allowed.least, 100.0)
    for value in (allowed.least, allowed.most, allowed.most + 1e-7 * width):
        assert checked({name: value}).usable == {name: value}
    for value in (allowed.least - 1e-5 * width, allowed.most + 1e-5 * width):
        for form in (value, Estimate(value), {"mean": allowed.most, "gland": value}):
            found = checked({name: form})
            assert not found.usable and not found.not_finite
            assert str(allowed) in found.dropped[name] and "setting ranges" in found.dropped[name]


def test_only_the_unbiased_similarity_may_leave_zero_to_one() -> None:
    outside = {"mean": 0.5, "layer": -0.2}
    assert checked({"cka": outside}).dropped
    assert checked({"cka": outside}, cka_unbiased=1.0).usable == {"cka": outside}
    assert checked({"cka": {"mean": 0.5, "layer": -20.0}}, cka_unbiased=1.0).dropped


def test_what_the_request_did_not_ask_for_is_dropped_unless_scripts_answer() -> None:
    sent = {"score": 0.5, "global_loss": 0.5, "accuracy": 0.9}
    found = checked(sent, ("score",))
    assert found.usable == {"score": 0.5}
    assert found.dropped == dict.fromkeys(
        ("global_loss", "accuracy"), "the request did not ask for it"
    )
    request = Measure("A", {}, ("score",))
    free = Expected(unasked=True).checked(Reply("A", None, 0, sent), request)
    assert free.usable == sent and not free.dropped


def test_counts_in_place_of_a_test_score_need_not_be_asked_for() -> None:
    counts = {IN_VALIDATION: Estimate(2.0, None, 5), IN_TRAINING: Estimate(0.0, None, 5)}
    assert checked(counts, ("test_score",)).usable == counts
    assert checked({IN_VALIDATION: -1.0}, ("test_score",)).dropped


def test_names_are_texts_of_bounded_length() -> None:
    longest = "x" * MOST_NAME
    assert checked({longest: 0.5}, (longest,)).usable
    for name in (longest + "x", 7):
        assert "its name is no text" in "".join(checked({name: 0.5}, (name,)).dropped.values())
    in_it = checked({"cka": {"mean": 0.5, longest + "x": 0.5}})
    assert in_it.dropped["cka"] == (
        f"a name in it is no text of at most {MOST_NAME} printable characters"
    )


def test_a_reply_holds_a_bounded_number_of_values() -> None:
    full = {"mean": 0.5, **{str(number): 0.5 for number in range(MOST_VALUES - 1)}}
    request = Request("A", "measure", {}, ("cka", "score"))
    reply = Reply("A", None, 0, {"cka": full, "score": 0.5})
    found = Expected().checked(reply, request, most_parts=lambda: MOST_VALUES)
    assert list(found.usable) == ["cka"]
    assert found.dropped == {"score": f"the reply has more than {MOST_VALUES} values"}


def test_a_measurement_has_no_more_parts_than_the_model_has_layers_and_classes() -> None:
    def dropped(parts: int, parameters: int, classes: int) -> dict[str, str]:
        names = tuple(f"layer{number}.weight" for number in range(parameters))
        spec = ModelSpec(names, output=("layer0", 0))
        request = Request("A", "measure", {names[0]: torch.zeros(classes, 1)}, ("cka",))
        sent = {"mean": 0.5, **{str(number): 0.5 for number in range(parts - 1)}}
        replies = Replies([Reply("A", None, 0, {"cka": sent})], [request], spec)
        return dict(replies.dropped.get(request.id, {}))

    assert not dropped(LEAST_PARTS, 1, 2)
    assert dropped(LEAST_PARTS + 1, 1, 2) == {"cka": f"it has more than {LEAST_PARTS} values"}
    assert not dropped(321, 200, 120)
    assert dropped(322, 200, 120) == {"cka": "it has more than 321 values"}


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31m", "\ud800"])
def test_a_name_that_cannot_be_printed_is_dropped(name: str) -> None:
    assert not checked({name: 0.5}, (name,)).usable
    found = checked({"cka": {"mean": 0.5, name: 0.5}})
    assert "printable" in found.dropped["cka"]
    # What is recorded in its place can be written everywhere.
    assert all(key.isprintable() for key in checked({name: 0.5}, (name,)).dropped)


@pytest.mark.parametrize("names", [("value",), ("stderr", "n"), ("value", "stderr", "n")])
def test_a_class_may_have_the_name_of_an_estimates_field(names: tuple[str, ...]) -> None:
    sent = {"mean": Estimate(1.0, 0.1, 5), **dict.fromkeys(names, 0.44)}
    plain = to_json(checked({"score": sent}).usable["score"])
    assert number_in(plain) == 1.0
    assert numbers_by_class(plain)["mean"] == Number(1.0, 0.1, 5)
    assert {name: number.value for name, number in numbers_by_class(plain).items()} == {
        "mean": 1.0,
        **dict.fromkeys(names, 0.44),
    }
    assert number_in(to_json(Estimate(0.3, None, 5))) == 0.3


def test_a_record_lists_a_bounded_number_of_dropped_measurements() -> None:
    found = checked({f"made up {number}": 0.5 for number in range(100_000)})
    assert len(found.dropped) == MOST_LISTED + 1
    assert found.dropped["..."] == f"and {100_000 - MOST_LISTED} more"


@pytest.mark.parametrize(
    "value",
    [
        {"mean": {"mean": 0.5}},
        Estimate(0.5, -0.1, 3),
        Estimate(0.5, 0.1, 0),
        Estimate(0.5, 0.1, -5),
        Estimate(0.5, 0.1, True),
    ],
)
def test_nested_mappings_negative_errors_and_impossible_counts_are_malformed(value: Any) -> None:
    found = checked({"score": value})
    assert found.not_finite == ["score"] and not found.usable and not found.dropped


def test_a_mean_of_more_cases_than_a_site_has_is_not_believed() -> None:
    assert checked({"score": Estimate(0.5, 0.1, MOST_CASES)}).usable
    assert "observations" in checked({"score": Estimate(0.5, 0.1, MOST_CASES + 1)}).dropped["score"]


def test_a_measurement_that_nobody_declared_is_bounded_all_the_same() -> None:
    assert checked({"mine": 1e5}, ("mine",)).usable == {"mine": 1e5}
    assert "no declared unit" in checked({"mine": 1e7}, ("mine",)).dropped["mine"]
    declared = Expected({"mine": Range("steps", 0, 1e9)})
    request = Measure("A", {}, ("mine",))
    assert declared.checked(Reply("A", None, 0, {"mine": 1e7}), request).usable


def test_what_was_dropped_stays_on_record_when_replies_are_built_again() -> None:
    request = Measure("A", {}, ("score",))
    replies = Replies([Reply("A", None, 0, {"score": 85.0})], [request], ModelSpec(()))
    assert replies[0].measurements == {} and "85" in replies.dropped[0]["score"]
    assert replies.rebuilt(replies, {}, None).dropped == replies.dropped


@pytest.mark.parametrize("limits", [(1, 0), (0, 0), (0, float("inf")), (float("nan"), 1)])
def test_a_range_has_two_finite_limits_in_their_order(limits: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="range of Dice must be two finite numbers"):
        Range("Dice", *limits)
