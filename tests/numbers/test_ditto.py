# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Ditto: the server's half is FedAvg, the personal models stay at the clients."""

from __future__ import annotations

from helpers.driving import CLIENTS, SAMPLES, play, values

from monai_fairfl.strategies import Ditto, FedAvg


def test_the_global_model_is_fedavgs_and_clients_are_sent_the_pull() -> None:
    strategy = Ditto(lam=0.3)
    (result,) = play(strategy, samples=SAMPLES)
    (plain,) = play(FedAvg(), samples=SAMPLES)
    assert result.weights["w"].equal(plain.weights["w"]) and result.rewards is None
    assert values(result.aggregation) == values(plain.aggregation)
    for request in next(strategy.round(CLIENTS)):
        assert request.context == {"ditto_lambda": 0.3}


def test_the_authors_code_averages_alike() -> None:
    (released,) = play(Ditto(variant="released"), samples=SAMPLES)
    assert values(released.aggregation) == [1 / 3] * 3
