# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""MONAI's own calls: what ``MonaiAlgo`` does right ours does alike, and nothing goes wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.client_requests import abort_at, broken, monai_training, same
from helpers.refusals import refused
from monai.fl.client import MonaiAlgo
from monai.fl.utils.constants import ExtraItems, FlStatistics, ModelType, WeightType
from monai.fl.utils.exchange_object import ExchangeObject

from monai_fairfl import FairMonaiAlgo, ModelSpec
from monai_fairfl.errors import ConfigError, TransportAborted

Weights = dict[str, torch.Tensor]

NAMED = {ExtraItems.CLIENT_NAME: "alder"}


@pytest.fixture
def built(new_client: Any) -> Any:
    """Maker of initialised clients."""

    def make(kind: type[MonaiAlgo] = FairMonaiAlgo, **given: Any) -> Any:
        client = new_client(**{"kind": kind, "batch_size": 1, "val_interval": 0, **given})
        client.initialize(NAMED)
        return client

    return make


@pytest.fixture(scope="module")
def whole(weights: Weights, spec: ModelSpec) -> Weights:
    """The first model with all names of its tensors, as a network's ``state_dict`` has them."""
    return dict(spec.with_aliases(weights))


def evaluated(client: Any, weights: Weights) -> dict[str, float]:
    metrics: dict[str, float] = client.evaluate(ExchangeObject(weights=dict(weights))).metrics
    return metrics


def network_of(client: Any) -> Weights:
    return {name: tensor.clone() for name, tensor in client.trainer.network.state_dict().items()}


def steps(sent: ExchangeObject) -> int:
    count: int = sent.statistics[FlStatistics.NUM_EXECUTED_ITERATIONS]
    return count


# ---- the same as MONAI's


def test_the_same_seed_gives_the_weights_statistics_and_metrics_of_monais_client(
    built: Any, whole: Weights
) -> None:
    def results(kind: type[MonaiAlgo]) -> tuple[Any, Weights, Any]:
        client = built(kind, arguments={"local_epochs": 2})
        for number in (1, 2):
            sent = monai_training(client, whole, seed=number)
            assert steps(sent) == 4 and sent.weight_type == WeightType.WEIGHT_DIFF
            assert sent.statistics["current_epoch"] == 2 * number
        client.send_weight_diff = False
        full = client.get_weights()
        assert full.weight_type == WeightType.WEIGHTS
        found = (sent, network_of(client), evaluated(client, full.weights))
        client.finalize()
        return found

    stock, stock_model, stock_metrics = results(MonaiAlgo)
    ours, model, metrics = results(FairMonaiAlgo)
    assert same(stock.weights, ours.weights) and same(stock_model, model)
    assert stock.statistics == ours.statistics
    assert stock_metrics == metrics and "val_mean_dice" in metrics


# ---- weights and metrics


def test_what_is_returned_shares_no_memory_and_has_the_tensors_that_were_sent(
    built: Any, weights: Weights, spec: ModelSpec
) -> None:
    parameters = {name: weights[name] for name in spec.parameters}
    client = built(learning_rate=0.05)
    sent = monai_training(client, parameters).weights
    assert set(sent) == set(parameters)
    client.model_filepaths[ModelType.BEST_MODEL] = __file__
    with pytest.raises(ConfigError, match="older than this training"):
        client.get_weights({ExtraItems.MODEL_TYPE: ModelType.BEST_MODEL})
    model = network_of(client)
    for name, change in sent.items():
        torch.testing.assert_close(change, model[name] - parameters[name])
    assert same(client.get_weights().weights, sent)
    client.send_weight_diff = False
    for tensor in client.get_weights().weights.values():
        tensor.zero_()
    assert same(network_of(client), model)

    # Statistics of batches that were not sent are those of the training.
    of_parameters = {name: model[name] for name in parameters}
    assert evaluated(client, of_parameters) == evaluated(client, model)


# ---- aborts and failures


def test_after_an_abort_or_a_failure_the_next_training_and_evaluation_are_whole(
    built: Any, whole: Weights
) -> None:
    twice = {"train#dataset#data": "$@datalist['training'] * 2"}
    client = built(split_fractions=[0.25, 0.25, 0.5], **twice)
    # Nothing runs: it has no effect.
    client.abort()
    assert steps(monai_training(client, whole)) == 2
    abort_at(client, client.trainer)
    assert steps(monai_training(client, whole)) == 1
    usual = client.trainer.loss_function
    client.trainer.loss_function = broken(usual, 1, MemoryError("out of memory"))
    with pytest.raises(MemoryError):
        monai_training(client, whole)
    client.trainer.loss_function = usual
    sent = monai_training(client, whole)
    # Whole epochs count.
    assert steps(sent) == 2 and sent.statistics["current_epoch"] == 2

    other = {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
    expected = evaluated(client, other)
    # Scores are never those of the model before.
    assert evaluated(client, whole) != expected
    usual = client.evaluator.inferer
    client.evaluator.inferer = broken(usual, 1, MemoryError("out of memory"))
    with pytest.raises(MemoryError):
        evaluated(client, other)
    client.evaluator.inferer = usual
    abort_at(client, client.evaluator)
    with refused("aborted", by=TransportAborted):
        evaluated(client, other)
    assert evaluated(client, other) == expected
