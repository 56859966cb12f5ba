# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""One contract for MONAI's ``MonaiAlgo`` and our ``FairMonaiAlgo``: a tiny bundle, NIfTI files.

The first part runs both through the same calls: what the stock client can do, ours can, with the
same numbers. The second part names each point where the stock client is broken, and shows that ours
is not.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.checkout import CHECKOUT, TINY
from helpers.client_requests import same, tiny_model
from ignite.engine import Events
from monai.bundle import ConfigWorkflow
from monai.fl.client import MonaiAlgo, MonaiAlgoStats
from monai.fl.utils.constants import ExtraItems, FlStatistics, ModelType, WeightType
from monai.fl.utils.exchange_object import ExchangeObject
from monai.handlers import StatsHandler

from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.client.training import discard_interrupted_run
from monai_fairfl.errors import ConfigError, TransportAborted

PROSTATE = CHECKOUT / "bundles" / "prostate_mri_segmentation"
HISTOGRAM = {FlStatistics.HIST_BINS: 10, FlStatistics.HIST_RANGE: [0, 500]}
FINAL_MODEL = {
    "+train#handlers": [
        {
            "_target_": "CheckpointSaver",
            "save_dir": "@ckpt_dir",
            "save_dict": {"model": "@network"},
            "save_final": True,
            "final_filename": "model_final.pt",
        }
    ]
}

Maker = Callable[..., Any]
both = pytest.mark.parametrize("kind", [MonaiAlgo, FairMonaiAlgo])

pytestmark = pytest.mark.filterwarnings("ignore:executing the bundle config")


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    return tiny_model()[0]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A copy of the bundle in ``tmp_path/app/bundle``; an overlay saves the final model."""
    root = tmp_path / "app" / "bundle"
    shutil.copytree(PROSTATE, root, ignore=shutil.ignore_patterns("runs", "models"))
    (root / "configs" / "final.json").write_text(json.dumps(FINAL_MODEL))
    return root


@pytest.fixture
def built(hospitals: Path, tmp_path: Path, bundle: Path) -> Iterator[Maker]:
    """Maker of clients of either kind: ``built(MonaiAlgo, overrides, send_weight_diff=False)``."""

    def make(
        kind: type[MonaiAlgo],
        overrides: Mapping[str, Any] = {},
        extra: Mapping[str, Any] = {},
        initialize: bool = True,
        **arguments: Any,
    ) -> Any:
        config = {
            "dataset_dir": str(hospitals / "alder"),
            "datalist_file": str(tmp_path / "alder.json"),
            "ckpt_dir": str(bundle / "models"),
            "output_dir": str(tmp_path / "eval"),
            "device": "$torch.device('cpu')",
            "val_interval": 0,
            **TINY,
            "batch_size": 1,  # two steps an epoch
            **overrides,
        }
        arguments = {
            "bundle_root": str(bundle),
            "train_kwargs": dict(config),
            "eval_kwargs": dict(config),
            **arguments,
        }
        if kind is FairMonaiAlgo:
            arguments["state_dir"] = tmp_path / "state"
        client = kind(**arguments)
        clients.append(client)
        if initialize:
            client.initialize({ExtraItems.CLIENT_NAME: "alder", **extra})
        return client

    clients: list[Any] = []
    yield make
    for client in clients:
        for engine in (client.trainer, client.evaluator):
            if engine is not None:
                # Else it raises wherever the garbage collector finds it.
                discard_interrupted_run(engine)


def train(client: Any, weights: Mapping[str, Any], seed: int = 3) -> None:
    """One training whose random numbers follow from ``seed``."""
    torch.manual_seed(seed)
    client.trainer.data_loader.dataset.transform.set_random_state(seed)
    client.train(ExchangeObject(weights=dict(weights)))


def evaluate(client: Any, weights: Any) -> dict[str, float]:
    metrics: dict[str, float] = client.evaluate(ExchangeObject(weights=weights)).metrics
    return dict(metrics)


def steps(client: Any) -> int:
    """Steps of the last training, as ``get_weights`` reports them."""
    count: int = client.get_weights().statistics[FlStatistics.NUM_EXECUTED_ITERATIONS]
    return count


def network(client: Any) -> dict[str, torch.Tensor]:
    """A copy of the trainer's network."""
    return {name: tensor.clone() for name, tensor in client.trainer.network.state_dict().items()}


class Abort:
    """Calls ``client.abort()`` after a step, once."""

    def __init__(self, client: Any, engine: Any):
        self.client = client
        self.handle = engine.add_event_handler(Events.ITERATION_COMPLETED, self.act)

    def act(self) -> None:
        self.handle.remove()
        self.client.abort()


class FailOnce:
    """Stands for a function, and raises at its first call."""

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls == 1:
            raise MemoryError("out of memory")
        return self.function(*args, **kwargs)


# ---- the same contract


@pytest.mark.parametrize(
    "overrides", [{"val_interval": 0}, {"val_interval": 1}, {"norm": "instance"}]
)
def test_the_same_seed_gives_the_same_weights_statistics_and_metrics(
    built: Maker, overrides: dict[str, Any]
) -> None:
    found = []
    for kind, arguments in ((MonaiAlgo, {}), (FairMonaiAlgo, {"all_handlers": True})):
        client = built(kind, overrides, local_epochs=2, **arguments)
        received = network(client)
        for seed in (3, 4):
            train(client, received, seed)
        difference = client.get_weights()
        client.send_weight_diff = False
        full = client.get_weights()
        assert (difference.weight_type, full.weight_type) == (
            WeightType.WEIGHT_DIFF,
            WeightType.WEIGHTS,
        )
        assert any(change.any() for change in difference.weights.values())
        assert set(difference.weights) == set(full.weights) == set(received)
        found.append(
            (
                difference,
                {k: v.clone() for k, v in full.weights.items()},
                evaluate(client, full.weights),
            )
        )
        client.finalize()
    (stock, stock_full, stock_metrics), (ours, our_full, our_metrics) = found
    assert same(stock.weights, ours.weights)
    assert same(stock_full, our_full)
    assert stock.statistics == ours.statistics
    assert stock_metrics == our_metrics and "val_mean_dice" in our_metrics


@both
def test_a_training_counts_its_steps_and_goes_on_from_the_last(
    built: Maker, weights: Any, kind: Any
) -> None:
    client = built(kind, local_epochs=2)
    for number in (1, 2):
        train(client, weights)
        statistics = client.get_weights().statistics
        assert statistics[FlStatistics.NUM_EXECUTED_ITERATIONS] == 4
        assert (statistics["current_epoch"], statistics["current_iteration"]) == (
            2 * number,
            4 * number,
        )


@both
def test_weights_before_a_training_are_the_initial_ones_and_a_difference_is_an_error(
    built: Maker, kind: Any
) -> None:
    assert built(kind, initialize=False).get_weights().weights is None
    client = built(kind, send_weight_diff=False)
    sent = client.get_weights()
    assert same(sent.weights, network(client)) and sent.weight_type == WeightType.WEIGHTS
    client.send_weight_diff = True
    with pytest.raises(ValueError, match="weight differences"):
        client.get_weights()


@both
@pytest.mark.parametrize(
    "model_type, file",
    [(ModelType.BEST_MODEL, "model.pt"), (ModelType.FINAL_MODEL, "model_final.pt")],
)
def test_best_and_final_models_are_read_from_disk(
    built: Maker, weights: Any, kind: Any, bundle: Path, model_type: ModelType, file: str
) -> None:
    arguments: dict[str, Any] = {
        "config_train_filename": ["configs/train.json", "configs/final.json"]
    }
    if kind is FairMonaiAlgo:
        arguments["all_handlers"] = True
    client = built(kind, {"val_interval": 1}, **arguments)
    wanted = {ExtraItems.MODEL_TYPE: model_type}
    with pytest.raises(ValueError, match="No best model checkpoint exists at .*" + file):
        client.get_weights(wanted)
    with pytest.raises(ValueError, match="to be of type `ModelType`"):
        client.get_weights({ExtraItems.MODEL_TYPE: "best"})
    train(client, weights)
    sent = client.get_weights(wanted)
    assert sent.weight_type == WeightType.WEIGHTS
    assert same(sent.weights, network(client))  # the best of one epoch, and the final one


@both
def test_a_checkpoint_of_several_states_is_sent_by_its_key_or_whole(
    built: Maker, kind: Any, bundle: Path
) -> None:
    client = built(kind, save_dict_key="ema")
    states = {"model": network(client), "ema": {"w": torch.ones(2)}, "epoch": 3}
    (bundle / "models").mkdir(exist_ok=True)
    torch.save(states, bundle / "models" / "model.pt")
    wanted = {ExtraItems.MODEL_TYPE: ModelType.BEST_MODEL}
    assert same(client.get_weights(wanted).weights, states["ema"])
    client.save_dict_key = None
    sent = client.get_weights(wanted).weights
    assert set(sent) == {"model", "ema", "epoch"} and sent["epoch"] == 3
    assert same(sent["model"], states["model"]) and same(sent["ema"], states["ema"])


@both
def test_post_weight_filters_get_statistics_and_may_rename_encode_or_empty_the_weights(
    built: Maker, weights: Any, kind: Any
) -> None:
    client = built(kind)
    train(client, weights)
    plain = client.get_weights().weights

    def encode(data: ExchangeObject, extra: dict[str, Any]) -> ExchangeObject:
        data.weights = {
            f"enc.{name}": value.numpy().tobytes() for name, value in data.weights.items()
        }
        data.statistics["asked"] = extra["asked"]
        return data

    def empty(data: ExchangeObject, extra: dict[str, Any]) -> ExchangeObject:
        data.weights = None
        return data

    client.post_weight_filters = [encode]
    sent = client.get_weights({"asked": 7})
    assert sent.weights == {f"enc.{name}": value.numpy().tobytes() for name, value in plain.items()}
    assert sent.statistics["asked"] == 7
    client.post_weight_filters = [empty]
    assert client.get_weights().weights is None


@both
def test_pre_filters_may_decode_and_rename_what_is_trained_and_evaluated(
    built: Maker, weights: Any, kind: Any
) -> None:
    def decode(data: ExchangeObject, extra: dict[str, Any]) -> ExchangeObject:
        scale = data["scale"]
        data.weights = {
            name.removeprefix("module."): value * scale for name, value in data.weights.items()
        }
        return data

    results = []
    for encoded in (False, True):
        client = built(kind, send_weight_diff=False)
        metrics = []
        for ask in (client.train, client.evaluate):
            data = ExchangeObject(weights=dict(weights))
            if encoded:
                client.pre_filters = [decode]
                # Flat arrays at half the size: MonaiAlgo gives them the network's shapes again.
                data.weights = {
                    f"module.{name}": (value / 2).numpy().ravel() for name, value in weights.items()
                }
                data["scale"] = 2
            torch.manual_seed(3)
            client.trainer.data_loader.dataset.transform.set_random_state(3)
            metrics.append(ask(data))
        results.append(
            ({k: v.clone() for k, v in client.get_weights().weights.items()}, metrics[1].metrics)
        )
    assert same(results[0][0], results[1][0]) and results[0][1] == results[1][1]


@both
def test_filters_of_a_file_are_used_and_post_evaluate_filters_change_the_metrics(
    built: Maker, weights: Any, kind: Any
) -> None:
    client = built(kind, config_filters_filename="configs/fl_filters.json")
    assert len(client.pre_filters) == len(client.post_weight_filters) == 1

    def keep_dice(data: ExchangeObject, extra: dict[str, Any]) -> ExchangeObject:
        return ExchangeObject(metrics={"val_mean_dice": data.metrics["val_mean_dice"]})

    everything = evaluate(client, weights)
    client.post_evaluate_filters = [keep_dice]
    assert evaluate(client, weights) == {"val_mean_dice": everything["val_mean_dice"]}


@both
def test_a_relative_bundle_begins_at_the_app_root(
    built: Maker, weights: Any, kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    client = built(kind, extra={ExtraItems.APP_ROOT: str(tmp_path / "app")}, bundle_root="bundle")
    train(client, weights)
    assert steps(client) == 2
    assert 0 <= evaluate(client, weights)["val_mean_dice"] <= 1


@both
def test_a_client_without_a_training_evaluates(built: Maker, weights: Any, kind: Any) -> None:
    client = built(kind, config_train_filename=None)
    whole = built(kind)
    assert evaluate(client, weights) == evaluate(whole, weights)
    sent = client.get_weights()
    assert sent.weights is None and sent.weight_type is None
    with pytest.raises(ValueError):
        client.train(ExchangeObject(weights=dict(weights)))
    client.abort()
    client.finalize()


@both
def test_a_workflow_object_may_replace_the_files(
    built: Maker, weights: Any, kind: Any, bundle: Path
) -> None:
    by_files = built(kind)
    config = by_files.train_kwargs
    workflow = ConfigWorkflow(
        str(bundle / "configs" / "train.json"), logging_file=False, workflow_type="train", **config
    )
    by_object = built(kind, train_workflow=workflow)
    for client in (by_files, by_object):
        train(client, weights)
    assert same(by_files.get_weights().weights, by_object.get_weights().weights)


@both
def test_wrong_input_is_a_value_error(built: Maker, weights: Any, kind: Any) -> None:
    client = built(kind, config_evaluate_filename=None)
    for wrong in (weights, None):
        with pytest.raises(ValueError, match="ExchangeObject"):
            client.train(wrong)
    with pytest.raises(ValueError, match="evaluator"):
        client.evaluate(ExchangeObject(weights=dict(weights)))
    name = next(iter(weights))
    with pytest.raises(ValueError, match=f"Convert weight from {name} failed"):
        client.train(ExchangeObject(weights={**weights, name: torch.ones(3)}))


@both
def test_a_stats_sender_is_attached_to_both_engines(built: Maker, weights: Any, kind: Any) -> None:
    attached = []

    class Sender(StatsHandler):
        def attach(self, engine: Any) -> None:
            engine.add_event_handler(Events.EPOCH_COMPLETED, self.epoch_completed)

        def epoch_completed(self, engine: Any) -> None:
            attached.append(type(engine).__name__)

    client = built(kind, extra={ExtraItems.STATS_SENDER: Sender(name="sender")})
    train(client, weights)
    evaluate(client, weights)
    assert attached == ["SupervisedTrainer", "SupervisedEvaluator"]


@both
def test_an_aborted_training_returns_and_reports_the_steps_that_were_done(
    built: Maker, weights: Any, kind: Any
) -> None:
    client = built(kind)
    Abort(client, client.trainer)
    train(client, weights)
    assert steps(client) == 1


@both
def test_abort_and_finalize_are_safe_before_and_after(
    built: Maker, weights: Any, kind: Any
) -> None:
    client = built(kind, initialize=False)
    client.abort()
    client.finalize()
    client.initialize({})
    client.abort()  # nothing runs: it has no effect on the next training
    train(client, weights)
    assert steps(client) == 2
    for _ in range(2):
        client.finalize()
    client.abort()


def test_the_statistics_of_the_data_are_those_of_monai_algo_stats(
    built: Maker, tmp_path: Path, bundle: Path
) -> None:
    ours = built(FairMonaiAlgo)
    app, config = tmp_path / "stock", ours.train_kwargs
    app.mkdir()
    workflow = ConfigWorkflow(
        str(bundle / "configs" / "train.json"), logging_file=False, workflow_type="train", **config
    )
    stock = MonaiAlgoStats(str(bundle), workflow=workflow)
    stock.initialize({ExtraItems.APP_ROOT: str(app)})
    expected = stock.get_data_stats(dict(HISTOGRAM)).statistics
    found = ours.get_data_stats(dict(HISTOGRAM)).statistics
    assert set(found) == {"train", "eval", FlStatistics.TOTAL_DATA}
    assert found["train"][FlStatistics.DATA_COUNT] == 2
    assert repr(found) == repr(expected)  # nested, with arrays
    # Each case's numbers stay at the site: the stock client writes them into the app's folder.
    by_case = "train_data_stats_by_case.yaml"
    assert (app / by_case).exists() and (tmp_path / "state" / by_case).exists()
    with pytest.raises(ValueError, match="HIST_RANGE"):
        ours.get_data_stats({FlStatistics.HIST_BINS: 10})
    ours.post_statistics_filters = [lambda data, extra: ExchangeObject(statistics={"train": None})]
    assert ours.get_data_stats(dict(HISTOGRAM)).statistics == {"train": None}


# ---- where the stock client is broken, and ours is not


def test_stock_statistics_of_the_data_are_an_attribute_error(built: Maker) -> None:
    with pytest.raises(AttributeError, match="'workflow'"):
        built(MonaiAlgo).get_data_stats(dict(HISTOGRAM))


def test_stock_weights_share_the_networks_memory_and_ours_do_not(
    built: Maker, weights: Any
) -> None:
    shared = {}
    for kind in (MonaiAlgo, FairMonaiAlgo):
        client = built(kind, send_weight_diff=False)
        train(client, weights)
        before = network(client)
        for tensor in client.get_weights().weights.values():
            tensor.zero_()
        shared[kind] = not same(network(client), before)
    assert shared == {MonaiAlgo: True, FairMonaiAlgo: False}


def test_a_post_weight_filter_changes_the_stock_clients_network_and_not_ours(
    built: Maker, weights: Any
) -> None:
    def spoil(data: ExchangeObject, extra: dict[str, Any]) -> ExchangeObject:
        for tensor in data.weights.values():
            tensor.zero_()
        return data

    changed = {}
    for kind in (MonaiAlgo, FairMonaiAlgo):
        client = built(kind, send_weight_diff=False)
        before = network(client)
        client.post_weight_filters = [spoil]
        assert not any(tensor.any() for tensor in client.get_weights().weights.values())
        changed[kind] = not same(network(client), before)
    assert changed == {MonaiAlgo: True, FairMonaiAlgo: False}


def test_a_pre_filter_changes_the_stock_senders_weights_and_not_those_of_ours(
    built: Maker, weights: Any
) -> None:
    def double(data: ExchangeObject, extra: dict[str, Any]) -> ExchangeObject:
        for tensor in data.weights.values():
            tensor.mul_(2)
        data["seen"] = True
        return data

    changed = {}
    for kind in (MonaiAlgo, FairMonaiAlgo):
        client = built(kind)
        client.pre_filters = [double]
        data = ExchangeObject(weights={name: tensor.clone() for name, tensor in weights.items()})
        client.train(data)
        client.evaluate(data)
        changed[kind] = not same(data.weights, weights)
    assert changed == {MonaiAlgo: True, FairMonaiAlgo: False}


def test_arrays_of_a_post_weight_filter_leave_ours_as_tensors(built: Maker, weights: Any) -> None:
    def as_arrays(data: ExchangeObject, extra: dict[str, Any]) -> ExchangeObject:
        # ``* 1`` makes a scalar of an array of 0 dimensions.
        data.weights = {name: tensor.numpy() * 1 for name, tensor in data.weights.items()}
        return data

    client = built(FairMonaiAlgo)
    train(client, weights)
    plain = client.get_weights().weights
    client.post_weight_filters = [as_arrays]
    assert same(client.get_weights().weights, plain)


def test_a_filter_without_return_is_named_by_ours(built: Maker, weights: Any) -> None:
    def forgetful(data: ExchangeObject, extra: dict[str, Any]) -> None:
        data.statistics = {}

    stock, ours = built(MonaiAlgo), built(FairMonaiAlgo)
    for client in (stock, ours):
        train(client, weights)
        client.post_weight_filters = [forgetful]
    assert stock.get_weights() is None
    with pytest.raises(
        ConfigError, match="'alder': the filter 'forgetful' returned NoneType.*'return data'"
    ):
        ours.get_weights()


def test_stock_differences_of_unsent_tensors_are_zero_and_ours_leave_them_out(
    built: Maker, weights: Any
) -> None:
    sent = {}
    for kind in (MonaiAlgo, FairMonaiAlgo):
        client = built(kind)
        parameters = {name: weights[name] for name, _ in client.trainer.network.named_parameters()}
        train(client, parameters)
        sent[kind] = client.get_weights().weights
        # Without a training in between the same weights come again.
        assert same(client.get_weights().weights, sent[kind])
    buffers = set(sent[MonaiAlgo]) - set(sent[FairMonaiAlgo])
    assert buffers and not any(sent[MonaiAlgo][name].any() for name in buffers)
    assert same({name: sent[MonaiAlgo][name] for name in sent[FairMonaiAlgo]}, sent[FairMonaiAlgo])


def test_stock_differences_to_the_live_network_are_zero_and_ours_are_not(built: Maker) -> None:
    moved = {}
    for kind in (MonaiAlgo, FairMonaiAlgo):
        client = built(kind)
        train(client, client.trainer.network.state_dict())
        moved[kind] = any(change.any() for change in client.get_weights().weights.values())
    assert moved == {MonaiAlgo: False, FairMonaiAlgo: True}


def test_a_partial_model_is_scored_by_the_stock_client_and_refused_by_ours(
    built: Maker, weights: Any
) -> None:
    name = next(iter(weights))
    partial = {name: weights[name]}
    assert evaluate(built(MonaiAlgo), partial)  # of the received tensor and random ones
    client = built(FairMonaiAlgo)
    for ask in (client.train, client.evaluate):
        with pytest.raises(
            ValueError, match="'alder': the received weights lack .* of another network"
        ):
            ask(ExchangeObject(weights=dict(partial)))


@pytest.mark.parametrize("method", ["train", "evaluate"])
def test_no_weights_at_all_are_an_error_in_words(built: Maker, method: str) -> None:
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'keys'"):
        getattr(built(MonaiAlgo), method)(ExchangeObject())
    with pytest.raises(ValueError, match="'alder': there are no weights to load, but NoneType"):
        getattr(built(FairMonaiAlgo), method)(ExchangeObject())


def test_statistics_of_batchnorm_that_were_not_sent_are_the_trained_models_in_an_evaluation(
    built: Maker,
) -> None:
    client = built(FairMonaiAlgo, {"learning_rate": 0.05}, local_epochs=8)
    train(client, network(client))
    trained = network(client)
    parameters = {name: trained[name] for name, _ in client.trainer.network.named_parameters()}
    stock = built(MonaiAlgo)
    assert evaluate(client, parameters) == evaluate(client, trained) == evaluate(stock, trained)
    # MONAI's uses the statistics of no training.
    assert evaluate(built(MonaiAlgo), parameters) != evaluate(stock, trained)


def test_stock_metrics_are_overwritten_by_the_next_evaluation_and_ours_are_not(
    built: Maker, weights: Any
) -> None:
    overwritten = {}
    for kind in (MonaiAlgo, FairMonaiAlgo):
        client = built(kind)
        first = client.evaluate(ExchangeObject(weights=dict(weights))).metrics
        second = client.evaluate(ExchangeObject(weights=dict(weights))).metrics
        overwritten[kind] = first is second
    assert overwritten == {MonaiAlgo: True, FairMonaiAlgo: False}


def test_after_an_abort_ours_trains_a_whole_round_and_the_stock_client_the_old_rest_too(
    built: Maker, weights: Any
) -> None:
    done = {}
    for kind in (MonaiAlgo, FairMonaiAlgo):
        client = built(kind)
        Abort(client, client.trainer)
        train(client, weights)
        train(client, weights)
        done[kind] = steps(client)
    assert done == {MonaiAlgo: 3, FairMonaiAlgo: 2}
    train(client, weights)
    statistics = client.get_weights().statistics  # in whole epochs: the aborted one does not count
    assert (statistics["current_epoch"], statistics["current_iteration"]) == (2, 4)


def test_after_a_failure_ours_trains_a_whole_round_and_the_stock_client_nothing(
    built: Maker, weights: Any
) -> None:
    done = {}
    for kind in (MonaiAlgo, FairMonaiAlgo):
        client = built(kind)
        client.trainer.loss_function = FailOnce(client.trainer.loss_function)
        with pytest.raises(MemoryError):
            train(client, weights)
        train(client, weights)
        done[kind] = steps(client)
    assert done == {MonaiAlgo: 0, FairMonaiAlgo: 2}


def test_after_a_failed_evaluation_ours_scores_again_and_the_stock_client_repeats_the_old_scores(
    built: Maker, weights: Any
) -> None:
    zeros = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    right = {}
    for kind in (MonaiAlgo, FairMonaiAlgo):
        client = built(kind)
        of_zeros, of_weights = evaluate(built(kind), zeros), evaluate(client, weights)
        assert of_zeros != of_weights
        client.evaluator.inferer = FailOnce(client.evaluator.inferer)
        with pytest.raises(MemoryError):
            evaluate(client, zeros)
        right[kind] = evaluate(client, zeros) == of_zeros
    assert right == {MonaiAlgo: False, FairMonaiAlgo: True}


def test_an_aborted_evaluation_is_an_error_and_never_the_scores_of_the_model_before(
    built: Maker, weights: Any
) -> None:
    settings = {"split_fractions": [0.25, 0.25, 0.5]}  # two cases for testing
    zeros = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    stock, ours = built(MonaiAlgo, settings), built(FairMonaiAlgo, settings)
    expected = evaluate(stock, zeros)
    for client in (stock, ours):
        evaluate(client, weights)
        Abort(client, client.evaluator)
    assert evaluate(stock, zeros) == expected  # abort does not reach its evaluator
    with pytest.raises(TransportAborted, match="aborted before the end of the data"):
        evaluate(ours, zeros)
    assert evaluate(ours, zeros) == expected


def test_the_best_model_of_an_earlier_run_is_returned_by_the_stock_client_and_refused_by_ours(
    built: Maker, weights: Any, bundle: Path
) -> None:
    (bundle / "models").mkdir(exist_ok=True)
    torch.save({"model": dict(weights)}, bundle / "models" / "model.pt")
    wanted = {ExtraItems.MODEL_TYPE: ModelType.BEST_MODEL}
    stock, ours = built(MonaiAlgo), built(FairMonaiAlgo)
    for client in (stock, ours):
        # No training yet: a model to begin with.
        assert same(client.get_weights(wanted).weights, weights)
        train(client, weights)
    assert same(stock.get_weights(wanted).weights, weights)
    with pytest.raises(
        ConfigError, match="'alder': models/model.pt .* older than this training.*all_handlers=True"
    ):
        ours.get_weights(wanted)


def test_a_second_initialize_moves_the_stock_clients_bundle_and_not_ours(
    built: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    extra = {ExtraItems.APP_ROOT: "app"}
    roots = {}
    for kind in (MonaiAlgo, FairMonaiAlgo):
        client = built(kind, extra=extra, bundle_root="bundle")
        client.initialize(extra)
        roots[kind] = client.bundle_root
    assert roots == {MonaiAlgo: "app/app/bundle", FairMonaiAlgo: "app/bundle"}


def test_an_initialize_that_failed_can_be_repeated_when_the_bundle_is_mended(
    built: Maker, weights: Any, tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    extra = {ExtraItems.APP_ROOT: "app"}
    evaluation = bundle / "configs" / "evaluate.json"
    content = evaluation.read_text()
    stock = built(MonaiAlgo, initialize=False, bundle_root="bundle")
    ours = built(FairMonaiAlgo, initialize=False, bundle_root="bundle")
    for client in (stock, ours):
        evaluation.write_text("{")
        with pytest.raises(ValueError):
            client.initialize(extra)
        client.abort()
        client.finalize()
        evaluation.write_text(content)
    with pytest.raises(FileNotFoundError, match="app/app/bundle"):
        stock.initialize(extra)
    ours.initialize(extra)
    train(ours, weights)
    assert steps(ours) == 2
    assert "val_mean_dice" in evaluate(ours, weights)


def test_a_half_built_client_is_finalized_without_hiding_the_error(built: Maker) -> None:
    broken = {"validate#evaluator#nothing": 1, "finalize": ["$@validate#evaluator.terminate()"]}
    stock, ours = built(MonaiAlgo, broken, initialize=False), built(
        FairMonaiAlgo, broken, initialize=False
    )
    for client in (stock, ours):
        with pytest.raises(RuntimeError, match="SupervisedEvaluator"):
            client.initialize({})
    with pytest.raises(RuntimeError, match="SupervisedEvaluator"):
        stock.finalize()
    ours.finalize()
    ours.abort()
    for ask in (ours.train, ours.evaluate):
        with pytest.raises(ConfigError, match=r"is not built: call initialize\(\) first"):
            ask(ExchangeObject(weights={}))


def test_the_bundles_own_finalize_still_fails_aloud_when_the_client_was_built(built: Maker) -> None:
    client = built(FairMonaiAlgo, {"finalize": ["$1 / 0"]})
    with pytest.raises(RuntimeError, match="1 / 0"):
        client.finalize()


def test_a_stats_sender_works_without_an_evaluator_in_ours(built: Maker, weights: Any) -> None:
    class Sender:
        def __init__(self) -> None:
            self.epochs = 0

        def attach(self, engine: Any) -> None:
            engine.add_event_handler(Events.EPOCH_COMPLETED, self.count)

        def count(self) -> None:
            self.epochs += 1

    with pytest.raises(AttributeError, match="add_event_handler"):
        built(MonaiAlgo, extra={ExtraItems.STATS_SENDER: Sender()}, config_evaluate_filename=None)
    sender = Sender()
    client = built(
        FairMonaiAlgo, extra={ExtraItems.STATS_SENDER: sender}, config_evaluate_filename=None
    )
    train(client, weights)
    assert sender.epochs == 1


def test_ours_evaluates_with_the_overlays_of_the_training(built: Maker, bundle: Path) -> None:
    (bundle / "configs" / "small.json").write_text(json.dumps({"channels": [4, 4]}))
    files = ["configs/train.json", "configs/small.json"]
    sizes = {}
    for kind in (MonaiAlgo, FairMonaiAlgo):
        client = built(kind, initialize=False, config_train_filename=files)
        for arguments in (client.train_kwargs, client.eval_kwargs):
            del arguments["channels"]
        client.initialize({})
        sizes[kind] = sum(parameter.numel() for parameter in client.evaluator.network.parameters())
        trained = sum(parameter.numel() for parameter in client.trainer.network.parameters())
    assert sizes[FairMonaiAlgo] == trained < sizes[MonaiAlgo]


@pytest.mark.parametrize("missing", ["evaluate.json", "train.json"])
def test_ours_needs_no_evaluate_json_and_names_what_is_missing(
    built: Maker, bundle: Path, missing: str
) -> None:
    (bundle / "configs" / missing).unlink()
    with pytest.raises(FileNotFoundError, match=missing):
        built(MonaiAlgo)
    if missing == "train.json":
        with pytest.raises(FileNotFoundError, match=missing):
            built(FairMonaiAlgo)
        return
    client = built(FairMonaiAlgo)
    with pytest.raises(
        ConfigError, match="'alder' has no evaluator: give .*app/bundle a configs/evaluate.json"
    ):
        evaluate(client, network(client))


def test_a_client_without_any_configuration_is_refused_by_ours(built: Maker) -> None:
    arguments = {"config_train_filename": None, "config_evaluate_filename": None}
    assert built(MonaiAlgo, **arguments).trainer is None
    with pytest.raises(
        ConfigError, match="'alder': neither a training nor an evaluation is configured"
    ):
        built(FairMonaiAlgo, **arguments)
