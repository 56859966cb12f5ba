# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from helpers.updates import PARAMETERS, clients_judged, directions, honest, replies_with

from monai_fairfl.guards import DEFAULT, Noise
from monai_fairfl.server.guarding import guarded

NAMES = "ABCDE"


def random_update(seed: int) -> np.ndarray:
    values = np.random.default_rng([seed, 7]).normal(size=PARAMETERS)
    return values / np.linalg.norm(values)


@pytest.mark.parametrize("seed", range(5))
def test_random_numbers_of_the_usual_length_are_found(seed: int) -> None:
    replies = replies_with({**honest(NAMES), "C": random_update(seed)})
    verdicts = Noise().check(replies)
    assert clients_judged(verdicts, replies) == ["C"]
    verdict = verdicts[2]
    assert verdict.action == "quarantine"
    assert f"numbers: {verdict.evidence['in_common']:.3g}, where random numbers" in verdict.reason
    assert verdict.evidence["in_common"] < 4 < 40 < verdict.evidence["among_others"]


@pytest.mark.parametrize("sign", [1, -1])
def test_a_little_in_common_is_enough_and_its_sign_does_not_count(sign: int) -> None:
    updates = honest(NAMES)
    common = sum(updates.values()) / np.linalg.norm(sum(updates.values()))
    outlier = 0.15 * sign * common + np.sqrt(1 - 0.15**2) * random_update(0)
    assert Noise().check(replies_with({**updates, "C": outlier})) == {}


def test_where_the_others_have_nothing_in_common_nobody_is_noise() -> None:
    updates = dict(zip(NAMES, directions(5), strict=True))
    assert Noise().check(replies_with(updates)) == {}


def test_of_two_clients_none_is_noise() -> None:
    assert Noise().check(replies_with({"A": honest("A")["A"], "B": random_update(0)})) == {}


def test_a_client_that_trains_a_small_layer_only_is_not_judged() -> None:
    updates = honest(NAMES)
    bias_only = np.zeros(PARAMETERS)
    bias_only[2400:2403] = [0.5, -0.3, 0.1]
    assert Noise().check(replies_with({**updates, "C": bias_only})) == {}


def test_two_copies_of_the_same_noise_do_not_vouch_for_each_other() -> None:
    noise = random_update(1)
    replies = replies_with({**honest(NAMES), "X": noise, "Y": noise})
    passed, verdicts = guarded(replies, DEFAULT)
    assert passed.clients == list(NAMES)
    # They counted as one, and each of them is noise by itself.
    assert {client: [verdict.guard for verdict in of] for client, of in verdicts.items()} == {
        "X": ["Noise"],
        "Y": ["Noise"],
    }
