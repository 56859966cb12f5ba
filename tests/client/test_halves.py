# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What methods ask of a client's training and of its training data, on the real prostate bundle.

Tests show what a request must change, and what it must not. CKA, Ditto's personal model and
tensors that stay at the site have files of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.client_requests import after, measure, same, tiny_model, train

from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.errors import ConfigError
from monai_fairfl.measurements.table import MEASUREMENTS
from monai_fairfl.protocol.messages import Reply
from monai_fairfl.protocol.values import Estimate, value_of

Maker = Callable[..., FairMonaiAlgo]
Weights = dict[str, torch.Tensor]


def test_a_measurement_whose_name_would_date_it_wrongly_is_refused(
    prostate_client: Maker, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MEASUREMENTS, "final_score", MEASUREMENTS["local_score"])
    monkeypatch.setitem(MEASUREMENTS, "local_start", MEASUREMENTS["global_score"])
    client = prostate_client()
    with pytest.raises(ConfigError, match="such as 'local_final_score'"):
        measure(client, weights, "final_score")
    with pytest.raises(ConfigError, match="'local_start' is of the received model"):
        measure(client, weights, "local_start")


# ---- training: SAM, FedProx


@pytest.mark.slow
def test_sharpness_aware_training_changes_the_update_and_counts_each_step_once(
    prostate_client: Maker, weights: Weights, undisturbed: list[Reply]
) -> None:
    plain = undisturbed[0]
    sam = train(prostate_client(state="sam"), weights, sam_rho=0.05)
    gsam = train(prostate_client(state="gsam"), weights, sam_rho=0.05, gsam_alpha=0.5)
    assert not same(plain.update, sam.update)
    assert not same(sam.update, gsam.update)
    assert sam.num_steps == plain.num_steps
    assert sam.num_samples == plain.num_samples
    # One step: both saw the same batch with the same weights.
    assert same(plain.buffers, sam.buffers)

    zero = train(prostate_client(state="zero"), weights, sam_rho=0.0, gsam_alpha=0.5)
    assert same(plain.update, zero.update)


def length_of_update(reply: Reply) -> float:
    assert reply.update is not None
    flat = torch.cat([change.flatten() for change in reply.update.values()])
    return float(torch.linalg.vector_norm(flat))


@pytest.mark.slow
def test_a_proximal_term_shortens_the_update(prostate_client: Maker, weights: Weights) -> None:
    # One step would show nothing: it begins at the received weights, where the term is zero.
    epochs = 4.0
    plain = train(prostate_client(state="plain"), weights, local_epochs=epochs)
    pulled = train(prostate_client(state="pulled"), weights, local_epochs=epochs, prox_mu=5.0)
    assert length_of_update(pulled) < 0.8 * length_of_update(plain)

    zero = train(prostate_client(state="zero"), weights, local_epochs=epochs, prox_mu=0.0)
    assert same(zero.update, plain.update)


# ---- losses and sharpness on the training data


@pytest.mark.slow
def test_losses_are_of_the_received_and_of_the_trained_model_on_the_same_crops(
    prostate_client: Maker,
) -> None:
    # Averaged statistics of batches would lag behind so short a training.
    weights, _ = tiny_model(norm="instance")
    client = prostate_client(learning_rate=0.01, norm="instance")
    reply = train(client, weights, 0, ("global_loss", "local_loss"), local_epochs=8.0)
    of_received = reply.measurements["global_loss"]
    of_trained = reply.measurements["local_loss"]
    assert isinstance(of_received, Estimate)
    assert value_of(of_trained) < value_of(of_received)

    measured = measure(client, after(weights, reply), "global_loss")["global_loss"]
    assert value_of(measured) == pytest.approx(value_of(of_trained), rel=1e-5)
    assert measure(client, weights, "global_loss")["global_loss"] == of_received


@pytest.mark.slow
def test_sharpness_is_positive_and_grows_with_the_radius(
    prostate_client: Maker, weights: Weights
) -> None:
    client = prostate_client()

    def sharpness(**context: float) -> Any:
        return measure(client, weights, "sharpness", **context)["sharpness"]

    small = sharpness(sam_rho=0.01)
    middle = sharpness(sam_rho=0.05)
    large = sharpness(sam_rho=0.1)
    assert 0 < small < middle < large
    # The default radius.
    assert sharpness() == middle


@pytest.mark.slow
def test_measuring_between_rounds_leaves_the_next_training_as_it_was(
    prostate_client: Maker, weights: Weights
) -> None:
    plain = prostate_client(state="plain")
    anchor = after(weights, train(plain, weights, 0, ditto_lambda=0.1))
    expected = train(plain, anchor, 1)

    measured = prostate_client(state="measured")
    train(measured, weights, 0, ditto_lambda=0.1)
    of_round = ("cka", "feature_cosine", "sharpness", "global_loss")
    personal = ("personal_score", "personal_test_score")
    # The personal model is that of the round before the request's.
    values = measure(measured, weights, *of_round, *personal, number=0)
    assert set(values) == set(of_round)
    values = measure(measured, weights, *personal, number=1, cka_training=1.0)
    assert set(values) == set(personal)

    assert same(train(measured, anchor, 1).update, expected.update)
