# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""MONAI's own calls: what ``MonaiAlgo`` does right ours does alike, and nothing goes wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.client_requests import PROSTATE, abort_at, broken, same
from helpers.refusals import refused
from ignite.engine import Events
from monai.fl.client import MonaiAlgo
from monai.fl.utils.constants import ExtraItems, FlStatistics, ModelType, WeightType
from monai.fl.utils.exchange_object import ExchangeObject

from monai_fairfl import FairMonaiAlgo, ModelSpec
from monai_fairfl.errors import ConfigError, TransportAborted

Weights = dict[str, torch.Tensor]

NAMED = {ExtraItems.CLIENT_NAME: "alder"}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A copy of the bundle in ``app/bundle``, whose training also stores its final model."""
    root = tmp_path / "app" / "bundle"
    shutil.copytree(PROSTATE, root, ignore=shutil.ignore_patterns("runs", "models"))
    saver = {
        "_target_": "CheckpointSaver",
        "save_dir": "@ckpt_dir",
        "save_dict": {"model": "@network"},
        "save_final": True,
        "final_filename": "model_final.pt",
    }
    (root / "configs" / "final.json").write_text(json.dumps({"+train#handlers": [saver]}))
    return root


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


def trained(client: Any, weights: Weights, seed: int = 3) -> ExchangeObject:
    """What a client sends after a training whose random numbers follow from ``seed``."""
    torch.manual_seed(seed)
    client.trainer.data_loader.dataset.transform.set_random_state(seed)
    client.train(ExchangeObject(weights=dict(weights)))
    sent: ExchangeObject = client.get_weights()
    return sent


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
    results = []
    for kind in (MonaiAlgo, FairMonaiAlgo):
        arguments = {"local_epochs": 2}
        if kind is FairMonaiAlgo:
            arguments["all_handlers"] = True
        client = built(kind, arguments=arguments, val_interval=1)
        for number in (1, 2):
            sent = trained(client, whole, seed=number)
            assert steps(sent) == 4 and sent.weight_type == WeightType.WEIGHT_DIFF
            assert sent.statistics["current_epoch"] == 2 * number
            assert sent.statistics["current_iteration"] == 4 * number
        client.send_weight_diff = False
        full = client.get_weights()
        assert full.weight_type == WeightType.WEIGHTS
        assert same(full.weights, network_of(client))
        results.append((sent, network_of(client), evaluated(client, full.weights)))
        client.finalize()
    (stock, stock_model, stock_metrics), (ours, model, metrics) = results
    assert same(stock.weights, ours.weights) and any(v.any() for v in ours.weights.values())
    assert stock.statistics == ours.statistics
    assert same(stock_model, model)
    assert stock_metrics == metrics and "val_mean_dice" in metrics


def test_weights_before_a_training_are_the_initial_ones_and_a_difference_is_an_error(
    new_client: Any, built: Any
) -> None:
    assert new_client().get_weights().weights is None
    client = built(arguments={"send_weight_diff": False})
    assert same(client.get_weights().weights, network_of(client))
    client.send_weight_diff = True
    with refused("weight", by=ValueError):
        client.get_weights()


def test_a_relative_bundle_begins_at_the_app_root_of_the_first_initialize(
    new_client: Any, bundle: Path, whole: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    extra = {**NAMED, ExtraItems.APP_ROOT: "app"}
    evaluation = bundle / "configs" / "evaluate.json"
    content = evaluation.read_text()
    client = new_client(bundle="bundle", batch_size=1)
    evaluation.write_text("{")
    with pytest.raises(ValueError, match="evaluate.json|JSON|xpecting"):
        client.initialize(extra)
    client.abort()
    client.finalize()
    # The bundle was mended. A second call does nothing.
    evaluation.write_text(content)
    for _ in range(2):
        client.initialize(extra)
    assert steps(trained(client, whole)) == 2
    assert "val_mean_dice" in evaluated(client, whole)


def test_a_client_without_a_training_evaluates(built: Any, whole: Weights) -> None:
    client = built(arguments={"config_train_filename": None})
    assert evaluated(client, whole) == evaluated(built(), whole)
    sent = client.get_weights()
    assert sent.weights is None and sent.weight_type is None
    with refused("alder", "evaluates", by=ConfigError):
        client.train(ExchangeObject(weights=whole))


@pytest.mark.parametrize("evaluates", [True, False])
def test_a_stats_sender_is_attached_to_the_engines_that_there_are(
    evaluates: bool, new_client: Any, whole: Weights
) -> None:
    attached = []

    class Sender:
        def attach(self, engine: Any) -> None:
            name = type(engine).__name__
            engine.add_event_handler(Events.EPOCH_COMPLETED, lambda: attached.append(name))

    client = new_client(arguments={} if evaluates else {"config_evaluate_filename": None})
    client.initialize({**NAMED, ExtraItems.STATS_SENDER: Sender()})
    trained(client, whole)
    if evaluates:
        evaluated(client, whole)
    assert attached == ["SupervisedTrainer", "SupervisedEvaluator"][: 1 + evaluates]


@pytest.mark.parametrize(
    ("model_type", "file"),
    [(ModelType.BEST_MODEL, "model.pt"), (ModelType.FINAL_MODEL, "model_final.pt")],
)
def test_best_and_final_models_are_read_from_disk(
    built: Any, bundle: Path, whole: Weights, model_type: ModelType, file: str
) -> None:
    asked = {ExtraItems.MODEL_TYPE: model_type}
    files = ["configs/train.json", "configs/final.json"]
    client = built(
        bundle=bundle,
        ckpt_dir=str(bundle / "models"),
        val_interval=1,
        arguments={"config_train_filename": files, "all_handlers": True},
    )
    with refused(file, by=ValueError):
        client.get_weights(asked)
    # After one epoch the best model and the final one are the network.
    trained(client, whole)
    assert same(client.get_weights(asked).weights, network_of(client))


def test_the_best_model_of_an_earlier_training_is_not_taken_for_one_of_this(
    built: Any, bundle: Path, whole: Weights
) -> None:
    best = {ExtraItems.MODEL_TYPE: ModelType.BEST_MODEL}
    (bundle / "models").mkdir()
    torch.save({"model": whole, "ema": {"w": torch.ones(2)}}, bundle / "models" / "model.pt")
    client = built(bundle=bundle)
    # No training yet: a model to begin with.
    assert same(client.get_weights(best).weights, whole)
    client.save_dict_key = "ema"
    assert same(client.get_weights(best).weights, {"w": torch.ones(2)})
    trained(client, whole)
    with refused("alder", "model.pt", "older", by=ConfigError):
        client.get_weights(best)


# ---- weights and metrics


def test_what_is_returned_shares_no_memory_and_has_the_tensors_that_were_sent(
    built: Any, parameters: Weights, whole: Weights
) -> None:
    client = built(learning_rate=0.05)
    # The live network's own tensors are no copy of the weights.
    client.train(ExchangeObject(weights=client.trainer.network.state_dict()))
    assert any(change.any() for change in client.get_weights().weights.values())

    sent = trained(client, parameters).weights
    assert set(sent) == set(parameters)
    model = network_of(client)
    for name, change in sent.items():
        torch.testing.assert_close(change, model[name] - parameters[name])
    assert same(client.get_weights().weights, sent)
    client.send_weight_diff = False
    for tensor in client.get_weights().weights.values():
        tensor.zero_()
    assert same(network_of(client), model)

    # Statistics of batches that were not sent are those of the training.
    first = evaluated(client, model)
    values = dict(first)
    of_parameters = {name: model[name] for name in parameters}
    assert evaluated(client, of_parameters) == values
    assert evaluated(built(state="new"), of_parameters) != values
    assert evaluated(client, whole) != values and first == values


def test_weights_that_are_none_or_of_another_network_are_refused(
    built: Any, whole: Weights
) -> None:
    client = built()
    name = next(iter(whole))
    for words, given in (
        (("alder", "ExchangeObject"), whole),
        (("alder", "NoneType"), ExchangeObject()),
        (("alder", "lack"), ExchangeObject(weights={name: whole[name]})),
        ((name,), ExchangeObject(weights={**whole, name: torch.ones(3)})),
    ):
        for ask in (client.train, client.evaluate):
            with refused(*words, by=ValueError):
                ask(given)


# ---- building and releasing


def test_a_half_built_client_is_released_without_hiding_the_error(new_client: Any) -> None:
    faulty = {"validate#evaluator#nothing": 1, "finalize": ["$@validate#evaluator.terminate()"]}
    client = new_client(**faulty)
    with refused("SupervisedEvaluator", by=RuntimeError):
        client.initialize(NAMED)
    client.finalize()
    client.abort()
    for ask in (client.train, client.evaluate):
        with refused("initialize", by=ConfigError):
            ask(ExchangeObject(weights={}))


def test_the_bundles_own_finalize_still_raises_where_the_client_was_built(built: Any) -> None:
    with refused("1 / 0", by=RuntimeError):
        built(finalize=["$1 / 0"]).finalize()


def test_an_evaluation_is_of_the_network_that_is_trained_and_needs_a_file(
    new_client: Any, built: Any, bundle: Path, whole: Weights
) -> None:
    (bundle / "configs" / "small.json").write_text(json.dumps({"channels": [4, 4, 4]}))
    files = ["configs/train.json", "configs/small.json"]
    client = new_client(bundle=bundle, arguments={"config_train_filename": files})
    del client.train_kwargs["channels"], client.eval_kwargs["channels"]
    client.initialize(NAMED)
    assert "val_mean_dice" in evaluated(client, network_of(client))

    (bundle / "configs" / "evaluate.json").unlink()
    client = built(bundle=bundle)
    with refused("alder", str(bundle), "evaluate.json", by=ConfigError):
        evaluated(client, whole)
    nothing = {"config_train_filename": None, "config_evaluate_filename": None}
    with refused("alder", "configured", by=ConfigError):
        built(arguments=nothing)


# ---- aborts and failures


def test_after_an_abort_or_a_failure_the_next_training_is_a_whole_one(
    built: Any, whole: Weights
) -> None:
    client = built()
    # Nothing runs: it has no effect.
    client.abort()
    assert steps(trained(client, whole)) == 2
    abort_at(client, client.trainer)
    assert steps(trained(client, whole)) == 1
    assert steps(trained(client, whole)) == 2

    usual = client.trainer.loss_function
    client.trainer.loss_function = broken(usual, 1, MemoryError("out of memory"))
    with pytest.raises(MemoryError):
        trained(client, whole)
    client.trainer.loss_function = usual
    sent = trained(client, whole)
    assert steps(sent) == 2
    # Whole epochs count.
    assert sent.statistics["current_epoch"] == 3
    for _ in range(2):
        client.finalize()
    client.abort()


def test_after_an_abort_or_a_failure_an_evaluation_never_repeats_the_scores_of_another_model(
    built: Any, whole: Weights
) -> None:
    client = built(split_fractions=[0.25, 0.25, 0.5])
    other = {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
    expected = evaluated(client, other)
    assert evaluated(client, whole) != expected
    usual = client.evaluator.inferer
    client.evaluator.inferer = broken(usual, 1, MemoryError("out of memory"))
    with pytest.raises(MemoryError):
        evaluated(client, other)
    client.evaluator.inferer = usual
    assert evaluated(client, other) == expected

    evaluated(client, whole)
    abort_at(client, client.evaluator)
    with refused("aborted", by=TransportAborted):
        evaluated(client, other)
    assert evaluated(client, other) == expected
