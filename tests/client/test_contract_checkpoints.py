# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Best and final models that ``MonaiAlgo`` and ours read from the bundle's folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.algo_calls import both, network, train
from helpers.client_requests import same
from monai.fl.client import MonaiAlgo
from monai.fl.utils.constants import ExtraItems, ModelType, WeightType

from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.errors import ConfigError

BEST = {ExtraItems.MODEL_TYPE: ModelType.BEST_MODEL}

Maker = Callable[..., Any]
Weights = dict[str, torch.Tensor]


@pytest.mark.slow
@both
@pytest.mark.parametrize(
    ("model_type", "file"),
    [(ModelType.BEST_MODEL, "model.pt"), (ModelType.FINAL_MODEL, "model_final.pt")],
)
def test_best_and_final_models_are_read_from_disk(
    built: Maker, weights: Weights, kind: type[MonaiAlgo], model_type: ModelType, file: str
) -> None:
    arguments: dict[str, Any] = {}
    if kind is FairMonaiAlgo:
        arguments["all_handlers"] = True
    files = ["configs/train.json", "configs/final.json"]
    client = built(kind, {"val_interval": 1}, config_train_filename=files, **arguments)

    with pytest.raises(ValueError, match="No best model checkpoint exists at .*" + file):
        client.get_weights({ExtraItems.MODEL_TYPE: model_type})
    with pytest.raises(ValueError, match="to be of type `ModelType`"):
        client.get_weights({ExtraItems.MODEL_TYPE: "best"})

    # After one epoch the best model and the final one are the network.
    train(client, weights)
    sent = client.get_weights({ExtraItems.MODEL_TYPE: model_type})
    assert sent.weight_type == WeightType.WEIGHTS
    assert same(sent.weights, network(client))


@both
def test_a_checkpoint_of_several_states_is_sent_by_its_key_or_whole(
    built: Maker, kind: type[MonaiAlgo], bundle: Path
) -> None:
    client = built(kind, save_dict_key="ema")
    states = {"model": network(client), "ema": {"w": torch.ones(2)}, "epoch": 3}
    (bundle / "models").mkdir(exist_ok=True)
    torch.save(states, bundle / "models" / "model.pt")
    assert same(client.get_weights(BEST).weights, states["ema"])

    client.save_dict_key = None
    sent = client.get_weights(BEST).weights
    assert set(sent) == {"model", "ema", "epoch"}
    assert sent["epoch"] == 3
    assert same(sent["model"], states["model"])
    assert same(sent["ema"], states["ema"])


@pytest.mark.slow
def test_the_best_model_of_an_earlier_run_is_returned_by_the_stock_client_and_refused_by_ours(
    built: Maker, weights: Weights, bundle: Path
) -> None:
    (bundle / "models").mkdir(exist_ok=True)
    torch.save({"model": dict(weights)}, bundle / "models" / "model.pt")
    stock = built(MonaiAlgo)
    ours = built(FairMonaiAlgo)
    for client in (stock, ours):
        # No training yet: a model to begin with.
        assert same(client.get_weights(BEST).weights, weights)
        train(client, weights)

    assert same(stock.get_weights(BEST).weights, weights)
    message = "'alder': models/model.pt .* older than this training.*all_handlers=True"
    with pytest.raises(ConfigError, match=message):
        ours.get_weights(BEST)
