# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""One contract for MONAI's ``MonaiAlgo`` and our ``FairMonaiAlgo``: the same calls on both.

What the stock client can do, ours can, with the same numbers. Where the stock client is broken, and
ours is not, is in the other files ``test_contract_*.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.algo_calls import (
    any_change,
    both,
    copies,
    evaluate,
    network,
    steps,
    train,
)
from helpers.client_requests import same
from helpers.contract_bundles import ContractBundle, on_every_bundle
from ignite.engine import Events
from monai.bundle import ConfigWorkflow
from monai.fl.client import MonaiAlgo
from monai.fl.utils.constants import ExtraItems, FlStatistics, WeightType
from monai.fl.utils.exchange_object import ExchangeObject
from monai.handlers import StatsHandler

from monai_fairfl.client.algo import FairMonaiAlgo

Maker = Callable[..., Any]
Weights = dict[str, torch.Tensor]


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides", [{"val_interval": 0}, {"val_interval": 1}, {"norm": "instance"}]
)
def test_the_same_seed_gives_the_same_weights_statistics_and_metrics(
    built: Maker, overrides: dict[str, Any]
) -> None:
    check_same(built, overrides)


@pytest.mark.long
@pytest.mark.slow
@on_every_bundle
def test_so_it_is_on_every_bundle(built: Maker, contract_bundle: ContractBundle) -> None:
    contract_bundle.skip_unless_it_repeats()
    check_same(built, {"val_interval": 1})


def check_same(built: Maker, overrides: dict[str, Any]) -> None:
    """Both clients train twice from the same weights, and score the same model."""
    differences = []
    models = []
    metrics = []
    stock = built(MonaiAlgo, overrides, local_epochs=2)
    ours = built(FairMonaiAlgo, overrides, local_epochs=2, all_handlers=True)
    for client in (stock, ours):
        received = network(client)
        train(client, received, seed=3)
        train(client, received, seed=4)

        difference = client.get_weights()
        assert difference.weight_type == WeightType.WEIGHT_DIFF
        assert any_change(difference.weights)
        assert set(difference.weights) == set(received)
        differences.append(difference)

        client.send_weight_diff = False
        full = client.get_weights()
        assert full.weight_type == WeightType.WEIGHTS
        assert set(full.weights) == set(received)
        models.append(copies(full.weights))

        metrics.append(evaluate(client, full.weights))
        client.finalize()

    assert same(differences[0].weights, differences[1].weights)
    assert differences[0].statistics == differences[1].statistics
    assert same(*models)
    assert metrics[0] == metrics[1]
    assert "val_mean_dice" in metrics[1]


@on_every_bundle
@pytest.mark.slow
@both
def test_a_training_counts_its_steps_and_goes_on_from_the_last(
    built: Maker, initial: Weights, kind: type[MonaiAlgo]
) -> None:
    client = built(kind, local_epochs=2)
    for number in (1, 2):
        train(client, initial)
        statistics = client.get_weights().statistics
        assert statistics[FlStatistics.NUM_EXECUTED_ITERATIONS] == 4
        assert statistics["current_epoch"] == 2 * number
        assert statistics["current_iteration"] == 4 * number


@on_every_bundle
@both
def test_weights_before_a_training_are_the_initial_ones_and_a_difference_is_an_error(
    built: Maker, kind: type[MonaiAlgo]
) -> None:
    assert built(kind, initialize=False).get_weights().weights is None

    client = built(kind, send_weight_diff=False)
    sent = client.get_weights()
    assert same(sent.weights, network(client))
    assert sent.weight_type == WeightType.WEIGHTS

    client.send_weight_diff = True
    with pytest.raises(ValueError, match="weight differences"):
        client.get_weights()


@both
def test_a_relative_bundle_begins_at_the_app_root(
    built: Maker,
    weights: Weights,
    kind: type[MonaiAlgo],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    client = built(kind, extra={ExtraItems.APP_ROOT: str(tmp_path / "app")}, bundle_root="bundle")
    train(client, weights)
    assert steps(client) == 2
    assert 0 <= evaluate(client, weights)["val_mean_dice"] <= 1


@pytest.mark.slow
@both
def test_a_client_without_a_training_evaluates(
    built: Maker, weights: Weights, kind: type[MonaiAlgo]
) -> None:
    client = built(kind, config_train_filename=None)
    whole = built(kind)
    assert evaluate(client, weights) == evaluate(whole, weights)

    sent = client.get_weights()
    assert sent.weights is None
    assert sent.weight_type is None
    with pytest.raises(ValueError):
        client.train(ExchangeObject(weights=dict(weights)))
    client.abort()
    client.finalize()


@on_every_bundle
@both
def test_a_workflow_object_may_replace_the_files(
    built: Maker,
    initial: Weights,
    kind: type[MonaiAlgo],
    bundle: Path,
    contract_bundle: ContractBundle,
) -> None:
    contract_bundle.skip_unless_it_repeats()
    by_files = built(kind)
    workflow = ConfigWorkflow(
        [str(bundle / file) for file in contract_bundle.files],
        logging_file=False,
        workflow_type="train",
        **by_files.train_kwargs,
    )
    by_object = built(kind, train_workflow=workflow)
    train(by_files, initial)
    train(by_object, initial)
    assert same(by_files.get_weights().weights, by_object.get_weights().weights)


@on_every_bundle
@both
def test_wrong_input_is_a_value_error(
    built: Maker, initial: Weights, kind: type[MonaiAlgo]
) -> None:
    client = built(kind, config_evaluate_filename=None)
    for wrong in (initial, None):
        with pytest.raises(ValueError, match="ExchangeObject"):
            client.train(wrong)
    with pytest.raises(ValueError, match="evaluator"):
        client.evaluate(ExchangeObject(weights=dict(initial)))

    name = next(iter(initial))
    of_another_shape = {**initial, name: torch.ones(3)}
    with pytest.raises(ValueError, match=f"Convert weight from {name} failed"):
        client.train(ExchangeObject(weights=of_another_shape))


@on_every_bundle
@both
def test_a_stats_sender_is_attached_to_both_engines(
    built: Maker, initial: Weights, kind: type[MonaiAlgo]
) -> None:
    attached = []

    class Sender(StatsHandler):
        def attach(self, engine: Any) -> None:
            engine.add_event_handler(Events.EPOCH_COMPLETED, self.epoch_completed)

        def epoch_completed(self, engine: Any) -> None:
            attached.append(type(engine).__name__)

    client = built(kind, extra={ExtraItems.STATS_SENDER: Sender(name="sender")})
    train(client, initial)
    evaluate(client, initial)
    assert attached == ["SupervisedTrainer", "SupervisedEvaluator"]
