# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a client replies when it is asked to train, and which requests it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from helpers.client_requests import measure, same, train
from helpers.refusals import refused
from helpers.small_trainers import conv_net, image_batches
from helpers.toy_client import toy_client
from torch import nn
from torch.nn.utils import parameters_to_vector

from monai_fairfl import ModelSpec, Reply, Request
from monai_fairfl.messages import Expected, value_of

Weights = dict[str, torch.Tensor]


def test_the_update_is_what_the_training_changed_and_images_cases_and_steps_are_counted(
    new_client: Any, weights: Weights, spec: ModelSpec
) -> None:
    names = ("train_loss", "global_score", "local_score")
    request = Request("alder", "train", weights, names, run="r", round=0)
    received = {name: tensor.clone() for name, tensor in weights.items()}
    client = new_client(batch_size=1)
    reply = client.answer(request)
    taken, dropped = Expected().accepted(request, reply, spec)
    assert taken.measurements == reply.measurements and not dropped
    # 2 of 4 cases train, 4 slices each.
    assert (reply.num_cases, reply.num_samples, reply.num_steps) == (2, 8, 2)
    assert set(reply.measurements) == set(names)
    assert value_of(reply.measurements["train_loss"]) > 0

    trained = client.trainer.network.state_dict()
    changes = {name: trained[name] - received[name] for name in spec.parameters}
    buffers = {name: trained[name].clone() for name in spec.buffers}
    assert any(change.any() for change in changes.values())
    # Nothing of the reply lies in the memory of the network, nor does the request.
    with torch.no_grad():
        for tensor in trained.values():
            tensor.add_(1)
    assert same(reply.update, changes) and same(reply.buffers, buffers)
    assert same(weights, received)


def length(reply: Reply) -> float:
    return float(parameters_to_vector((reply.update or {}).values()).norm())


def test_each_key_of_a_context_changes_the_training_as_it_says(tmp_path: Path) -> None:
    network, loss = conv_net(), nn.BCEWithLogitsLoss()
    client, weights = toy_client(tmp_path, network, image_batches(1), loss)
    plain = train(client, weights)
    sam = train(client, weights, sam_rho=0.05)
    gsam = train(client, weights, sam_rho=0.05, gsam_alpha=0.5)
    assert not same(sam.update, plain.update) and not same(gsam.update, sam.update)
    # In the first step both saw the same batch with the same weights.
    assert same(sam.buffers, plain.buffers) and sam.num_steps == plain.num_steps
    for nothing in ({"sam_rho": 0.0, "gsam_alpha": 0.5}, {"prox_mu": 0.0}):
        assert same(train(client, weights, **nothing).update, plain.update)

    longer = train(client, weights, local_epochs=4.0)
    assert longer.num_steps == 4 * plain.num_steps
    assert longer.num_samples == plain.num_samples
    # One step would show nothing: it begins where the pull is zero.
    pulled = train(client, weights, local_epochs=4.0, prox_mu=5.0)
    assert length(pulled) < 0.8 * length(longer)


def test_a_reset_forgets_the_optimizers_moments_and_not_the_schedule(
    new_small: Any, small: Weights
) -> None:
    client = new_small()
    rates = []
    for number, reset in enumerate((0.0, 0.0, 1.0)):
        train(client, small, number, reset_optimizer=reset)
        optimizer = client.trainer.optimizer.state_dict()
        rates.append(optimizer["param_groups"][0]["lr"])
    assert {int(slot["step"]) for slot in optimizer["state"].values()} == {2}
    assert rates[0] > rates[1] > rates[2]


def test_what_the_client_cannot_do_and_weights_of_another_network_are_refused_by_name(
    new_client: Any, weights: Weights, spec: ModelSpec
) -> None:
    client = new_client()
    name = "downsamples.0.conv1.conv.weight"
    norm = "bottleneck.norm1.weight"
    lacking = {other: weights[other] for other in weights if other != name}
    without_norm = {other: weights[other] for other in weights if other != norm}
    # MONAI fills in what has as many values, in whatever order.
    swapped = weights[name].transpose(0, 1).contiguous()
    sizes = (tuple(swapped.shape), tuple(weights[name].shape))
    for words, given, names, context in (
        # With local_norm the normalisation layers stay at the site, and nothing else.
        (("alder", name), lacking, (), {"local_norm": 1.0}),
        (("alder", norm), without_norm, (), {}),
        (("alder", name, *sizes), {**weights, name: swapped}, (), {}),
        (("beauty",), weights, ("beauty",), {}),
        (("gsam_alpha", "sam_rho"), weights, (), {"gsam_alpha": 0.1}),
    ):
        with refused(*words, by=ValueError):
            train(client, given, 0, names, **context)
    with refused("other", by=KeyError):
        measure(client, {**weights, "other": torch.ones(1)}, "score")
