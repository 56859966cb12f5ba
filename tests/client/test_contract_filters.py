# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A site's filters in ``MonaiAlgo`` and ours, and what they change besides the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.algo_calls import (
    KINDS,
    any_change,
    both,
    copies,
    evaluate,
    network,
    seed_everything,
    train,
)
from helpers.checkout import DEVICE
from helpers.client_requests import same
from monai.fl.client import MonaiAlgo
from monai.fl.utils.exchange_object import ExchangeObject

from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.errors import ConfigError

Maker = Callable[..., Any]
Weights = dict[str, torch.Tensor]
Extra = dict[str, Any]


def encoded(weights: Weights) -> dict[str, bytes]:
    return {f"enc.{name}": value.numpy().tobytes() for name, value in weights.items()}


@both
def test_post_weight_filters_get_statistics_and_may_rename_encode_or_empty_the_weights(
    built: Maker, weights: Weights, kind: type[MonaiAlgo]
) -> None:
    def encode(data: ExchangeObject, extra: Extra) -> ExchangeObject:
        data.weights = encoded(data.weights)
        data.statistics["asked"] = extra["asked"]
        return data

    def empty(data: ExchangeObject, extra: Extra) -> ExchangeObject:
        data.weights = None
        return data

    client = built(kind)
    train(client, weights)
    plain = client.get_weights().weights

    client.post_weight_filters = [encode]
    sent = client.get_weights({"asked": 7})
    assert sent.weights == encoded(plain)
    assert sent.statistics["asked"] == 7

    client.post_weight_filters = [empty]
    assert client.get_weights().weights is None


@pytest.mark.slow
@both
def test_pre_filters_may_decode_and_rename_what_is_trained_and_evaluated(
    built: Maker, weights: Weights, kind: type[MonaiAlgo]
) -> None:
    def decode(data: ExchangeObject, extra: Extra) -> ExchangeObject:
        decoded = {}
        for name, value in data.weights.items():
            decoded[name.removeprefix("module.")] = value * data["scale"]
        data.weights = decoded
        return data

    def encode(weights: Weights) -> ExchangeObject:
        """Flat arrays at half the size: MonaiAlgo gives them the network's shapes again."""
        arrays = {f"module.{name}": (v / 2).numpy().ravel() for name, v in weights.items()}
        data = ExchangeObject(weights=arrays)
        data["scale"] = 2
        return data

    plain = built(kind, send_weight_diff=False)
    train(plain, weights)
    expected_metrics = evaluate(plain, weights)

    client = built(kind, send_weight_diff=False)
    client.pre_filters = [decode]
    seed_everything(client, seed=3)
    client.train(encode(weights))
    metrics = client.evaluate(encode(weights)).metrics

    assert same(client.get_weights().weights, plain.get_weights().weights)
    assert metrics == expected_metrics


@both
def test_filters_of_a_file_are_used_and_post_evaluate_filters_change_the_metrics(
    built: Maker, weights: Weights, kind: type[MonaiAlgo]
) -> None:
    def only_dice(data: ExchangeObject, extra: Extra) -> ExchangeObject:
        return ExchangeObject(metrics={"val_mean_dice": data.metrics["val_mean_dice"]})

    client = built(kind, config_filters_filename="configs/fl_filters.json")
    assert len(client.pre_filters) == 1
    assert len(client.post_weight_filters) == 1

    everything = evaluate(client, weights)
    client.post_evaluate_filters = [only_dice]
    assert evaluate(client, weights) == {"val_mean_dice": everything["val_mean_dice"]}


# ---- where the stock client is broken, and ours is not


def test_a_post_weight_filter_changes_the_stock_clients_network_and_not_ours(built: Maker) -> None:
    def spoil(data: ExchangeObject, extra: Extra) -> ExchangeObject:
        for tensor in data.weights.values():
            tensor.zero_()
        return data

    changed = {}
    for kind in KINDS:
        client = built(kind, send_weight_diff=False)
        previous = network(client)
        client.post_weight_filters = [spoil]
        assert not any_change(client.get_weights().weights)
        changed[kind] = not same(network(client), previous)
    # From a GPU, the stock client sends copies, too.
    assert changed == {MonaiAlgo: DEVICE == "cpu", FairMonaiAlgo: False}


@pytest.mark.slow
def test_a_pre_filter_changes_the_stock_senders_weights_and_not_those_of_ours(
    built: Maker, weights: Weights
) -> None:
    def double(data: ExchangeObject, extra: Extra) -> ExchangeObject:
        for tensor in data.weights.values():
            tensor.mul_(2)
        data["seen"] = True
        return data

    changed = {}
    for kind in KINDS:
        client = built(kind)
        client.pre_filters = [double]
        data = ExchangeObject(weights=copies(weights))
        client.train(data)
        client.evaluate(data)
        changed[kind] = not same(data.weights, weights)
    assert changed == {MonaiAlgo: True, FairMonaiAlgo: False}


def test_arrays_of_a_post_weight_filter_leave_ours_as_tensors(
    built: Maker, weights: Weights
) -> None:
    def as_arrays(data: ExchangeObject, extra: Extra) -> ExchangeObject:
        # ``* 1`` makes a scalar of an array of 0 dimensions.
        data.weights = {name: tensor.numpy() * 1 for name, tensor in data.weights.items()}
        return data

    client = built(FairMonaiAlgo)
    train(client, weights)
    plain = client.get_weights().weights
    client.post_weight_filters = [as_arrays]
    assert same(client.get_weights().weights, plain)


@pytest.mark.slow
def test_a_filter_without_return_is_named_by_ours(built: Maker, weights: Weights) -> None:
    def forgetful(data: ExchangeObject, extra: Extra) -> None:
        data.statistics = {}

    stock = built(MonaiAlgo)
    ours = built(FairMonaiAlgo)
    for client in (stock, ours):
        train(client, weights)
        client.post_weight_filters = [forgetful]
    assert stock.get_weights() is None
    message = "'alder': the filter 'forgetful' returned NoneType.*'return data'"
    with pytest.raises(ConfigError, match=message):
        ours.get_weights()
