# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What stays at a site: Ditto's personal model, local normalisation (FedBN), its last mile."""

from __future__ import annotations

import copy
import csv
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.checkout import DEVICE
from helpers.client_requests import (
    after,
    measure,
    own_model,
    same,
    tiny_model,
    train,
)
from helpers.refusals import refused
from helpers.small_trainers import half_mean_square, least_squares
from helpers.toy_client import toy_client
from ignite.engine import Events
from monai.engines import EnsembleEvaluator, SupervisedEvaluator
from monai.handlers import MeanDice, from_engine
from monai.transforms import Activationsd, AsDiscreted, Compose, MeanEnsembled
from torch import nn

from monai_fairfl import ModelSpec
from monai_fairfl.model_files import fused_weights, save_model_file
from monai_fairfl.protocol import value_of

Weights = dict[str, torch.Tensor]

# Two of four cases validate, so that their difference has a standard error.
TWO_VALIDATE = {"split_fractions": [0.25, 0.5, 0.25]}


# ---- a personal model


def test_a_personal_model_changes_nothing_of_the_usual_one_and_nothing_of_it_is_sent(
    new_client: Any, weights: Weights
) -> None:
    plain = new_client(state="plain")
    ditto = new_client(state="ditto")
    names = ("train_loss", "local_score", "personal_score")
    model = weights
    for number in range(2):
        expected = train(plain, model, number, names)
        found = train(ditto, model, number, names, ditto_lambda=0.5)
        assert same(found.update, expected.update) and same(found.buffers, expected.buffers)
        assert found.num_steps == expected.num_steps
        assert found.measurements.keys() - expected.measurements.keys() == {"personal_score"}
        model = after(model, expected)


def test_a_personal_model_ends_between_its_own_optimum_and_the_received_model(
    tmp_path: Path,
) -> None:
    x, y = least_squares()
    network = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    batches = [{"image": x, "label": y}]
    client, _ = toy_client(tmp_path / "alder", network, batches, half_mean_square, 0.2)
    anchor = torch.tensor([[1.0, -2.0, 3.0]], dtype=torch.float64)
    for number in range(3):
        train(client, {"weight": anchor}, number, ditto_lambda=0.4, local_epochs=150.0)
    measure(client, {"weight": anchor}, "personal_score", closing=1.0)
    expected = torch.linalg.solve(
        x.T @ x / len(x) + 0.4 * torch.eye(3), x.T @ y / len(x) + 0.4 * anchor.T
    )
    torch.testing.assert_close(own_model(tmp_path)["weight"], expected.T, atol=1e-6, rtol=0)


def test_without_a_pull_the_first_personal_round_is_the_usual_training_and_scores_are_its_own(
    new_client: Any, weights: Weights, tmp_path: Path
) -> None:
    client = new_client(learning_rate=0.02)
    assert not measure(client, weights, "personal_score", number=0)
    reply = train(client, weights, 0, ("personal_score",), ditto_lambda=0.0, local_epochs=6.0)
    # A round without a personal model does not end it.
    train(client, weights, 1)
    restarted = new_client()
    names = ("personal_score", "personal_test_score", "score")
    last = measure(restarted, weights, *names, number=2, closing=1.0)
    personal = after(weights, reply)
    own = own_model(tmp_path)
    for name, tensor in personal.items():
        torch.testing.assert_close(own[name], tensor, atol=1e-6, rtol=0)
    expected = measure(client, own, "score", "test_score")
    assert last["personal_score"] == expected["score"] == reply.measurements["personal_score"]
    assert last["personal_test_score"] == expected["test_score"]
    assert value_of(last["score"]) < value_of(expected["score"])
    # It is of no earlier round.
    assert not measure(client, weights, "personal_score", number=0)


# ---- tensors that the server does not send


@pytest.fixture(scope="module")
def shared(weights: Weights, spec: ModelSpec) -> Weights:
    """The model less its normalisation layers: what FedBN sends."""
    norms = [name for name in spec.parameters if ".norm" in name]
    local = {*norms, *spec.buffers}
    assert norms and len(local) < len(weights)
    return {name: tensor for name, tensor in weights.items() if name not in local}


def test_local_tensors_stay_at_the_site_and_its_model_is_measured_with_them(
    new_client: Any, weights: Weights, shared: Weights, spec: ModelSpec, tmp_path: Path
) -> None:
    settings = {"learning_rate": 0.02, "norm": "batch"}
    lasting = new_client(state="lasting", **settings)
    context = {"local_norm": 1.0, "local_epochs": 4.0}
    for number in range(2):
        reply = train(lasting, shared, number, **context)
        restarted = new_client(state="restarted", **settings)
        found = train(restarted, shared, number, **context)
        assert set(reply.update or {}) == set(shared) and reply.buffers == {}
        assert same(reply.update, found.update)

    trained = lasting.trainer.network.state_dict()
    own = {name: trained[name].clone() for name in weights if name not in shared}
    # The second round went on from the first one's statistics.
    counters = [name for name in own if name.endswith("num_batches_tracked")]
    assert counters and {int(own[name]) for name in counters} == {8}
    names = ("score", "global_loss", "sharpness", "test_score")
    for client in (lasting, restarted):
        found = measure(client, shared, *names, number=2, local_norm=1.0, closing=1.0)
        assert found == measure(client, {**own, **shared}, *names, number=2)
    assert same({name: own_model(tmp_path, "lasting")[name] for name in own}, own)

    # This round's own tensors make what the server sends the local model.
    sent = {name: trained[name].clone() for name in shared}
    values = measure(lasting, sent, "cka", number=1, local_norm=1.0)["cka"]
    assert list(values.values()) == pytest.approx([1] * len(values), abs=1e-6)


def test_missing_parameters_are_refused_unless_they_are_those_of_normalisation_layers(
    new_client: Any, shared: Weights
) -> None:
    client = new_client()
    missing, *others = shared
    fewer = {name: shared[name] for name in others}
    for given, context in ((shared, {}), (fewer, {"local_norm": 1.0})):
        with refused("alder", "lack", by=ValueError) as caught:
            train(client, given, **context)
    assert missing in str(caught.value)


def test_a_personal_model_is_not_pulled_where_the_site_has_tensors_of_its_own(
    new_client: Any, shared: Weights, spec: ModelSpec, tmp_path: Path
) -> None:
    client = new_client()
    client.initialize({})
    initial = {name: t.clone() for name, t in client.trainer.network.state_dict().items()}
    train(client, shared, 0, local_norm=1.0, ditto_lambda=1e3, local_epochs=4.0)
    measure(client, shared, "personal_score", local_norm=1.0, closing=1.0)
    own = own_model(tmp_path)
    for name in spec.parameters:
        if name not in shared:
            assert not torch.equal(own[name], initial[name]), name


# ---- the last mile

NAMES = ["score", "test_score", "adapted_epochs"]
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
    found = close(client, weights, epochs=30, rate=0.02)
    gain = found["adapted_gain"]
    assert gain.n == 2 and gain.value > gain.stderr > 0
    assert 1 <= found["adapted_epochs"] <= 30

    # The file has the model whose scores were reported.
    adapted = own_model(tmp_path)
    scores = measure(client, adapted, "score", "test_score")
    assert scores == {name: found[f"adapted_{name}"] for name in scores}
    assert measure(client, weights, "score")["score"] == found["score"] != scores["score"]

    dice = []
    for name in ("-adapted_score-", "-score-"):
        [file] = (tmp_path / "alder" / "state").glob(f"r{name}*.csv")
        with file.open() as stream:
            dice.append([float(row["dice"]) for row in csv.DictReader(stream)])
    differences = np.subtract(*dice)
    assert gain.value == pytest.approx(differences.mean(), abs=1e-6)
    assert gain.stderr == pytest.approx(differences.std(ddof=1) / math.sqrt(2), abs=1e-6)


def test_the_usual_training_never_notices_the_last_mile_nor_the_last_mile_the_training(
    new_client: Any, weights: Weights
) -> None:
    plain = new_client(state="plain", **TWO_VALIDATE)
    adapting = new_client(state="adapting", **TWO_VALIDATE)
    first = close(adapting, weights, epochs=2, rate=0.02)
    for number in range(2):
        found = train(adapting, weights, number)
        assert same(found.update, train(plain, weights, number).update)
        assert close(adapting, weights, epochs=2, rate=0.02) == first


def test_without_a_gain_nothing_is_taken_and_the_training_ends_early(
    new_client: Any, tmp_path: Path
) -> None:
    # Statistics of batches would be averaged at any rate, and gain.
    weights, _ = tiny_model(norm="instance")
    client = new_client(**TWO_VALIDATE, norm="instance")
    client.initialize({})
    begun: list[int] = []
    client.trainer.add_event_handler(Events.EPOCH_STARTED, lambda: begun.append(1))
    # Nothing is learned, or the training diverges.
    for rate in (1e-12, 1e6):
        begun.clear()
        found = close(client, weights, epochs=50, rate=rate)
        assert len(begun) < 10
        assert found["adapted_gain"].value == found["adapted_epochs"] == 0
        assert found["adapted_score"] == found["score"]
    # Of one validation case nobody knows how far to trust it.
    weights, _ = tiny_model()
    found = close(new_client("elm"), weights, epochs=8, rate=0.02)
    assert found["adapted_gain"].n == 1 and found["adapted_gain"].stderr is None
    assert not list(tmp_path.rglob("*own.pt"))


def test_a_model_trained_alone_is_taken_where_validation_says_so(
    new_client: Any, weights: Weights, spec: ModelSpec, tmp_path: Path
) -> None:
    trained = new_client(state="alone", **TWO_VALIDATE)
    alone = weights
    for number in range(4):
        alone = after(alone, train(trained, alone, number, local_epochs=4.0))
    file = tmp_path / "alone.pt"
    save_model_file(file, spec.with_aliases(alone))

    client = new_client(arguments={"alone": file}, **TWO_VALIDATE)
    found = close(client, weights)
    assert found["alone_gain"].value > found["alone_gain"].stderr, "the test needs a better model"
    scores = measure(client, alone, "score", "test_score")
    assert scores == {name: found[f"alone_{name}"] for name in scores}
    assert same(own_model(tmp_path), spec.with_aliases(alone))


def test_a_file_that_cannot_be_used_is_no_candidate_and_ends_nothing(
    new_client: Any, weights: Weights, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "alone.pt"
    client = new_client(arguments={"alone": file}, **TWO_VALIDATE)
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"no model")
    save_model_file(tmp_path / "another", tiny_model(channels=[8, 16, 16])[0])
    for content in (None, garbage, tmp_path / "another"):
        caplog.clear()
        if content is not None:
            file.write_bytes(content.read_bytes())
        with caplog.at_level(logging.WARNING):
            found = close(client, weights)
        assert "alone_gain" not in found and "adapted_gain" in found
        assert "alder" in caplog.text and str(file) in caplog.text


def test_the_fused_candidate_is_the_ensemble_of_the_own_model_and_the_one_trained_alone(
    new_client: Any, tmp_path: Path
) -> None:
    # Averaged statistics of batches gain at any rate, and then the adapted model would be fused.
    settings = {**TWO_VALIDATE, "norm": "instance", "learning_rate": 0.02}
    weights, spec = tiny_model(norm="instance")
    first = new_client(state="first", **settings)
    received = after(weights, train(first, weights, 0, local_epochs=6.0))
    alone = after(weights, train(new_client(state="alone", **settings), weights, 3))
    file = tmp_path / "alone.pt"
    save_model_file(file, spec.with_aliases(alone))
    client = new_client(arguments={"alone": file}, **settings)

    assert "fused_gain" not in close(client, received)
    found = close(client, received, adapt_fuse=1.0)
    models = [spec.with_aliases(received), spec.with_aliases(alone)]
    expected = dice_of_ensemble(client.train_workflow.evaluator, models)
    assert found["fused_score"]["mean"].value == pytest.approx(expected, abs=1e-6)
    before = measure(client, received, "score")["score"]
    assert value_of(before) == value_of(found["score"]) != pytest.approx(expected, abs=1e-6)
    assert found["fused_gain"].value == pytest.approx(expected - value_of(before), abs=1e-6)


def dice_of_ensemble(evaluator: SupervisedEvaluator, models: list[Weights]) -> float:
    """The Dice of models whose outputs are averaged, by MONAI's own ensemble."""
    networks = []
    for weights in models:
        network = copy.deepcopy(evaluator.network)
        network.load_state_dict(weights)
        networks.append(network)
    names = [f"pred_{number}" for number in range(len(models))]
    steps = [
        MeanEnsembled(keys=names, output_key="pred"),
        Activationsd("pred", sigmoid=True),
        AsDiscreted("pred", threshold=0.5),
    ]
    ensemble = EnsembleEvaluator(
        device=torch.device(DEVICE),
        val_data_loader=evaluator.data_loader,
        pred_keys=names,
        networks=networks,
        inferer=evaluator.inferer,
        postprocessing=Compose(steps),
        key_val_metric={"dice": MeanDice(output_transform=from_engine(["pred", "label"]))},
    )
    ensemble.run()
    return float(ensemble.state.metrics["dice"])


def test_the_adapted_model_is_the_one_that_is_fused_and_stays_where_fusing_loses(
    new_client: Any, tmp_path: Path
) -> None:
    settings = {**TWO_VALIDATE, "norm": "instance", "learning_rate": 0.02}
    weights, spec = tiny_model(norm="instance")
    first = new_client(state="first", **settings)
    received = after(weights, train(first, weights, 0, local_epochs=6.0))
    [bias] = [name for name in spec.parameters if name.endswith("output_block.conv.conv.bias")]
    file = tmp_path / "alone.pt"
    client = new_client(arguments={"alone": file}, **settings)
    own = []
    # The second one outlines nothing, whatever the other one thinks.
    for alone in (weights, {**weights, bias: weights[bias] - 1000}):
        save_model_file(file, spec.with_aliases(alone))
        found = close(client, received, epochs=10, rate=0.02, adapt_fuse=1.0)
        assert found["adapted_gain"].value > found["adapted_gain"].stderr
        own.append(own_model(tmp_path))
    fused, adapted = own
    assert found["fused_gain"].value < -0.02
    assert measure(client, adapted, "score")["score"] == found["adapted_score"]
    assert same(fused, fused_weights([adapted, spec.with_aliases(weights)]))


class Ensemble(nn.Module):
    """A network whose own parts have the name that a fused model gives to its members."""

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.members = nn.ModuleList(nn.Conv2d(1, 1, 1, bias=False) for _ in values)
        for part, value in zip(self.members, values, strict=True):
            nn.init.constant_(part.weight, value)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.members[0](images) + self.members[1](images)


def test_a_network_whose_parts_are_called_members_is_fused_as_any_other(tmp_path: Path) -> None:
    square = torch.zeros(1, 1, 8, 8)
    square[..., 2:6, 2:6] = 1
    batches = [{"image": square, "label": square}]
    loss = nn.BCEWithLogitsLoss()
    file = tmp_path / "alone.pt"
    save_model_file(file, Ensemble(0.3, 0.4).state_dict())
    client, weights = toy_client(tmp_path, Ensemble(0.1, 0.1), batches, loss, alone=file)
    found = close(client, weights, adapt_fuse=1.0)
    # Outputs of 0.2 and 0.7, whose mean is below the threshold of 0.5.
    scores = [value_of(found[name]) for name in ("score", "alone_score", "fused_score")]
    assert scores == [0, 1, 0]
