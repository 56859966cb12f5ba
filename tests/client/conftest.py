# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Clients of the prostate bundle on tiny images: asked by a federation, or driven as MONAI's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.client_requests import tiny_client, tiny_model, train
from helpers.contract_bundles import CONTRACT_BUNDLES, ContractBundle
from helpers.made_once import MadeOnce
from monai.fl.client import MonaiAlgo
from monai.fl.utils.constants import ExtraItems

from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.client.training import discard_interrupted_run
from monai_fairfl.protocol.messages import Reply
from monai_fairfl.protocol.model_spec import ModelSpec

# An overlay of the training: it saves the final model.
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


@pytest.fixture(scope="session")
def model() -> tuple[dict[str, torch.Tensor], ModelSpec]:
    """Weights and specification of the bundle's network; read only."""
    return tiny_model()


@pytest.fixture(scope="session")
def weights(model: tuple[dict[str, torch.Tensor], ModelSpec]) -> dict[str, torch.Tensor]:
    return model[0]


@pytest.fixture(scope="session")
def spec(model: tuple[dict[str, torch.Tensor], ModelSpec]) -> ModelSpec:
    return model[1]


@pytest.fixture
def prostate_client(hospitals: Path, tmp_path: Path) -> Callable[..., FairMonaiAlgo]:
    """Maker of clients: ``prostate_client("elm", learning_rate=0.01)``."""

    def make(*arguments: Any, **settings: Any) -> FairMonaiAlgo:
        return tiny_client(hospitals, tmp_path, *arguments, **settings)

    return make


@pytest.fixture(scope="session")
def undisturbed(
    hospitals: Path, tmp_path_factory: pytest.TempPathFactory, weights: dict[str, torch.Tensor]
) -> list[Reply]:
    """Replies of a client that trained the same weights in rounds 0 and 1; read only."""
    client = tiny_client(hospitals, tmp_path_factory.mktemp("undisturbed"))
    return [train(client, weights, number) for number in range(2)]


@pytest.fixture
def contract_bundle(request: pytest.FixtureRequest) -> ContractBundle:
    """The bundle that a test is about, by ``on_every_bundle``; else the first of the list."""
    chosen: ContractBundle = getattr(request, "param", CONTRACT_BUNDLES[0])
    return chosen


@pytest.fixture
def images_of_bundle(contract_bundle: ContractBundle, made_once: MadeOnce) -> Path:
    """The images of one site for the bundle; read only."""
    return contract_bundle.images(made_once)


@pytest.fixture
def initial(contract_bundle: ContractBundle) -> dict[str, torch.Tensor]:
    """Weights that a client of the bundle may begin from."""
    torch.manual_seed(0)
    return contract_bundle.weights()


@pytest.fixture
def bundle(tmp_path: Path, contract_bundle: ContractBundle) -> Path:
    """A copy of the bundle in ``tmp_path/app/bundle``; an overlay saves the final model."""
    root = tmp_path / "app" / "bundle"
    ignored = shutil.ignore_patterns("runs", "models")
    shutil.copytree(contract_bundle.root, root, ignore=ignored)
    (root / "configs" / "final.json").write_text(json.dumps(FINAL_MODEL))
    return root


@pytest.fixture
def built(
    contract_bundle: ContractBundle, images_of_bundle: Path, tmp_path: Path, bundle: Path
) -> Iterator[Callable[..., Any]]:
    """Maker of clients of either kind: ``built(MonaiAlgo, overrides, send_weight_diff=False)``."""
    clients: list[Any] = []

    def make(
        kind: type[MonaiAlgo],
        overrides: Mapping[str, Any] = {},
        extra: Mapping[str, Any] = {},
        initialize: bool = True,
        **arguments: Any,
    ) -> Any:
        settings = {
            "val_interval": 0,
            **contract_bundle.settings(images_of_bundle, tmp_path / "alder"),
            "ckpt_dir": str(bundle / "models"),
            **overrides,
        }
        arguments = {**contract_bundle.arguments, **arguments}
        arguments.setdefault("bundle_root", str(bundle))
        if kind is FairMonaiAlgo:
            arguments["state_dir"] = tmp_path / "state"
        client = kind(train_kwargs=dict(settings), eval_kwargs=dict(settings), **arguments)
        clients.append(client)
        if initialize:
            client.initialize({ExtraItems.CLIENT_NAME: "alder", **extra})
        return client

    yield make
    for client in clients:
        for engine in (client.trainer, client.evaluator):
            if engine is not None:
                # Else it raises wherever the garbage collector finds it.
                discard_interrupted_run(engine)
