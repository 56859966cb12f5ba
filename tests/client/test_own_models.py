# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What stays at a site: Ditto's personal model, local normalisation (FedBN), its last mile."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.client_requests import (
    after,
    measure,
    own_model,
    same,
    tiny_model,
    train,
)
from helpers.reports import rows_of
from helpers.small_trainers import half_mean_square, least_squares
from helpers.toy_client import toy_client
from ignite.engine import Events
from torch import nn

from monai_fairfl import ModelSpec
from monai_fairfl.messages import value_of
from monai_fairfl.model_files import fused_weights, save_model_file

Weights = dict[str, torch.Tensor]

# Two of four cases validate, so that their difference has a standard error.
TWO_VALIDATE = {"split_fractions": [0.25, 0.5, 0.25]}


# ---- a personal model


def test_a_personal_model_changes_nothing_of_the_usual_one_and_is_scored_by_itself(
    new_client: Any, weights: Weights, tmp_path: Path
) -> None:
    client = new_client(learning_rate=0.02)
    plain = [train(client, weights, number, local_epochs=4.0) for number in range(2)]
    assert not measure(client, weights, "personal_score", number=2)
    names = ("train_loss", "personal_score")
    # A round without a personal model, the last one, does not end it.
    for number, context in enumerate(({"ditto_lambda": 0.0}, {})):
        expected = plain[number]
        found = train(client, weights, number, names, local_epochs=4.0, **context)
        assert same(found.update, expected.update) and same(found.buffers, expected.buffers)
        assert found.num_steps == expected.num_steps
        if number == 0:
            first = found
    names = ("personal_score", "personal_test_score")
    last = measure(client, weights, *names, number=2, closing=1.0)
    own = own_model(tmp_path)
    # Without a pull it is the usual model of its round.
    for name, tensor in after(weights, first).items():
        torch.testing.assert_close(own[name], tensor, atol=1e-6, rtol=0)
    score, of_tests = measure(client, own, "score", "test_score").values()
    assert last["personal_score"] == score == first.measurements["personal_score"]
    assert last["personal_test_score"] == of_tests and value_of(score) > 0


def test_a_personal_model_ends_between_its_own_optimum_and_the_received_model(
    tmp_path: Path,
) -> None:
    x, y = least_squares()
    network = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    batches = [{"image": x, "label": y}]
    client, _ = toy_client(tmp_path / "alder", network, batches, half_mean_square, 0.4)
    anchor = torch.tensor([[1.0, -2.0, 3.0]], dtype=torch.float64)
    for number in range(3):
        train(client, {"weight": anchor}, number, ditto_lambda=0.4, local_epochs=20.0)
    measure(client, {"weight": anchor}, "personal_score", closing=1.0)
    expected = torch.linalg.solve(
        x.T @ x / len(x) + 0.4 * torch.eye(3), x.T @ y / len(x) + 0.4 * anchor.T
    )
    torch.testing.assert_close(own_model(tmp_path)["weight"], expected.T, atol=1e-6, rtol=0)


# ---- tensors that the server does not send


def test_local_tensors_stay_at_the_site_and_its_model_is_measured_with_them(
    new_client: Any, weights: Weights, spec: ModelSpec, tmp_path: Path
) -> None:
    # The model less its normalisation layers: what FedBN sends.
    shared = {name: weights[name] for name in spec.parameters if ".norm" not in name}
    assert len(shared) < len(spec.parameters)
    lasting = new_client(state="lasting", learning_rate=0.02)
    context = {"local_norm": 1.0}
    train(lasting, shared, 0, **context)
    shutil.copytree(tmp_path / "alder" / "lasting", tmp_path / "alder" / "restarted")
    restarted = new_client(state="restarted", learning_rate=0.02)
    reply, found = (train(client, shared, 1, **context) for client in (lasting, restarted))
    assert set(reply.update or {}) == set(shared) and reply.buffers == {}
    assert same(reply.update, found.update)

    trained = lasting.trainer.network.state_dict()
    model = {name: trained[name].clone() for name in weights}
    # The second round went on from the first one's statistics.
    counts = {int(model[name]) for name in model if name.endswith("num_batches_tracked")}
    assert counts == {2}
    for client in (lasting, restarted):
        found = measure(client, shared, "global_loss", number=2, local_norm=1.0)
        assert found == measure(client, {**model, **shared}, "global_loss", number=2)


# ---- the last mile

NAMES = ["score", "adapted_epochs"]
for _candidate in ("adapted", "alone", "fused"):
    NAMES += [f"{_candidate}_{of}" for of in ("gain", "score", "test_score")]


def close(client: Any, weights: Weights, epochs: int = 1, rate: float = 1e-9, **more: float) -> Any:
    """Let the client measure at the end of a run; unless told, its last mile trains nothing."""
    context = {"adapt_epochs": float(epochs), "adapt_rate": rate, "closing": 1.0, **more}
    return measure(client, weights, *NAMES, **context)


def test_what_is_taken_is_the_model_that_scored_as_reported_and_its_gain_is_that_of_the_cases(
    new_client: Any, weights: Weights, tmp_path: Path
) -> None:
    client = new_client(**TWO_VALIDATE)
    found = close(client, weights, epochs=4, rate=0.03)
    gain = found["adapted_gain"]
    assert gain.n == 2 and gain.value > gain.stderr > 0
    assert 1 <= found["adapted_epochs"] <= 4

    # The file has the model whose scores were reported.
    adapted = own_model(tmp_path)
    scores = measure(client, adapted, "score", "test_score")
    assert scores == {name: found[f"adapted_{name}"] for name in scores}
    assert measure(client, weights, "score")["score"] == found["score"] != scores["score"]

    dice = []
    for name in ("-adapted_score-", "-score-"):
        [file] = (tmp_path / "alder" / "state").glob(f"r{name}*.csv")
        dice.append([float(row["dice"]) for row in rows_of(file)])
    differences = np.subtract(*dice)
    assert gain.value == pytest.approx(differences.mean(), abs=1e-6)
    assert gain.stderr == pytest.approx(differences.std(ddof=1) / math.sqrt(2), abs=1e-6)

    # The usual training never notices the last mile, nor the last mile the training.
    plain = new_client(state="plain", **TWO_VALIDATE)
    assert same(train(client, weights).update, train(plain, weights).update)
    assert close(client, weights, epochs=4, rate=0.03) == found


def test_a_model_trained_alone_is_taken_if_it_gains_and_fused_where_that_is_asked_for(
    new_client: Any, tmp_path: Path
) -> None:
    settings = {**TWO_VALIDATE, "norm": "instance", "learning_rate": 0.02}
    # Statistics of batches would be averaged at any rate, and gain.
    weights, spec = tiny_model(norm="instance")
    file = tmp_path / "alone.pt"
    client = new_client(arguments={"alone": file}, **settings)
    client.initialize({})
    begun: list[int] = []
    counted = client.trainer.add_event_handler(Events.EPOCH_STARTED, lambda: begun.append(1))
    # There is no such file yet.
    found = close(client, weights, epochs=50, rate=1e-12)
    counted.remove()
    # Without a gain nothing is taken, and the training ends early.
    assert len(begun) < 10
    assert found["adapted_gain"].value == found["adapted_epochs"] == 0
    assert found["adapted_score"] == found["score"]
    assert not list(tmp_path.rglob("*own.pt"))

    alone = after(weights, train(client, weights, local_epochs=6.0))

    save_model_file(file, spec.with_aliases(alone))
    found = close(client, weights)
    assert found["alone_gain"].value > found["alone_gain"].stderr, "the test needs a better model"
    scores = measure(client, alone, "score", "test_score")
    assert scores == {name: found[f"alone_{name}"] for name in scores}
    assert same(own_model(tmp_path), spec.with_aliases(alone))

    # What would be taken, which is trained further here, is fused with it.
    other = spec.with_aliases({name: -tensor for name, tensor in weights.items()})
    save_model_file(file, other)
    found = close(client, weights, epochs=6, rate=0.02, adapt_fuse=1.0)
    assert found["adapted_gain"].value > found["adapted_gain"].stderr
    own = own_model(tmp_path)
    adapted = {name: own[f"members.0.{name}"] for name in other}
    assert measure(client, adapted, "score")["score"] == found["adapted_score"]
    assert same(own, fused_weights([adapted, other]))

    # One that lacks a tensor is of another network, and no candidate.
    save_model_file(file, dict(list(alone.items())[1:]))
    found = measure(client, weights, adapt_epochs=1.0, adapt_rate=1e-9)
    assert "adapted_gain" in found and "alone_gain" not in found
