# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Initializing and finalizing: where the stock client breaks, and ours does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.algo_calls import KINDS, evaluate, network, steps, train
from ignite.engine import Events
from monai.fl.client import MonaiAlgo
from monai.fl.utils.constants import ExtraItems
from monai.fl.utils.exchange_object import ExchangeObject

from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.errors import ConfigError

Maker = Callable[..., Any]
Weights = dict[str, torch.Tensor]


def count_parameters(engine: Any) -> int:
    return sum(parameter.numel() for parameter in engine.network.parameters())


def test_a_second_initialize_moves_the_stock_clients_bundle_and_not_ours(
    built: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    extra = {ExtraItems.APP_ROOT: "app"}
    roots = {}
    for kind in KINDS:
        client = built(kind, extra=extra, bundle_root="bundle")
        client.initialize(extra)
        roots[kind] = client.bundle_root
    assert roots == {MonaiAlgo: "app/app/bundle", FairMonaiAlgo: "app/bundle"}


@pytest.mark.slow
def test_an_initialize_that_failed_can_be_repeated_when_the_bundle_is_mended(
    built: Maker, weights: Weights, tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
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
    stock = built(MonaiAlgo, broken, initialize=False)
    ours = built(FairMonaiAlgo, broken, initialize=False)
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


def test_the_bundles_own_finalize_still_raises_when_the_client_was_built(built: Maker) -> None:
    client = built(FairMonaiAlgo, {"finalize": ["$1 / 0"]})
    with pytest.raises(RuntimeError, match="1 / 0"):
        client.finalize()


def test_a_stats_sender_works_without_an_evaluator_in_ours(built: Maker, weights: Weights) -> None:
    class Sender:
        def __init__(self) -> None:
            self.epochs = 0

        def attach(self, engine: Any) -> None:
            engine.add_event_handler(Events.EPOCH_COMPLETED, self.count)

        def count(self) -> None:
            self.epochs += 1

    sender = Sender()
    arguments = {"extra": {ExtraItems.STATS_SENDER: sender}, "config_evaluate_filename": None}
    with pytest.raises(AttributeError, match="add_event_handler"):
        built(MonaiAlgo, **arguments)
    client = built(FairMonaiAlgo, **arguments)
    train(client, weights)
    assert sender.epochs == 1


def test_ours_evaluates_with_the_overlays_of_the_training(built: Maker, bundle: Path) -> None:
    (bundle / "configs" / "small.json").write_text(json.dumps({"channels": [4, 4, 4]}))
    files = ["configs/train.json", "configs/small.json"]
    evaluated = {}
    for kind in KINDS:
        client = built(kind, initialize=False, config_train_filename=files)
        del client.train_kwargs["channels"]
        del client.eval_kwargs["channels"]
        client.initialize({})
        evaluated[kind] = count_parameters(client.evaluator)
        trained = count_parameters(client.trainer)
    assert evaluated[FairMonaiAlgo] == trained
    assert evaluated[MonaiAlgo] > trained


def test_ours_needs_no_evaluate_json(built: Maker, bundle: Path) -> None:
    (bundle / "configs" / "evaluate.json").unlink()
    with pytest.raises(FileNotFoundError, match="evaluate.json"):
        built(MonaiAlgo)
    client = built(FairMonaiAlgo)
    message = "'alder' has no evaluator: give .*app/bundle a configs/evaluate.json"
    with pytest.raises(ConfigError, match=message):
        evaluate(client, network(client))


def test_a_bundle_without_train_json_is_an_error_in_both(built: Maker, bundle: Path) -> None:
    (bundle / "configs" / "train.json").unlink()
    for kind in KINDS:
        with pytest.raises(FileNotFoundError, match="train.json"):
            built(kind)


def test_a_client_without_any_configuration_is_refused_by_ours(built: Maker) -> None:
    arguments = {"config_train_filename": None, "config_evaluate_filename": None}
    assert built(MonaiAlgo, **arguments).trainer is None
    message = "'alder': neither a training nor an evaluation is configured"
    with pytest.raises(ConfigError, match=message):
        built(FairMonaiAlgo, **arguments)


def test_only_the_sites_own_account_can_read_its_private_folder(
    built: Maker, tmp_path: Path
) -> None:
    built(FairMonaiAlgo)
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
