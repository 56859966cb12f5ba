# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedISM: weights are powers of sharpness, smoothed over rounds."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.driving import (
    CLIENTS,
    COMMON,
    GOLDEN,
    SPEC,
    UPDATES,
    agree,
    drive,
    play,
    reported,
    values,
    vector,
)

from monai_fairfl import Reply, Request
from monai_fairfl.strategies import FedISM

WORKED = GOLDEN["fedism"]
FIRST, SECOND = (reported("sharpness", WORKED[f"sharpness_round{i}"]) for i in range(2))


def test_weights_are_powers_of_sharpness() -> None:
    for q in (0.5, 1, 2, 5):
        (result,) = play(FedISM(q=q), [UPDATES], [FIRST])
        agree(result.aggregation, WORKED[f"weights_q{q}"])
    (result,) = play(FedISM(), [UPDATES], [FIRST])
    agree(result.weights["w"], WORKED["aggregated_with_q2_round0"], 3e-6)


def test_beta_is_on_the_new_value() -> None:
    old, new = np.array(WORKED["weights_q2"]), np.array(WORKED["raw_round1_q2"])
    worked = WORKED["moving_average_round1_beta0.5"]
    for beta, expected in ((1.0, new), (0.5, worked), (0.3, 0.3 * new + 0.7 * old)):
        _, second = play(FedISM(beta=beta), [UPDATES] * 2, [FIRST, SECOND])
        agree(second.aggregation, expected)


def test_no_sharpness_at_all_is_uniform_and_a_negative_one_weighs_least() -> None:
    for sharpness, expected in (
        ([0.0, -0.1, 0.0], [1 / 3] * 3),
        ([0.02, -0.1, 0.02], [0.5, 0, 0.5]),
    ):
        (result,) = play(FedISM(), [UPDATES], [reported("sharpness", sharpness)])
        assert values(result.aggregation) == pytest.approx(expected, abs=1e-6)


def test_clients_are_asked_to_train_flat() -> None:
    for resets in (True, False):
        strategy = FedISM(reset_optimizer=resets)
        strategy.start({"w": vector(COMMON["w0"])}, CLIENTS, SPEC)
        asked = next(strategy.round(CLIENTS))[0]
        expected = {"sam_rho": 0.05, "gsam_alpha": 0.1, "reset_optimizer": float(resets)}
        assert asked.context == expected and asked.measure == ("sharpness",)


def test_without_salt_sharpness_is_asked_for_beforehand_and_training_is_the_bundles_own() -> None:
    def answer(request: Request) -> Reply:
        if request.task == "train":
            return request.reply({"w": vector(UPDATES[request.client])}, 1)
        return request.reply(measurements=FIRST[request.client])

    strategy = FedISM(salt=False, rho=0.1)
    strategy.start({"w": vector(COMMON["w0"])}, CLIENTS, SPEC)
    result, (asked, trained) = drive(strategy, CLIENTS, answer)
    agree(result.aggregation, WORKED["weights_q2"])
    assert all(request.task == "measure" for request in asked)
    assert all(request.context["sam_rho"] == 0.1 for request in asked)
    for request in trained:
        assert request.task == "train" and tuple(request.context) == ("reset_optimizer",)
