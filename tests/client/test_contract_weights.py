# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Weights and metrics: where the stock client's are wrong or shared, and ours are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.algo_calls import KINDS, any_change, evaluate, network, parameters_of, train
from helpers.checkout import DEVICE
from helpers.client_requests import same
from helpers.contract_bundles import on_every_bundle
from monai.fl.client import MonaiAlgo
from monai.fl.utils.exchange_object import ExchangeObject

from monai_fairfl.client.algo import FairMonaiAlgo

Maker = Callable[..., Any]
Weights = dict[str, torch.Tensor]


@on_every_bundle
@pytest.mark.slow
def test_stock_weights_share_the_networks_memory_and_ours_do_not(
    built: Maker, initial: Weights
) -> None:
    shared = {}
    for kind in KINDS:
        client = built(kind, send_weight_diff=False)
        train(client, initial)
        trained = network(client)
        for tensor in client.get_weights().weights.values():
            tensor.zero_()
        shared[kind] = not same(network(client), trained)
    # From a GPU, the stock client sends copies, too.
    assert shared == {MonaiAlgo: DEVICE == "cpu", FairMonaiAlgo: False}


@pytest.mark.slow
def test_stock_differences_of_unsent_tensors_are_zero_and_ours_leave_them_out(
    built: Maker, weights: Weights
) -> None:
    sent = {}
    for kind in KINDS:
        client = built(kind)
        train(client, parameters_of(client, weights))
        sent[kind] = client.get_weights().weights
        # Without a training in between the same weights come again.
        assert same(client.get_weights().weights, sent[kind])

    stock = sent[MonaiAlgo]
    ours = sent[FairMonaiAlgo]
    buffers = set(stock) - set(ours)
    assert buffers
    assert not any_change({name: stock[name] for name in buffers})
    assert same({name: stock[name] for name in ours}, ours)


@pytest.mark.slow
def test_stock_differences_to_the_live_network_are_zero_and_ours_are_not(built: Maker) -> None:
    differs = {}
    for kind in KINDS:
        client = built(kind)
        train(client, client.trainer.network.state_dict())
        differs[kind] = any_change(client.get_weights().weights)
    assert differs == {MonaiAlgo: False, FairMonaiAlgo: True}


@on_every_bundle
@pytest.mark.slow
def test_a_partial_model_is_scored_by_the_stock_client_and_refused_by_ours(
    built: Maker, initial: Weights
) -> None:
    name = next(iter(initial))
    partial = {name: initial[name]}
    # The scores are of the received tensor and random ones.
    assert evaluate(built(MonaiAlgo), partial)

    ours = built(FairMonaiAlgo)
    message = "'alder': the received weights lack .* of another network"
    for ask in (ours.train, ours.evaluate):
        with pytest.raises(ValueError, match=message):
            ask(ExchangeObject(weights=dict(partial)))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["train", "evaluate"])
def test_no_weights_at_all_are_an_error_in_words(built: Maker, method: str) -> None:
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'keys'"):
        getattr(built(MonaiAlgo), method)(ExchangeObject())
    with pytest.raises(ValueError, match="'alder': there are no weights to load, but NoneType"):
        getattr(built(FairMonaiAlgo), method)(ExchangeObject())


@pytest.mark.slow
def test_statistics_of_batchnorm_that_were_not_sent_are_the_trained_models_in_an_evaluation(
    built: Maker,
) -> None:
    client = built(FairMonaiAlgo, {"learning_rate": 0.05}, local_epochs=3)
    train(client, network(client))
    trained = network(client)
    parameters = parameters_of(client, trained)
    expected = evaluate(built(MonaiAlgo), trained)
    assert evaluate(client, trained) == expected
    assert evaluate(client, parameters) == expected
    # MONAI's uses the statistics of no training.
    assert evaluate(built(MonaiAlgo), parameters) != expected


@on_every_bundle
@pytest.mark.slow
def test_stock_metrics_are_overwritten_by_the_next_evaluation_and_ours_are_not(
    built: Maker, initial: Weights
) -> None:
    overwritten = {}
    for kind in KINDS:
        client = built(kind)
        first = client.evaluate(ExchangeObject(weights=dict(initial))).metrics
        second = client.evaluate(ExchangeObject(weights=dict(initial))).metrics
        overwritten[kind] = first is second
    assert overwritten == {MonaiAlgo: True, FairMonaiAlgo: False}
