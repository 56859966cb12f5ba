# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Clients of the prostate bundle on tiny images, and small ones that train in milliseconds."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.client_requests import after, tiny_client, tiny_model, train
from helpers.small_trainers import conv_net, image_batches
from helpers.toy_client import toy_client
from monai.handlers import LrScheduleHandler
from torch import nn

from monai_fairfl import ModelSpec, read_spec


@pytest.fixture(scope="session")
def weights() -> dict[str, torch.Tensor]:
    """Weights of the bundle's network; read only."""
    return tiny_model()[0]


@pytest.fixture(scope="session")
def spec() -> ModelSpec:
    specification: ModelSpec = tiny_model()[1]
    return specification


@pytest.fixture
def new_client(hospitals: Path, tmp_path: Path) -> Any:
    """Maker of clients: ``new_client("elm", learning_rate=0.01)``."""
    return partial(tiny_client, hospitals, tmp_path)


@pytest.fixture
def new_small(tmp_path: Path) -> Any:
    """Maker of small clients with dropout and a schedule of NumPy's numbers."""

    def make(state: str = "state") -> Any:
        network, batches = conv_net(), image_batches(2)
        optimizer = torch.optim.Adam(network.parameters(), 0.02)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: np.cos(epoch / 10))
        given = {"optimizer": optimizer, "train_handlers": [LrScheduleHandler(schedule, False)]}
        loss = nn.BCEWithLogitsLoss()
        return toy_client(tmp_path / "alder", network, batches, loss, state=state, **given)[0]

    return make


@pytest.fixture
def small() -> dict[str, torch.Tensor]:
    """Weights of small clients."""
    return dict(conv_net().state_dict())


@pytest.fixture
def parameters(small: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What a server sends of them that leaves statistics of batches at the sites."""
    return {name: small[name] for name in read_spec(conv_net()).parameters}


@pytest.fixture(scope="session")
def learnt(
    hospitals: Path, tmp_path_factory: pytest.TempPathFactory, weights: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """A model that a client trained, and that scores above 0."""
    client = tiny_client(hospitals, tmp_path_factory.mktemp("learnt"), learning_rate=0.02)
    return after(weights, train(client, weights, local_epochs=4.0))
