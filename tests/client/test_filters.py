# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A site's own filters, on what comes in and on what leaves, asked by a federation or by MONAI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.client_requests import measure, same, train
from helpers.refusals import refused
from monai.fl.utils.exchange_object import ExchangeObject

from monai_fairfl.errors import ConfigError
from monai_fairfl.measurements import leave_one_out_model
from monai_fairfl.messages import value_of

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


def test_an_update_leaves_as_the_sites_filter_made_it_and_so_it_is_left_out_again(
    new_client: Any, learnt: Weights
) -> None:
    client = new_client(learning_rate=0.02)
    client.initialize({})
    # Several tensors of the network have two names.
    client.post_weight_filters = [filtered(spoilt)]
    reply = train(client, learnt)
    assert not any(change.any() for change in (reply.update or {}).values())
    found = train(client, learnt, 1, ("leave_one_out_error",), previous_weight=0.5)
    without = leave_one_out_model(learnt, {**learnt, **(reply.buffers or {})}, 0.5)
    score = value_of(measure(client, without, "score")["score"])
    assert score > 0
    assert value_of(found.measurements["leave_one_out_error"]) == pytest.approx(1 - score)


def test_an_update_that_a_filter_lost_is_an_error_that_names_it_and_leaves_no_trace(
    new_small: Any, small: Weights
) -> None:
    faults: dict[str, Callable[[Weights], Any]] = {
        "None": lambda update: None,
        "shape": lambda update: {name: change.flatten() for name, change in update.items()},
        "bytes": lambda update: dict.fromkeys(update, b"encoded"),
    }
    undisturbed = train(new_small("undisturbed"), small)
    client = new_small()
    client.initialize({})
    for word, change in faults.items():
        spoil = filtered(change)
        spoil.__name__ = "spoil"
        client.post_weight_filters = [filtered(lambda update: update), spoil]
        with refused("alder", "spoil", word, by=ConfigError):
            train(client, small)
    client.post_weight_filters = []
    assert same(train(client, small).update, undisturbed.update)
