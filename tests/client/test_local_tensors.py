# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Tensors that stay at the site: local normalisation (FedBN), and buffers that nobody sends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers.client_requests import (
    counters_of,
    measure,
    same,
    stored_state,
    tiny_client,
    train,
)

from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.protocol.messages import Request
from monai_fairfl.protocol.model_spec import ModelSpec, read_spec

Maker = Callable[..., FairMonaiAlgo]
Weights = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def norms(hospitals: Path, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Parameters of the network's normalisation layers."""
    client = tiny_client(hospitals, tmp_path_factory.mktemp("norms"))
    client.initialize({})
    return set(read_spec(client.trainer.network).norms)


@pytest.fixture(scope="module")
def shared(weights: Weights, spec: ModelSpec, norms: set[str]) -> Weights:
    """The model less its normalisation layers: what FedBN sends."""
    local = {*norms, *spec.buffers}
    assert local
    assert local < set(weights)
    return {name: tensor for name, tensor in weights.items() if name not in local}


@pytest.mark.slow
def test_local_normalisation_stays_at_the_site_across_rounds_and_processes(
    prostate_client: Maker, shared: Weights, spec: ModelSpec, tmp_path: Path
) -> None:
    lasting = prostate_client(state="lasting")
    for number in range(2):
        reply = train(lasting, shared, number, local_norm=1.0)
        restarted = train(prostate_client(state="restarted"), shared, number, local_norm=1.0)
        assert reply.update is not None
        assert set(reply.update) == set(shared) & set(spec.parameters)
        assert reply.buffers == {}
        assert same(reply.update, restarted.update)

    first = stored_state(tmp_path, 0, "lasting")["local"]
    second = stored_state(tmp_path, 1, "lasting")["local"]
    # The second round went on from the site's own tensors.
    for name in counters_of(spec):
        assert second[name] == 2 * first[name]
    own = sorted(set(spec.parameters) - set(shared))
    assert any(not torch.equal(first[name], second[name]) for name in own)


@pytest.mark.slow
def test_received_weights_are_measured_with_the_sites_own_tensors(
    prostate_client: Maker, weights: Weights, shared: Weights, tmp_path: Path
) -> None:
    client = prostate_client(learning_rate=0.02)
    untrained = measure(client, shared, "score", number=0, local_norm=1.0)
    initial = {name: client._initial["local"][name] for name in weights}
    assert untrained == measure(client, {**initial, **shared}, "score", number=0)

    train(client, shared, 0, local_norm=1.0, local_epochs=4.0)
    stored = stored_state(tmp_path, 0)["local"]
    own = {name: stored[name] for name in weights}
    names = ("score", "global_loss", "sharpness", "test_score")
    restarted = prostate_client(learning_rate=0.02)
    for each in (client, restarted):
        found = measure(each, shared, *names, number=1, local_norm=1.0)
        assert found == measure(each, {**own, **shared}, *names, number=1)

    # This round's own statistics make it the local model.
    trained_anchor = {name: own[name] for name in shared}
    values = measure(client, trained_anchor, "cka", number=0, local_norm=1.0)["cka"]
    for value in values.values():
        assert value == pytest.approx(1, abs=1e-6)


def test_buffers_of_another_run_do_not_leak_into_a_new_one(
    prostate_client: Maker, weights: Weights, spec: ModelSpec
) -> None:
    parameters = {name: weights[name] for name in spec.parameters}
    client = prostate_client()
    first = train(client, parameters)
    request = Request("alder", "train", parameters, run="another", round=0, seed=7)
    assert same(client.answer(request).buffers, first.buffers)


def test_missing_parameters_are_refused_unless_they_are_those_of_normalisation_layers(
    prostate_client: Maker, shared: Weights
) -> None:
    client = prostate_client()
    with pytest.raises(ValueError, match="lack"):
        train(client, shared)
    with pytest.raises(ValueError, match="lack"):
        measure(client, shared, "score")

    missing, *others = shared
    fewer = {name: shared[name] for name in others}
    with pytest.raises(ValueError, match=f"lack 1 of .* example '{missing}'"):
        train(client, fewer, local_norm=1.0)


@pytest.mark.slow
def test_the_personal_model_of_a_site_with_local_normalisation_is_not_pulled_there(
    prostate_client: Maker, shared: Weights, norms: set[str], tmp_path: Path
) -> None:
    client = prostate_client()
    train(client, shared, 0, local_norm=1.0, ditto_lambda=1e3, local_epochs=4.0)
    personal = stored_state(tmp_path, 0)["personal"]["local"]
    initial = client._initial["local"]
    for name in norms:
        change = (personal[name] - initial[name]).abs().max()
        assert change > 0, name
