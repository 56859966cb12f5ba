# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.updates import START, clients_judged, honest, replies_with, statistics_of

from monai_fairfl.guards import BatchStatistics

NAMES = "ABCDE"


def judged(**of_one: dict[str, torch.Tensor]) -> tuple[list[str], str]:
    """Who is judged where some clients have other statistics, and the first reason."""
    replies = replies_with(honest(NAMES), of_one)
    verdicts = BatchStatistics().check(replies)
    reason = next(iter(verdicts.values())).reason if verdicts else ""
    assert all(verdict.action == "quarantine" for verdict in verdicts.values())
    return clients_judged(verdicts, replies), reason


def test_a_negative_variance_is_impossible() -> None:
    found, reason = judged(B=statistics_of(variance=-1e-6))
    assert found == ["B"] and "'norm.running_var' has a negative variance" in reason


@pytest.mark.parametrize("batches", [-1, 2**31 + 1, 2**53, 2**63 - 1])
def test_a_counter_that_nobody_can_have_counted_is_impossible(batches: int) -> None:
    found, reason = judged(B=statistics_of(batches=batches))
    assert found == ["B"] and f"counts {batches} batches" in reason


@pytest.mark.parametrize("sent", [2**31, 2**53])
def test_who_goes_on_from_a_large_counter_is_no_culprit(sent: int) -> None:
    start = {**START, **statistics_of(batches=sent)}
    counted = dict.fromkeys(NAMES, statistics_of(batches=sent + 10))
    # Its own counter, of a client that does not take over those that it is sent.
    counted["D"] = statistics_of(batches=10)
    assert BatchStatistics().check(replies_with(honest(NAMES), counted, start=start)) == {}
    counted["E"] = statistics_of(batches=sent + 2**31 + 1)
    replies = replies_with(honest(NAMES), counted, start=start)
    assert clients_judged(BatchStatistics().check(replies), replies) == ["E"]


def test_a_client_that_was_sent_no_counter_counts_from_zero() -> None:
    start = {name: tensor for name, tensor in START.items() if name not in statistics_of()}
    counted = {"B": statistics_of(batches=2**31 + 1), "C": statistics_of(batches=2**31)}
    replies = replies_with(honest(NAMES), counted, start=start)
    assert clients_judged(BatchStatistics().check(replies), replies) == ["B"]


def test_what_was_sent_may_come_back() -> None:
    impossible = {"norm.running_var": -torch.ones(4), "norm.num_batches_tracked": torch.tensor(-1)}
    sent = {**statistics_of(), **impossible}
    start = {**replies_with(honest("A")).start(replies_with(honest("A"))[0]), **sent}
    replies = replies_with(honest(NAMES), dict.fromkeys(NAMES, sent), start=start)
    assert BatchStatistics().check(replies) == {}


@pytest.mark.parametrize("variance", [201.0, 1 / 201])
def test_a_variance_far_from_all_others_is_found_with_its_factor(variance: float) -> None:
    found, reason = judged(D=statistics_of(variance=variance))
    assert found == ["D"] and "variances by a factor of 20" in reason


def test_a_mean_far_from_all_others_is_found_with_its_distance() -> None:
    found, reason = judged(D=statistics_of(mean=20.1))
    assert found == ["D"] and "means by 20.1 standard deviations (allowed: 20)" in reason


@pytest.mark.parametrize(
    "unusual",
    [
        statistics_of(variance=199.0),
        statistics_of(variance=1 / 190),
        statistics_of(mean=19.9),
        statistics_of(batches=100_000),
        {},
    ],
)
def test_unusual_and_plausible_ones_pass(unusual: dict[str, torch.Tensor]) -> None:
    assert judged(D=unusual) == ([], "")


def test_channels_without_variance_do_not_differ() -> None:
    assert judged(D=statistics_of(variance=0.0), E=statistics_of(variance=1e-9))[0] == ["D", "E"]
    dead = {client: statistics_of(variance=10.0**-power) for power, client in enumerate("ABCDE", 6)}
    assert judged(**dead) == ([], "")


def test_of_two_clients_none_is_far_from_the_others() -> None:
    replies = replies_with(honest("AB"), {"A": statistics_of(variance=1e6)})
    assert BatchStatistics().check(replies) == {}


def test_empty_and_differently_shaped_buffers_and_models_without_any_pass() -> None:
    usual = statistics_of()
    longer = {**usual, "norm.running_var": torch.full((5,), 1e6)}
    empty = {name: torch.zeros(0) for name in usual}
    assert judged(A=longer) == ([], "")
    assert judged(**dict.fromkeys(NAMES, empty)) == ([], "")
    assert judged(**dict.fromkeys(NAMES, {})) == ([], "")


def test_infinite_values_that_were_sent_are_not_compared() -> None:
    infinite = {**statistics_of(), "norm.running_mean": torch.full((4,), -np.inf)}
    assert judged(**dict.fromkeys(NAMES, infinite)) == ([], "")
