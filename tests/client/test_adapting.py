# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The last mile at a client: what it trains, what it takes, and that nothing else changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.client_requests import after, equal_states, same, stored_state, tiny_model, train
from ignite.engine import Events

from monai_fairfl.client.adapting import PATIENCE
from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.model_files.recipe import state_of_file
from monai_fairfl.protocol.last_mile import ADAPTED_EPOCHS, gain_name, is_taken
from monai_fairfl.protocol.messages import Request
from monai_fairfl.protocol.values import Estimate

Maker = Callable[..., FairMonaiAlgo]
Weights = dict[str, torch.Tensor]

GAIN = gain_name("adapted")
NAMES = ("score", "test_score", "adapted_score", "adapted_test_score", GAIN, ADAPTED_EPOCHS)
# Two of four cases validate, so that their difference has a standard error.
TWO_VALIDATE = {"split_fractions": [0.25, 0.5, 0.25]}


def close(client: FairMonaiAlgo, weights: Weights, epochs: int, rate: float) -> Any:
    """Let the client measure at the end of a run, with a last mile."""
    context = {"closing": 1.0, "adapt_epochs": float(epochs), "adapt_rate": rate}
    request = Request("alder", "measure", weights, NAMES, context, run="r", round=9, seed=3)
    return client.answer(request).measurements


def score(client: FairMonaiAlgo, weights: Weights, name: str = "score") -> Any:
    request = Request("alder", "measure", weights, (name,), {}, run="r", round=9, seed=3)
    return client.answer(request).measurements[name]


@pytest.mark.slow
def test_what_is_taken_is_the_sites_own_model_and_scores_as_reported(
    prostate_client: Maker, weights: Weights, tmp_path: Path
) -> None:
    client = prostate_client(**TWO_VALIDATE)
    found = close(client, weights, epochs=30, rate=0.02)
    assert is_taken(found[GAIN]) and found[GAIN].n == 2
    assert 1 <= found[ADAPTED_EPOCHS] <= 30

    # The file has the model whose scores were reported.
    [file] = tmp_path.rglob("*own.pt")
    adapted = dict(state_of_file(file))
    assert not same(adapted, weights)
    assert score(client, adapted) == found["adapted_score"]
    assert score(client, adapted, "test_score") == found["adapted_test_score"]
    assert score(client, weights) == found["score"]


@pytest.mark.slow
def test_the_gain_is_the_mean_difference_of_the_cases_with_its_standard_error(
    prostate_client: Maker, weights: Weights, tmp_path: Path
) -> None:
    client = prostate_client(**TWO_VALIDATE)
    found = close(client, weights, epochs=30, rate=0.02)

    def cases(name: str) -> np.ndarray:
        [file] = tmp_path.rglob(f"*-{name}-9-*.csv")
        return np.genfromtxt(file, delimiter=",", names=True, dtype=None, encoding="utf-8")["dice"]

    differences = cases("adapted_score") - cases("score")
    assert found[GAIN].value == pytest.approx(differences.mean(), abs=1e-6)
    expected = differences.std(ddof=1) / math.sqrt(len(differences))
    assert found[GAIN].stderr == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
def test_the_usual_training_never_notices_the_last_mile(
    prostate_client: Maker, weights: Weights, tmp_path: Path
) -> None:
    plain = prostate_client(state="plain")
    adapting = prostate_client(state="adapting")
    model = weights
    for number in range(2):
        expected = train(plain, model, number)
        found = train(adapting, model, number)
        assert same(found.update, expected.update)
        close(adapting, model, epochs=2, rate=0.01)
        model = after(model, expected)
    states = [stored_state(tmp_path, 1, name) for name in ("plain", "adapting")]
    assert equal_states(*states)


@pytest.mark.slow
def test_the_same_request_gives_the_same_model_in_a_new_process(
    prostate_client: Maker, weights: Weights, tmp_path: Path
) -> None:
    first = close(prostate_client(state="first", **TWO_VALIDATE), weights, epochs=8, rate=0.02)
    lasting = prostate_client(state="second", **TWO_VALIDATE)
    train(lasting, weights)
    assert close(lasting, weights, epochs=8, rate=0.02) == first


@pytest.mark.slow
@pytest.mark.parametrize("rate", [1e-12, 1e6])
def test_without_a_gain_the_model_stays_and_the_training_ends_early(
    rate: float, prostate_client: Maker, tmp_path: Path
) -> None:
    # Statistics of batches would be averaged at any rate, and gain.
    weights, _ = tiny_model(norm="instance")
    client = prostate_client(**TWO_VALIDATE, norm="instance")
    begun: list[int] = []
    client.initialize({"client_name": "alder"})
    client.trainer.add_event_handler(Events.EPOCH_STARTED, lambda: begun.append(1))
    found = close(client, weights, epochs=100, rate=rate)
    assert len(begun) <= PATIENCE
    assert found[GAIN].value == 0 and found[ADAPTED_EPOCHS] == 0
    assert found["adapted_score"] == found["score"]
    assert not list(tmp_path.rglob("*own.pt"))


@pytest.mark.slow
def test_one_validation_case_takes_nothing(
    prostate_client: Maker, weights: Weights, tmp_path: Path
) -> None:
    client = prostate_client()
    found = close(client, weights, epochs=8, rate=0.02)
    assert found[GAIN].n == 1 and found[GAIN].stderr is None
    assert not list(tmp_path.rglob("*own.pt"))


def test_a_gain_within_its_standard_error_is_not_taken() -> None:
    assert not is_taken(Estimate(0.0, 0.0, 3))
    assert not is_taken(Estimate(0.02, 0.02, 3))
    assert is_taken(Estimate(0.0201, 0.02, 3))
