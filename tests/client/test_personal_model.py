# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Ditto's personal model at a client: its training, its state and its scores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers.client_requests import (
    after,
    counters_of,
    equal_states,
    measure,
    same,
    stored_state,
    train,
)

from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.protocol.model_spec import ModelSpec

Maker = Callable[..., FairMonaiAlgo]
Weights = dict[str, torch.Tensor]


@pytest.mark.slow
def test_the_usual_training_is_bit_equal_with_and_without_a_personal_model(
    prostate_client: Maker, weights: Weights
) -> None:
    plain = prostate_client(state="plain")
    ditto = prostate_client(state="ditto")
    names = ("train_loss", "local_score")
    model = weights
    for number in range(2):
        expected = train(plain, model, number, names)
        found = train(ditto, model, number, names, ditto_lambda=0.5)
        assert same(found.update, expected.update)
        assert same(found.buffers, expected.buffers)
        model = after(model, expected)
    assert found.measurements == expected.measurements
    assert found.num_steps == expected.num_steps


@pytest.mark.slow
def test_the_personal_model_has_its_own_statistics(
    prostate_client: Maker, weights: Weights, spec: ModelSpec, tmp_path: Path
) -> None:
    client = prostate_client()
    train(client, weights, 0, ditto_lambda=0.5)
    train(client, weights, 1, ditto_lambda=0.5)
    stored = stored_state(tmp_path, 1)
    personal = stored["personal"]
    assert personal["iteration"] == stored["iteration"]
    assert "personal" not in personal
    # It goes on from its own buffers, while the usual model began again from those received.
    for name in counters_of(spec):
        assert personal["local"][name] == 2
        assert stored["local"][name] == 1


@pytest.mark.slow
def test_a_stronger_pull_leaves_the_personal_model_nearer_to_the_global_one(
    prostate_client: Maker, weights: Weights, spec: ModelSpec, tmp_path: Path
) -> None:
    def squared_distance(pull: float) -> float:
        name = f"pull{pull}"
        client = prostate_client(state=name)
        train(client, weights, 0, local_epochs=6.0, ditto_lambda=pull)
        personal = stored_state(tmp_path, 0, name)["personal"]["local"]
        total = 0.0
        for parameter in spec.parameters:
            total += float((personal[parameter] - weights[parameter]).square().sum())
        return total

    assert squared_distance(20.0) < 0.5 * squared_distance(0.0)


@pytest.mark.slow
def test_with_no_pull_the_first_personal_round_is_the_usual_training(
    prostate_client: Maker, weights: Weights, tmp_path: Path
) -> None:
    train(prostate_client(), weights, 0, ditto_lambda=0.0)
    stored = stored_state(tmp_path, 0)
    assert equal_states(stored["personal"]["local"], stored["local"])
    assert equal_states(stored["personal"]["optimizer"], stored["optimizer"])


@pytest.mark.slow
def test_the_personal_model_goes_on_to_the_bit_in_a_new_process_and_in_a_repeated_round(
    prostate_client: Maker, weights: Weights, tmp_path: Path
) -> None:
    lasting = prostate_client(state="lasting")
    for number in range(3):
        train(lasting, weights, number, ditto_lambda=0.3)
        restarted = prostate_client(state="restarted")
        train(restarted, weights, number, ditto_lambda=0.3)
    final = stored_state(tmp_path, 2, "lasting")
    assert equal_states(stored_state(tmp_path, 2, "restarted"), final)

    # The server resumed from round 0.
    for number in (1, 2):
        train(lasting, weights, number, ditto_lambda=0.3)
    assert equal_states(stored_state(tmp_path, 2, "lasting"), final)


@pytest.mark.slow
def test_personal_scores_are_of_the_newest_personal_model_and_nothing_of_it_is_sent(
    prostate_client: Maker, weights: Weights, tmp_path: Path
) -> None:
    client = prostate_client(learning_rate=0.02)
    assert measure(client, weights, "personal_score", number=0) == {}

    names = ("personal_score",)
    without = train(prostate_client(state="plain", learning_rate=0.02), weights, 0, names)
    reply = train(client, weights, 0, names, ditto_lambda=0.1, local_epochs=6.0)
    assert "personal_score" not in without.measurements
    assert reply.update is not None and without.update is not None
    assert reply.buffers is not None and without.buffers is not None
    assert set(reply.update) == set(without.update)
    assert set(reply.buffers) == set(without.buffers)

    stored = stored_state(tmp_path, 0)["personal"]["local"]
    personal = {name: stored[name] for name in weights}
    expected = measure(client, personal, "score", "test_score")
    assert reply.measurements["personal_score"] == expected["score"]

    # A round without a personal model does not end it.
    train(client, weights, 1)
    restarted = prostate_client()
    names = ("personal_score", "personal_test_score", "score")
    closing = measure(restarted, weights, *names, number=2)
    assert closing["personal_score"] == expected["score"]
    assert closing["personal_test_score"] == expected["test_score"]
    # It is of no earlier round.
    assert measure(client, weights, "personal_score", number=0) == {}


@pytest.mark.slow
def test_the_optimizer_reset_reaches_the_personal_model(
    prostate_client: Maker, weights: Weights, tmp_path: Path
) -> None:
    client = prostate_client()
    train(client, weights, 0, ditto_lambda=0.1)
    train(client, weights, 1, ditto_lambda=0.1, reset_optimizer=1.0)
    personal = stored_state(tmp_path, 1)["personal"]
    for slot in personal["optimizer"]["state"].values():
        assert slot["step"] == 1
    assert personal["epoch"] == 2
