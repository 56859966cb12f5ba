# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""CKA and feature cosine of the received model and the client's own of the same round (Fed-LWR)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers.client_requests import measure, train

from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.values import value_of

Maker = Callable[..., FairMonaiAlgo]
Weights = dict[str, torch.Tensor]


def trained_network(client: FairMonaiAlgo, names: Weights) -> Weights:
    """The trainer's tensors of these names, to the bit."""
    trained = client.trainer.network.state_dict()
    return {name: trained[name].clone() for name in names}


@pytest.mark.slow
def test_similarity_of_a_model_with_itself_is_one_in_every_layer_and_less_with_another(
    prostate_client: Maker, weights: Weights, spec: ModelSpec
) -> None:
    client = prostate_client(learning_rate=0.01)
    train(client, weights, local_epochs=4.0)
    local = trained_network(client, weights)
    layers = {spec.layers[name] for name in spec.parameters}
    for measurement in ("cka", "feature_cosine"):
        itself = measure(client, local, measurement, number=0)[measurement]
        assert set(itself) == {"mean", *layers}
        for value in itself.values():
            assert value == pytest.approx(1, abs=1e-6)

        other = measure(client, weights, measurement, number=0)[measurement]
        mean_of_layers = sum(other[layer] for layer in layers) / len(layers)
        assert value_of(other) == pytest.approx(mean_of_layers)
        for layer in layers:
            assert -1 <= other[layer] < 1 - 1e-6


@pytest.mark.slow
def test_cka_is_the_same_in_a_new_process_and_absent_for_a_round_that_was_not_trained(
    prostate_client: Maker, weights: Weights
) -> None:
    client = prostate_client()
    train(client, weights)
    first = measure(client, weights, "cka", number=0)
    restarted = prostate_client()
    assert measure(restarted, weights, "cka", number=0) == first
    assert measure(client, weights, "cka", number=1) == {}
    # Before the training, the state of this round is of an earlier try.
    assert "cka" not in train(client, weights, 0, ("cka",)).measurements


@pytest.mark.slow
def test_cka_on_training_images_and_by_the_unbiased_estimator_are_other_numbers(
    prostate_client: Maker, weights: Weights
) -> None:
    client = prostate_client(learning_rate=0.01)
    train(client, weights, local_epochs=4.0)
    usual = measure(client, weights, "cka", number=0)["cka"]
    training = measure(client, weights, "cka", number=0, cka_training=1.0)["cka"]
    unbiased = measure(client, weights, "cka", number=0, cka_unbiased=1.0)["cka"]
    assert len({value_of(usual), value_of(training), value_of(unbiased)}) == 3
    assert set(usual) == set(training) == set(unbiased)


RESIDUAL = {
    "_target_": "UNet",
    "spatial_dims": 2,
    "in_channels": 3,
    "out_channels": 1,
    "channels": [4, 8],
    "strides": [2],
    "num_res_units": 2,
    "norm": "batch",
}


@pytest.mark.slow
def test_cka_of_the_bundle_with_residual_units(prostate_client: Maker) -> None:
    client = prostate_client(network_def=RESIDUAL)
    client.initialize({})
    initial = client.trainer.network.state_dict()
    parameters, buffers = client.spec.split(
        {name: tensor.clone() for name, tensor in initial.items()}
    )
    weights = {**parameters, **buffers}
    reply = train(client, weights)
    assert reply.update
    local = trained_network(client, weights)
    values = measure(client, local, "cka", number=0)["cka"]
    assert set(values) == {"mean", *(client.spec.layers[name] for name in reply.update)}
    for value in values.values():
        assert value == pytest.approx(1, abs=1e-6)
