# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fed-LWR: the worked weights of layers, phase two, and what is done where layers are missing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from helpers.driving import CLIENTS, GOLDEN, agree, drive, values

from monai_fairfl import ModelSpec, Reply, Request, RoundResult, Strategy
from monai_fairfl.errors import FederationError
from monai_fairfl.strategies import FedLWR, Mixed

WORKED = GOLDEN["fedlwr"]
LAYERS = ("first", "second", "third")
SPEC = ModelSpec(
    tuple(f"{layer}.weight" for layer in LAYERS),
    layers={f"{layer}.weight": layer for layer in LAYERS},
)
LOCAL = dict(zip(CLIENTS, WORKED["layer1_params"], strict=True))
SIMILARITY = dict(zip(LAYERS, WORKED["delta_layers_x_clients"], strict=True))


def one_round(
    strategy: Strategy,
    missing: Mapping[str, tuple[str, ...]] = {},
    silent: str = "",
) -> tuple[RoundResult, list[list[Request]]]:
    """One round of clients whose layers become LOCAL from zero.

    Args:
        strategy: is started first.
        missing: client -> layers that it does not compare.
        silent: a client that does not answer in phase two.
    """

    def answer(request: Request) -> Reply | None:
        if request.task == "train":
            local = torch.tensor(LOCAL[request.client], dtype=torch.float64)
            return request.reply({name: local.clone() for name in SPEC.parameters}, 1)
        if request.client == silent:
            return None
        (name,) = request.measure
        column = CLIENTS.index(request.client)
        similarities = {}
        for layer, row in SIMILARITY.items():
            if layer not in missing.get(request.client, ()):
                similarities[layer] = row[column]
        measured = {name: {"mean": 0.5, **similarities}} if similarities else {}
        return request.reply(measurements=measured)

    zero = {name: torch.zeros(2, dtype=torch.float64) for name in SPEC.parameters}
    strategy.start(zero, CLIENTS, SPEC)
    return drive(strategy, CLIENTS, answer, SPEC)


def weights_of(result: RoundResult, layer: str) -> list[float]:
    return values(result.aggregation[layer])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("variant", "key"), [("recommended", "rho_code_clipped"), ("paper", "rho_paper")]
)
def test_layer_weights_are_the_worked_ones(variant: str, key: str) -> None:
    result, _ = one_round(FedLWR(variant=variant))
    rows = [weights_of(result, layer) for layer in LAYERS]
    agree(rows, WORKED[key])
    assert all(sum(row) == pytest.approx(1, abs=1e-12) and min(row) >= 0 for row in rows)
    assert values(result.contributions) == pytest.approx(np.mean(rows, axis=0))


def test_phase_two_sends_the_plain_mean_and_asks_for_features_only() -> None:
    _, (train, compare) = one_round(FedLWR())
    anchor = np.mean(WORKED["layer1_params"], axis=0)
    assert all(request.task == "train" for request in train)
    for request in compare:
        assert request.task == "measure" and request.measure == ("cka",)
        np.testing.assert_allclose(request.weights["second.weight"], anchor)
    for variant, key in (("released", "cka_unbiased"), ("paper", "cka_training")):
        assert one_round(FedLWR(variant=variant))[1][1][0].context == {key: 1.0}


def test_who_is_gone_in_phase_two_is_not_averaged() -> None:
    result, _ = one_round(FedLWR(reward=Mixed()), silent="2")
    of_first: Mapping[str, float] = result.aggregation["first"]  # type: ignore[assignment]
    assert set(of_first) == {"1", "3"}
    expected = sum(of_first[client] * torch.tensor(LOCAL[client]) for client in ("1", "3"))
    np.testing.assert_allclose(result.weights["first.weight"], expected, rtol=1e-6)


def test_what_a_client_did_not_measure_is_the_mean_of_the_others_and_noted() -> None:
    result, _ = one_round(FedLWR(), {"2": ("first",)})
    expected = np.array([0.05, (0.05 + 0.4) / 2, 0.4])
    np.testing.assert_allclose(weights_of(result, "first"), expected / expected.sum())
    assert set(result.notes) == {"2"}
    with pytest.raises(FederationError, match="cka"):
        one_round(FedLWR(), {client: LAYERS for client in CLIENTS})
