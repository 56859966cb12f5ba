# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The candidates of the last mile: the model trained alone, and two models fused."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.client_requests import after, same, tiny_model, train
from monai.engines import EnsembleEvaluator, SupervisedEvaluator
from monai.handlers import MeanDice, from_engine
from monai.transforms import Compose, MeanEnsembled

from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.model_files.recipe import save_model_file, state_of_file
from monai_fairfl.protocol.last_mile import CANDIDATES, chosen, gain_name, score_names
from monai_fairfl.protocol.messages import Request
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.values import Estimate
from monai_fairfl.utils.engine_internals import postprocessing_of

Maker = Callable[..., FairMonaiAlgo]
Weights = dict[str, torch.Tensor]

NAMES = ["score", "test_score", "adapted_epochs"]
for _candidate in CANDIDATES:
    NAMES += [gain_name(_candidate), *score_names(_candidate).values()]
TWO_VALIDATE = {"split_fractions": [0.25, 0.5, 0.25]}


def close(client: FairMonaiAlgo, weights: Weights, **context: float) -> Any:
    """Let the client measure at the end of a run, with a last mile that trains nothing."""
    last_mile = {"closing": 1.0, "adapt_epochs": 1.0, "adapt_rate": 1e-9, **context}
    request = Request(
        "alder", "measure", weights, tuple(NAMES), last_mile, run="r", round=3, seed=3
    )
    return client.answer(request).measurements


def score(client: FairMonaiAlgo, weights: Weights, name: str = "score") -> Any:
    request = Request("alder", "measure", weights, (name,), {}, run="r", round=3, seed=3)
    return client.answer(request).measurements[name]


@pytest.mark.slow
def test_a_model_trained_alone_is_taken_where_validation_says_so(
    prostate_client: Maker, weights: Weights, spec: ModelSpec, tmp_path: Path
) -> None:
    trained = prostate_client(state="alone", **TWO_VALIDATE)
    alone = weights
    for number in range(6):
        alone = after(alone, train(trained, alone, number, local_epochs=4.0))
    file = tmp_path / "alone.pt"
    save_model_file(file, spec.with_aliases(alone))

    client = prostate_client(state="federated", **TWO_VALIDATE)
    client.alone = file
    found = close(client, weights)
    gain = found["alone_gain"]
    assert gain.value > gain.stderr, "the test needs a model that learned something"
    assert found["alone_score"] == score(client, alone)
    assert found["alone_test_score"] == score(client, alone, "test_score")
    [own] = [path for path in tmp_path.rglob("*own.pt") if "federated" in str(path)]
    assert same(dict(state_of_file(own)), spec.with_aliases(alone))


@pytest.mark.slow
@pytest.mark.parametrize("content", ["nothing", "garbage", "another network"])
def test_a_file_that_cannot_be_used_is_no_candidate_and_ends_nothing(
    content: str,
    prostate_client: Maker,
    weights: Weights,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = tmp_path / "alone.pt"
    if content == "garbage":
        file.write_bytes(b"no model")
    if content == "another network":
        save_model_file(file, tiny_model(channels=[8, 16, 16])[0])
    client = prostate_client(**TWO_VALIDATE)
    client.alone = file
    with caplog.at_level(logging.WARNING):
        found = close(client, weights)
    assert "alone_gain" not in found and "adapted_gain" in found
    assert "client alder: the model trained alone" in caplog.text and "alone.pt" in caplog.text


@pytest.mark.slow
def test_the_fused_candidate_is_the_ensemble_of_the_own_model_and_the_one_trained_alone(
    prostate_client: Maker, tmp_path: Path
) -> None:
    # Averaged statistics of batches gain at any rate, and then the adapted model would be fused.
    settings = {**TWO_VALIDATE, "norm": "instance"}
    weights, spec = tiny_model(norm="instance")
    client = prostate_client(**settings)
    received = weights
    for number in range(3):
        received = after(received, train(client, received, number))
    alone = after(weights, train(prostate_client(state="alone", **settings), weights, 0))
    file = tmp_path / "alone.pt"
    save_model_file(file, spec.with_aliases(alone))
    client.alone = file

    assert "fused_gain" not in close(client, received)
    found = close(client, received, adapt_fuse=1.0)
    expected = dice_of_ensemble(client.train_workflow.evaluator, [received, alone])
    assert found["fused_score"]["mean"].value == pytest.approx(expected, abs=1e-6)
    expected_of_tests = dice_of_ensemble(client.evaluator, [received, alone])
    assert found["fused_test_score"]["mean"].value == pytest.approx(expected_of_tests, abs=1e-6)
    before = score(client, received)["mean"].value
    assert found["fused_gain"].value == pytest.approx(expected - before, abs=1e-6)
    # The client's own network is as before.
    assert score(client, received)["mean"].value == before


@pytest.mark.slow
def test_a_model_that_was_adapted_is_fused_in_place_of_the_one_before(
    prostate_client: Maker, weights: Weights, spec: ModelSpec, tmp_path: Path
) -> None:
    alone = after(weights, train(prostate_client(state="alone", **TWO_VALIDATE), weights, 0))
    file = tmp_path / "alone.pt"
    save_model_file(file, spec.with_aliases(alone))
    client = prostate_client(state="federated", **TWO_VALIDATE)
    client.alone = file
    found = close(client, weights, adapt_epochs=20.0, adapt_rate=0.02, adapt_fuse=1.0)
    gains = {name: found[gain_name(name)] for name in ("adapted", "alone", "fused")}
    without_fused = {name: gains[name] for name in ("adapted", "alone")}
    assert chosen(without_fused) == "adapted" and chosen(gains) == "fused", "the test needs both"

    [own] = [path for path in tmp_path.rglob("*own.pt") if "federated" in str(path)]
    fused = state_of_file(own)
    adapted = {name: fused[f"members.0.{name}"] for name in weights}
    assert score(client, adapted) == found["adapted_score"] != score(client, weights)
    assert same({name: fused[f"members.1.{name}"] for name in weights}, alone)


def dice_of_ensemble(evaluator: SupervisedEvaluator, models: list[Weights]) -> float:
    """The Dice of models whose outputs are averaged, by MONAI's own ensemble."""
    networks = []
    for weights in models:
        network = copy.deepcopy(evaluator.network)
        network.load_state_dict(weights, strict=False)
        networks.append(network)
    names = [f"pred_{number}" for number in range(len(models))]
    dice = MeanDice(output_transform=from_engine(["pred", "label"]))
    ensemble = EnsembleEvaluator(
        device=torch.device("cpu"),
        val_data_loader=evaluator.data_loader,
        pred_keys=names,
        networks=networks,
        inferer=evaluator.inferer,
        postprocessing=Compose(
            [MeanEnsembled(keys=names, output_key="pred"), postprocessing_of(evaluator)]
        ),
        key_val_metric={"dice": dice},
    )
    ensemble.run()
    return float(ensemble.state.metrics["dice"])


def test_a_fused_model_need_not_gain_and_must_not_lose() -> None:
    gain = Estimate(0.3, 0.01, 4)
    for value, expected in ((0.05, "fused"), (-0.015, "fused"), (-0.03, "adapted")):
        assert chosen({"adapted": gain, "fused": Estimate(value, 0.04, 4)}) == expected
    unsure = Estimate(0.3, 0.4, 4)
    for value, expected_then in ((-0.015, "fused"), (-0.03, None)):
        assert chosen({"adapted": unsure, "fused": Estimate(value, 0.001, 4)}) == expected_then
    # No case had a score.
    assert chosen({"fused": Estimate(0.0, None, 0)}) is None


def test_the_largest_gain_above_its_standard_error_is_chosen() -> None:
    small, large = Estimate(0.02, 0.01, 4), Estimate(0.05, 0.01, 4)
    unsure = Estimate(0.2, 0.3, 4)
    assert chosen({"adapted": small, "alone": large}) == "alone"
    assert chosen({"adapted": unsure, "alone": small}) == "alone"
    assert chosen({"alone": small, "adapted": small}) == "adapted"
    assert chosen({"alone": unsure}) is None
    assert chosen({}) is None
