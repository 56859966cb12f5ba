# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Clients of the prostate bundle on tiny images."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.client_requests import after, tiny_client, tiny_model, train

from monai_fairfl import ModelSpec, Reply


@pytest.fixture(scope="session")
def weights() -> dict[str, torch.Tensor]:
    """Weights of the bundle's network; read only."""
    return tiny_model()[0]


@pytest.fixture(scope="session")
def spec() -> ModelSpec:
    specification: ModelSpec = tiny_model()[1]
    return specification


@pytest.fixture(scope="session")
def parameters(weights: dict[str, torch.Tensor], spec: ModelSpec) -> dict[str, torch.Tensor]:
    """What a server sends that leaves statistics of batches at the sites."""
    return {name: weights[name] for name in spec.parameters}


@pytest.fixture
def new_client(hospitals: Path, tmp_path: Path) -> Any:
    """Maker of clients: ``new_client("elm", learning_rate=0.01)``."""
    return partial(tiny_client, hospitals, tmp_path)


@pytest.fixture(scope="session")
def undisturbed(
    hospitals: Path, tmp_path_factory: pytest.TempPathFactory, weights: dict[str, torch.Tensor]
) -> list[Reply]:
    """Replies of a client that trained the same weights in rounds 0 and 1, two steps each."""
    client = tiny_client(hospitals, tmp_path_factory.mktemp("undisturbed"), batch_size=1)
    return [train(client, weights, number) for number in range(2)]


@pytest.fixture(scope="session")
def learnt(
    hospitals: Path, tmp_path_factory: pytest.TempPathFactory, weights: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """A model that a client trained, and that scores above 0."""
    client = tiny_client(hospitals, tmp_path_factory.mktemp("learnt"), learning_rate=0.02)
    return after(weights, train(client, weights, local_epochs=4.0))
