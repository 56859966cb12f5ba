# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A site's own filters on a federation's requests: on what comes in, and on the update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers.client_requests import measure, same, tiny_model, train
from monai.fl.utils.exchange_object import ExchangeObject

from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.client.state import Past
from monai_fairfl.errors import ConfigError
from monai_fairfl.protocol.checks import refusal
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.model_spec import ModelSpec

Maker = Callable[..., FairMonaiAlgo]
Weights = dict[str, torch.Tensor]

TIED = {
    "_target_": "DynUNet",
    "spatial_dims": 2,
    "in_channels": 3,
    "out_channels": 1,
    "kernel_size": [3, 3, 3],
    "strides": [1, 2, 2],
    "upsample_kernel_size": [2, 2],
    "filters": [4, 4, 8],
}
"""A network in which most tensors have two names."""


def test_the_sites_own_privacy_filter_acts_on_the_update(
    prostate_client: Maker, weights: Weights
) -> None:
    def remove(data: ExchangeObject, extra: Any) -> ExchangeObject:
        return ExchangeObject({name: change * 0 for name, change in data.weights.items()})

    client = prostate_client()
    client.initialize({})
    client.post_weight_filters = [remove]
    reply = train(client, weights)
    assert reply.update is not None
    assert all(change.abs().max() == 0 for change in reply.update.values())

    # What entered the average is what is taken out of it.
    remembered = Past(client.states, "r", 1).previous
    assert remembered is not None
    for name in client.spec.parameters:
        assert torch.equal(remembered[name], weights[name])


@pytest.mark.slow
def test_what_a_filter_made_of_a_tensor_is_remembered_under_each_of_its_names(
    prostate_client: Maker,
) -> None:
    def remove(data: ExchangeObject, extra: Any) -> ExchangeObject:
        return ExchangeObject({name: change * 0 for name, change in data.weights.items()})

    weights, spec = tiny_model(network_def=TIED)
    client = prostate_client(network_def=TIED)
    client.initialize({})
    client.post_weight_filters = [remove]
    train(client, weights)

    remembered = Past(client.states, "r", 1).previous
    assert remembered is not None
    assert spec.aliases
    # Loaded into a network, the last of a tensor's names counts.
    for alias, name in spec.aliases.items():
        assert torch.equal(remembered[alias], weights[name])


@pytest.mark.slow
def test_a_post_weight_filter_may_return_arrays(
    prostate_client: Maker, weights: Weights, spec: ModelSpec, undisturbed: list[Reply]
) -> None:
    def halved_arrays(data: ExchangeObject, extra: Any) -> ExchangeObject:
        half = np.float32(0.5)
        data.weights = {name: change.numpy() * half for name, change in data.weights.items()}
        return data

    client = prostate_client()
    client.initialize({})
    client.post_weight_filters = [halved_arrays]
    reply = train(client, weights)
    plain = undisturbed[0].update
    assert plain is not None
    assert same(reply.update, {name: change * 0.5 for name, change in plain.items()})
    request = Request("alder", "train", weights, run="r", round=0)
    assert refusal(request, reply, spec) is None


def nothing(update: Weights) -> None:
    return None


def no_tensors(update: Weights) -> dict[str, torch.Tensor]:
    return {}


def a_list(update: Weights) -> list[int]:
    return [1, 2]


def other_names(update: Weights) -> Weights:
    return {f"enc.{name}": change for name, change in update.items()}


def without_the_first(update: Weights) -> Weights:
    _, *others = update
    return {name: update[name] for name in others}


def other_shapes(update: Weights) -> Weights:
    return {name: change.flatten() for name, change in update.items()}


def bytes_of_text(update: Weights) -> dict[str, bytes]:
    return dict.fromkeys(update, b"encoded")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "error"),
    [
        (nothing, "left nothing of the update"),
        (no_tensors, "left nothing of the update"),
        (a_list, "made list of the update"),
        (other_names, "changed the names"),
        (without_the_first, r"the update: \['.* are missing, \[\] are new"),
        (other_shapes, "changed the shape of"),
        (bytes_of_text, "made bytes of '"),
    ],
)
def test_an_update_that_a_filter_lost_is_an_error_that_names_it(
    prostate_client: Maker, weights: Weights, change: Callable[[Weights], Any], error: str
) -> None:
    def harmless(data: ExchangeObject, extra: Any) -> ExchangeObject:
        return data

    def spoil(data: ExchangeObject, extra: Any) -> ExchangeObject:
        data.weights = change(data.weights)
        return data

    client = prostate_client()
    client.initialize({})
    client.post_weight_filters = [harmless, spoil]
    message = f"client 'alder': the post-weight filter 'spoil' .*{error}"
    with pytest.raises(ConfigError, match=message):
        train(client, weights)
    # Nothing left the site, so this round did not happen.
    assert not client.states.has("r", 0)


@pytest.mark.slow
def test_pre_filters_see_what_came_in_and_all_that_follows_is_of_what_they_return(
    prostate_client: Maker, weights: Weights
) -> None:
    sent = {f"module.{name}": (tensor / 2).numpy().ravel() for name, tensor in weights.items()}
    seen = []

    def decode(data: ExchangeObject, extra: Any) -> ExchangeObject:
        seen.append(set(data.weights))
        decoded = {}
        for name, value in data.weights.items():
            decoded[name.removeprefix("module.")] = value * 2
        data.weights = decoded
        return data

    plain = prostate_client(state="plain")
    filtered = prostate_client(state="filtered")
    filtered.initialize({})
    filtered.pre_filters = [decode]
    names = ("global_score", "global_loss", "local_score", "personal_score")
    for number in range(2):
        expected = train(plain, weights, number, names, ditto_lambda=0.1)
        reply = train(filtered, sent, number, names, ditto_lambda=0.1)
        assert same(reply.update, expected.update)
        assert same(reply.buffers, expected.buffers)
        assert reply.measurements == expected.measurements
        assert set(reply.measurements) == set(names)
    assert measure(filtered, sent, "score") == measure(plain, weights, "score")
    # The filter sees each request once.
    assert seen == [set(sent)] * 3

    filtered.pre_filters = []
    with pytest.raises(ValueError, match="the received weights lack"):
        train(filtered, sent, 2)


def test_a_pre_filter_changes_nothing_that_other_clients_receive(
    prostate_client: Maker, weights: Weights
) -> None:
    def spoil(data: ExchangeObject, extra: Any) -> ExchangeObject:
        for tensor in data.weights.values():
            tensor.zero_()
        return data

    sent = {name: tensor.clone() for name, tensor in weights.items()}
    client = prostate_client()
    client.initialize({})
    client.pre_filters = [spoil]
    train(client, sent)
    assert same(sent, weights)
