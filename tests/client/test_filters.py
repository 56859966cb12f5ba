# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A site's own filters, on what comes in and on what leaves, asked by a federation or by MONAI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.client_requests import after, measure, same, train
from helpers.refusals import refused
from monai.fl.utils.constants import ExtraItems
from monai.fl.utils.exchange_object import ExchangeObject

from monai_fairfl import Reply
from monai_fairfl.errors import ConfigError
from monai_fairfl.measurements import leave_one_out_model
from monai_fairfl.protocol import value_of

Weights = dict[str, torch.Tensor]


def filtered(change: Callable[[Any], Any]) -> Callable[[ExchangeObject, Any], ExchangeObject]:
    """A filter that replaces the weights."""

    def own_filter(data: ExchangeObject, extra: Any) -> ExchangeObject:
        data.weights = change(data.weights)
        return data

    return own_filter


def spoilt(weights: Weights) -> Weights:
    """The same tensors, whose values are lost."""
    for tensor in weights.values():
        tensor.zero_()
    return weights


def encoded(weights: Weights) -> dict[str, Any]:
    """Flat arrays under other names, at half the size."""
    return {f"module.{name}": (tensor / 2).numpy().ravel() for name, tensor in weights.items()}


def decoded(weights: Weights) -> Weights:
    """What :func:`encoded` was made of, still flat."""
    return {name.removeprefix("module."): value * 2 for name, value in weights.items()}


def test_an_update_leaves_as_the_sites_filter_made_it_and_so_it_is_left_out_again(
    new_client: Any, weights: Weights
) -> None:
    first = new_client(state="first", learning_rate=0.02)
    start = after(weights, train(first, weights, 0, local_epochs=4.0))
    client = new_client(learning_rate=0.02)
    client.initialize({})
    # Several tensors of the network have two names.
    client.post_weight_filters = [filtered(spoilt)]
    reply = train(client, start, local_epochs=4.0)
    assert not any(change.any() for change in (reply.update or {}).values())
    found = train(client, start, 1, ("leave_one_out_error",), previous_weight=0.5)
    without = leave_one_out_model(start, {**start, **(reply.buffers or {})}, 0.5)
    score = value_of(measure(client, without, "score")["score"])
    assert score > 0
    assert value_of(found.measurements["leave_one_out_error"]) == pytest.approx(1 - score)


def test_an_update_that_a_filter_lost_is_an_error_that_names_it_and_leaves_no_trace(
    new_client: Any, weights: Weights, undisturbed: list[Reply]
) -> None:
    faults: dict[str, Callable[[Weights], Any]] = {
        "nothing": lambda update: None,
        "names": lambda update: {f"enc.{name}": change for name, change in update.items()},
        "shape": lambda update: {name: change.flatten() for name, change in update.items()},
        "bytes": lambda update: dict.fromkeys(update, b"encoded"),
    }
    client = new_client(batch_size=1)
    client.initialize({})
    for word, change in faults.items():
        spoil = filtered(change)
        spoil.__name__ = "spoil"
        client.post_weight_filters = [filtered(lambda update: update), spoil]
        with refused("alder", "spoil", word, by=ConfigError):
            train(client, weights)
    client.post_weight_filters = []
    assert same(train(client, weights).update, undisturbed[0].update)


def test_pre_filters_see_each_request_once_and_all_that_follows_is_of_what_they_return(
    new_client: Any, weights: Weights
) -> None:
    seen = []

    def decode(received: Weights) -> Weights:
        seen.append(set(received))
        return decoded(received)

    plain = new_client(state="plain")
    client = new_client(state="filtered")
    client.initialize({})
    client.pre_filters = [filtered(decode)]
    sent = encoded(weights)
    names = ("global_score", "global_loss", "local_score", "personal_score")
    for number in range(2):
        expected = train(plain, weights, number, names, ditto_lambda=0.1)
        reply = train(client, sent, number, names, ditto_lambda=0.1)
        assert same(reply.update, expected.update) and same(reply.buffers, expected.buffers)
        assert reply.measurements == expected.measurements
    assert measure(client, sent, "score") == measure(plain, weights, "score")
    assert seen == [set(sent)] * 3


def test_monais_calls_filter_copies_and_may_rename_encode_or_empty_what_is_sent(
    new_client: Any,
) -> None:
    def only_dice(data: ExchangeObject, extra: Any) -> ExchangeObject:
        return ExchangeObject(metrics={"val_mean_dice": data.metrics["val_mean_dice"]})

    def count(data: ExchangeObject, extra: Any) -> ExchangeObject:
        data.statistics["asked"] = extra["asked"]
        return data

    client = new_client(arguments={"send_weight_diff": False})
    client.initialize({ExtraItems.CLIENT_NAME: "alder"})
    sent = client.get_weights().weights
    client.pre_filters = [filtered(decoded)]
    everything = client.evaluate(ExchangeObject(weights=encoded(sent))).metrics
    client.post_evaluate_filters = [only_dice]
    found = client.evaluate(ExchangeObject(weights=encoded(sent))).metrics
    assert found == {"val_mean_dice": everything["val_mean_dice"]} != everything
    client.train(ExchangeObject(weights=encoded(sent)))

    plain = client.get_weights().weights
    client.post_weight_filters = [count, filtered(encoded)]
    filtered_weights = client.get_weights({"asked": 7})
    assert filtered_weights.statistics["asked"] == 7
    # Arrays become tensors.
    arrays = encoded(plain)
    assert same(filtered_weights.weights, {name: torch.tensor(arrays[name]) for name in arrays})
    client.post_weight_filters = [filtered(lambda weights: None)]
    assert client.get_weights().weights is None
    # Neither the network nor the sender's own tensors change.
    client.pre_filters = client.post_weight_filters = [filtered(spoilt)]
    client.get_weights()
    assert same(client.trainer.network.state_dict(), plain)
    given = ExchangeObject(weights={name: tensor.clone() for name, tensor in plain.items()})
    client.train(given)
    assert same(given.weights, plain)
    client.post_weight_filters = [lambda data, extra: None]
    with refused("alder", "NoneType", by=ConfigError):
        client.get_weights()
