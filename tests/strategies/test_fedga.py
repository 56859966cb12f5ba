# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from helpers.driving import (
    CLIENTS,
    COMMON,
    GOLDEN,
    SPEC,
    UPDATES,
    play,
    play_round,
    replies_of,
    values,
    vector,
)

from monai_fairfl.errors import ConfigError
from monai_fairfl.strategies import FedGA, Mixed, Sparsified, compose

WORKED = GOLDEN["fedga"]
LOCAL = dict(zip(CLIENTS, WORKED["loss_local"], strict=True))
GLOBAL = dict(zip(CLIENTS, WORKED["loss_global"], strict=True))

# The local loss of round 0 belongs to the average that is measured at the start of round 1.
ROUNDS = [
    {c: {"global_loss": 9.0, "local_loss": LOCAL[c]} for c in CLIENTS},
    {c: {"global_loss": GLOBAL[c], "local_loss": 9.0} for c in CLIENTS},
]


@pytest.mark.parametrize(
    ("strategy", "key"),
    [
        (FedGA(), "orig_step0_2"),
        (FedGA(0.05, True), "paper_centred_d0_05"),
        (FedGA(variant="released"), "paper_centred_d0_05"),
    ],
)
def test_weights_grow_where_averaging_cost_most(strategy: FedGA, key: str) -> None:
    strategy.rounds_planned = 10
    first, second = play(strategy, [UPDATES] * 2, ROUNDS, COMMON["w0"])
    assert values(first.aggregation) == pytest.approx([1 / 3] * 3)
    np.testing.assert_allclose(values(second.details["gap"]), WORKED["gap"], atol=2e-6)
    np.testing.assert_allclose(values(second.aggregation), WORKED[key], atol=2e-6)


def test_the_steps_shrink_to_the_end_of_the_run() -> None:
    strategy = FedGA()
    strategy.rounds_planned = 10
    strategy.rounds = 6
    strategy.clients = list(CLIENTS)
    moved = strategy._adjusted(dict.fromkeys(CLIENTS, 1 / 3), {"1": 0.1, "2": 0.0, "3": 0.0})
    assert moved["1"] - 1 / 3 == pytest.approx(0.2 / 3 * (1 - 5 / 10))


def test_a_client_that_was_absent_keeps_its_weight() -> None:
    strategy = FedGA()
    strategy.rounds_planned = 10
    play(strategy, [{c: UPDATES[c] for c in ("1", "2")}], [ROUNDS[0]], COMMON["w0"])
    assert strategy._adjusted({"1": 0.3, "2": 0.3, "3": 0.4}, {"1": 0.1, "2": -0.1})["3"] == 0.4


def test_a_gap_is_of_one_clients_own_two_losses_or_the_mean_of_the_others() -> None:
    plain, lost = FedGA(), FedGA()
    plain.rounds_planned = lost.rounds_planned = 10
    even: list[dict[str, dict[str, float]]] = [{}, {}]
    for client, loss in zip(CLIENTS, (0.4, 0.5, 0.9), strict=True):
        even[0][client] = {"global_loss": 1.0, "local_loss": loss}
        even[1][client] = {"global_loss": loss + 0.05, "local_loss": loss}
    silent = [{**even[0], "3": {"global_loss": 1.0}}, even[1]]
    expected = values(play(plain, [UPDATES] * 2, even, COMMON["w0"])[1].aggregation)
    first, second = play(lost, [UPDATES] * 2, silent, COMMON["w0"])
    assert set(second.details["gap"]) == {"1", "2"} and "mean of the others" in first.notes["3"]
    assert values(second.aggregation) == pytest.approx(expected) == [1 / 3] * 3


def test_a_gap_is_of_the_model_that_went_into_the_average() -> None:
    strategy = FedGA()
    strategy.rounds_planned = 10
    strategy.start({"w": vector(COMMON["w0"])}, CLIENTS, SPEC)
    training = strategy.round(CLIENTS)
    next(training)
    with pytest.raises(StopIteration) as played:
        training.send(replies_of(UPDATES, measured=ROUNDS[0]).scaled({0: 0.1}))
    first = played.value.value
    assert "not the one that went into the average" in first.notes["1"]

    strategy.weights = first.weights
    second = play_round(strategy, UPDATES, ROUNDS[1])
    gaps = {c: GLOBAL[c] - LOCAL[c] for c in CLIENTS if c != "1"}
    assert second.details["gap"] == pytest.approx(gaps)


@pytest.mark.parametrize("reward", [Mixed(), Sparsified()])
def test_a_gap_needs_clients_that_receive_the_average(reward: Mixed | Sparsified) -> None:
    with pytest.raises(ConfigError, match="with a reward no client receives the average"):
        compose(FedGA(), reward=reward)
    assert compose(FedGA(), cap=1.5).parts.cap == 1.5
