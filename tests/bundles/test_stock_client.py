# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""MONAI's own FL client and tools with the shipped bundles, and our handlers at that client."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.client_requests import monai_training, tiny_client, tiny_model
from helpers.shipped_bundles import Bundle
from ignite.engine import Engine
from monai.fl.client import MonaiAlgo
from monai.fl.utils.constants import FlStatistics
from monai.fl.utils.exchange_object import ExchangeObject

from monai_fairfl.handlers import (
    MeasurementsFilter,
    board,
)

Weights = dict[str, torch.Tensor]

# --- each bundle at MONAI's client


def test_monais_client_trains_sends_and_evaluates(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    given = {
        "dataset_dir": str(site),
        **bundle.small,
        "ckpt_dir": str(tmp_path),
        "output_dir": str(tmp_path / "eval"),
        "device": "cpu",
    }
    kwargs = {"train_kwargs": dict(given), "eval_kwargs": dict(given)}
    algo = MonaiAlgo(str(bundle.root), local_epochs=1, **kwargs)
    with warnings.catch_warnings():
        # MONAI reminds that a bundle is executable.
        warnings.simplefilter("ignore")
        algo.initialize()
    assert algo.trainer is not None
    received = {k: value.clone() for k, value in algo.trainer.network.state_dict().items()}
    for _ in range(2):
        algo.train(ExchangeObject(weights=dict(received)))
    # A round does not shorten the schedule to its own epochs.
    config = bundle.config("train")
    rate = config["learning_rate"] * (1 - 2 / config["max_epochs"]) ** config["decay_power"]
    assert algo.trainer.optimizer.param_groups[0]["lr"] == pytest.approx(rate)

    update = algo.get_weights()
    assert update.weights.keys() == received.keys()
    assert any(bool(change.any()) for change in update.weights.values())
    assert update.statistics[FlStatistics.NUM_EXECUTED_ITERATIONS] >= 1
    evaluated = algo.evaluate(ExchangeObject(weights=dict(received)))
    assert set(evaluated.metrics) == bundle.metrics
    algo.finalize()


# --- measurements of our handlers in the client's statistics


def client_of(hospitals: Path, folder: Path, **overrides: Any) -> MonaiAlgo:
    """MONAI's client of the prostate bundle, with the overlays of our handlers and filters."""
    arguments = {
        "config_train_filename": ["configs/train.json", "configs/fl_handlers.json"],
        "config_evaluate_filename": None,
        "config_filters_filename": "configs/fl_filters.json",
    }
    given = {"val_interval": 0, "learning_rate": 0.02, **overrides}
    client = tiny_client(hospitals, folder, kind=MonaiAlgo, arguments=arguments, **given)
    client.initialize({})
    return client


@pytest.fixture(scope="module")
def weights() -> Weights:
    """A first model with all names of its tensors, as a file of PyTorch's has them."""
    model, spec = tiny_model()
    return dict(spec.with_aliases(model))


@pytest.fixture(autouse=True)
def _clean_board() -> None:
    board("default").values, board("default").context = {}, {}


def measured(sent: ExchangeObject) -> dict[str, float]:
    found = {}
    for name, value in sent.statistics.items():
        if name.startswith("fairfl/"):
            assert isinstance(value, float)
            found[name.removeprefix("fairfl/")] = value
    return found


def test_two_rounds_send_every_measurement(
    weights: Weights, hospitals: Path, tmp_path: Path
) -> None:
    client = client_of(hospitals, tmp_path)
    client.train(ExchangeObject(weights=dict(weights)))
    first = client.get_weights()
    scores = measured(first)
    assert set(scores) == {"train_loss", "global_score", "local_score"}
    local = {name: weights[name] + change for name, change in first.weights.items()}
    mixed = {}
    for name, value in local.items():
        floating = value.is_floating_point()
        mixed[name] = 0.7 * weights[name] + 0.3 * value if floating else value

    incoming = ExchangeObject(weights=dict(mixed))
    incoming["context"] = {"previous_weight": 0.3}
    client.train(incoming)
    # Left out of a mixture of the first model and its own, what remains is the first model.
    error = measured(client.get_weights())["leave_one_out_error"]
    assert error == pytest.approx(1 - scores["global_score"], abs=0.02)
    # Nobody says with which weight the last update entered.
    client.train(ExchangeObject(weights=dict(mixed)))
    assert "leave_one_out_error" not in measured(client.get_weights())


def test_measuring_disturbs_neither_the_training_nor_the_checkpoints(
    weights: Weights, hospitals: Path, tmp_path: Path
) -> None:
    evaluator = {"evaluator": "@validate#evaluator"}
    handlers: list[dict[str, Any]] = [
        {"_target_": "monai_fairfl.handlers.TrainLoss"},
        {"_target_": "monai_fairfl.handlers.GlobalLoss"},
        {"_target_": "monai_fairfl.handlers.GlobalScore", **evaluator},
        {"_target_": "monai_fairfl.handlers.Sharpness", "rho": 0.1},
        {"_target_": "monai_fairfl.handlers.LocalLoss"},
        {"_target_": "monai_fairfl.handlers.LocalScore", **evaluator},
    ]
    plain, sent = (
        monai_training(client_of(hospitals, tmp_path, **{"train#handlers": attached}), weights)
        for attached in ([], handlers)
    )
    assert not list(tmp_path.rglob("*.pt"))
    for key, value in plain.weights.items():
        assert torch.equal(sent.weights[key], value), key
    values = measured(sent)
    losses, scores = {"train_loss", "global_loss", "local_loss"}, {"global_score", "local_score"}
    assert set(values) == {*losses, *scores, "sharpness"}
    assert values["sharpness"] > 0
    assert values["local_loss"] != values["global_loss"]


# --- boards: who measured what


def test_measurements_are_sent_once_and_by_the_client_that_measured_them() -> None:
    engine, first = Engine(lambda engine, batch: None), board("A")
    first.write(engine, "train_loss", 0.5)
    sent = MeasurementsFilter("A")(ExchangeObject(statistics={"current_epoch": 1}))
    assert sent.statistics == {"current_epoch": 1, "fairfl/train_loss": 0.5}
    for name in ("A", "B"):
        assert MeasurementsFilter(name)(ExchangeObject(statistics={})).statistics == {}
