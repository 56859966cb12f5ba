# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.driving import CLIENTS, GOLDEN, drive
from monai.networks.nets import BasicUNet, UNet
from torch import nn

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.measurements.features import scored_layers
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.model_spec import ModelSpec, read_spec
from monai_fairfl.strategies import FedLWR, Mixed, Reward, Sparsified, Strategy, compose
from monai_fairfl.strategies.base import RoundResult

WORKED = GOLDEN["fedlwr"]
LAYERS = ("first", "second", "third")
SPEC = ModelSpec(
    tuple(f"{layer}.weight" for layer in LAYERS),
    layers={f"{layer}.weight": layer for layer in LAYERS},
)
LOCAL = dict(zip(CLIENTS, WORKED["layer1_params"], strict=True))
SIMILARITY = dict(zip(LAYERS, WORKED["delta_layers_x_clients"], strict=True))


def one_round(
    strategy: Strategy, missing: Mapping[str, tuple[str, ...]] = {}, silent: str = ""
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
            update = {name: local.clone() for name in SPEC.parameters}
            return Reply(request.client, update, 1)
        if request.client == silent:
            return None
        (name,) = request.measure
        column = CLIENTS.index(request.client)
        similarities = {}
        for layer, row in SIMILARITY.items():
            if layer not in missing.get(request.client, ()):
                similarities[layer] = row[column]
        measured = {name: {"mean": 0.5, **similarities}} if similarities else {}
        return Reply(request.client, None, 0, measured)

    zero = {name: torch.zeros(2, dtype=torch.float64) for name in SPEC.parameters}
    strategy.start(zero, CLIENTS, SPEC)
    return drive(strategy, CLIENTS, answer, SPEC)


@pytest.mark.parametrize(
    ("variant", "key"), [("recommended", "rho_code_clipped"), ("paper", "rho_paper")]
)
def test_layer_weights_are_the_worked_ones(variant: str, key: str) -> None:
    result, _ = one_round(FedLWR(variant=variant))
    rows = [[w[c] for c in CLIENTS] for w in (result.aggregation[layer] for layer in LAYERS)]  # type: ignore[index]
    np.testing.assert_allclose(rows, WORKED[key], atol=2e-6)
    assert all(sum(row) == pytest.approx(1, abs=1e-12) and min(row) >= 0 for row in rows)


def test_each_layer_is_averaged_with_its_own_weights() -> None:
    result, _ = one_round(FedLWR())
    np.testing.assert_allclose(
        result.weights["first.weight"], WORKED["layer1_reaggregated_code"], atol=4e-6
    )
    third = np.array(WORKED["rho_code_clipped"][2]) @ np.array(WORKED["layer1_params"])
    np.testing.assert_allclose(result.weights["third.weight"], third, atol=4e-6)


def test_phase_two_sends_the_plain_mean_and_asks_for_features_only() -> None:
    _, (train, compare) = one_round(FedLWR())
    anchor = np.mean(WORKED["layer1_params"], axis=0)
    assert all(request.task == "train" for request in train)
    for request in compare:
        assert request.task == "measure" and request.measure == ("cka",)
        np.testing.assert_allclose(request.weights["second.weight"], anchor)
    assert one_round(FedLWR(similarity="cosine"))[1][1][0].measure == ("feature_cosine",)
    assert one_round(FedLWR(variant="released"))[1][1][0].context == {"cka_unbiased": 1.0}


def test_one_layer_can_decide_for_the_whole_model() -> None:
    result, _ = one_round(FedLWR(layerwise=False, encoder_layer="second"))
    assert [result.aggregation[c] for c in CLIENTS] == pytest.approx(
        WORKED["rho_code_clipped"][1], abs=2e-6
    )
    worked = {
        c: dict(zip(LAYERS, row, strict=True))
        for c, row in zip(CLIENTS, zip(*SIMILARITY.values()), strict=True)
    }
    # What is recorded is the similarity, clipped, whether or not layers decide for themselves.
    for client in CLIENTS:
        clipped = {layer: min(max(value, 1e-4), 0.99) for layer, value in worked[client].items()}
        assert result.details["similarity"][client] == pytest.approx(clipped)
        assert one_round(FedLWR())[0].details["similarity"][client] == pytest.approx(clipped)


def test_a_wrong_encoder_layer_is_refused_before_anything_is_sent() -> None:
    zero = {name: torch.zeros(2) for name in SPEC.parameters}
    words = r"encoder_layer must be .*'first', 'second'.*got 'secnd'; did you mean 'second'\?"
    with pytest.raises(ConfigError, match=f"FedLWR: {words}"):
        FedLWR(layerwise=False, encoder_layer="secnd").start(zero, CLIENTS, SPEC)


def test_an_encoder_layer_that_nobody_scored_ends_the_round() -> None:
    unscored = {client: ("second",) for client in CLIENTS}
    with pytest.raises(ValueError, match="'second' is not a scored layer"):
        one_round(FedLWR(layerwise=False, encoder_layer="second"), unscored)


@pytest.mark.parametrize(
    "network",
    [
        UNet(2, 1, 1, (8, 16, 32, 64), (2, 2, 2), num_res_units=2),
        UNet(2, 1, 1, (8, 16, 32, 64), (2, 2, 2)),
        BasicUNet(2, 1, 1, features=(8, 8, 16, 32, 64, 8)),
    ],
    ids=["residual UNet", "UNet", "BasicUNet"],
)
def test_the_layer_that_decides_is_at_the_bottom_of_a_u_net(network: nn.Module) -> None:
    """Transposed convolutions upwards have more input channels, the first axis of their kernels."""
    strategy = FedLWR(layerwise=False)
    modules = dict(network.named_modules())
    strategy.start(network.state_dict(), CLIENTS, read_spec(network))
    layer = modules[strategy._encoder(dict.fromkeys(sorted(scored_layers(network))))]
    assert isinstance(layer, nn.Conv2d) and layer.out_channels == 64


@pytest.mark.parametrize("reward", [None, Sparsified(), Mixed()])
def test_who_is_gone_in_phase_two_is_not_averaged(reward: Reward | None) -> None:
    strategy = FedLWR() if reward is None else compose(FedLWR(), reward=reward)
    result, _ = one_round(strategy, silent="2")
    assert all(set(weights) == {"1", "3"} for weights in result.aggregation.values())  # type: ignore[union-attr]
    expected = {c: result.aggregation["first"][c] * torch.tensor(LOCAL[c]) for c in ("1", "3")}  # type: ignore[index]
    np.testing.assert_allclose(result.weights["first.weight"], sum(expected.values()), rtol=1e-6)


def test_what_a_client_did_not_measure_is_the_mean_of_the_others_and_noted() -> None:
    result, _ = one_round(FedLWR(), {"2": ("first",)})
    shift = {"1": 0.05, "3": 0.4}
    expected = np.array([shift["1"], sum(shift.values()) / 2, shift["3"]])
    got = [result.aggregation["first"][c] for c in CLIENTS]  # type: ignore[index]
    np.testing.assert_allclose(got, expected / expected.sum())
    assert "absent" in result.notes["2"]
    with pytest.raises(FederationError, match="no client"):
        one_round(FedLWR(), {client: LAYERS for client in CLIENTS})


def test_how_many_layers_are_too_alike_to_tell_is_recorded() -> None:
    result, _ = one_round(FedLWR(clip=(1e-4, 0.9)))
    expected = {
        c: sum(row[i] >= 0.9 for row in SIMILARITY.values()) / 3 for i, c in enumerate(CLIENTS)
    }
    assert result.details["at_clip"] == pytest.approx(expected) and len(set(expected.values())) > 1


def test_a_layer_that_never_leaves_the_clients_has_no_weight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    everything = one_round(FedLWR())[0]
    local_norm = replace(SPEC, norms=("second.weight",)).with_local_norms()
    monkeypatch.setattr(sys.modules[__name__], "SPEC", local_norm)
    found = one_round(FedLWR())[0]
    assert found.aggregation == {
        layer: weights for layer, weights in everything.aggregation.items() if layer != "second"
    }
    for client, weight in found.contributions.items():
        of_layers = [weights[client] for weights in found.aggregation.values()]
        assert weight == pytest.approx(sum(of_layers) / 2)
    assert found.notes == {}
