# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The classification controls: how data are dealt, and what their clients answer."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from monai_fairfl import Train

pytest.importorskip("sklearn")


def load(name: str) -> Any:
    return importlib.import_module(name)


def pool() -> Any:
    return load("classification.data").digits(0, pool=800).pool


def rows(samples: Any) -> set[bytes]:
    return {point.numpy().tobytes() for point in samples.points}


def test_no_digit_both_trains_and_tests_and_another_seed_splits_otherwise() -> None:
    data = load("classification.data")
    split = data.digits(0, pool=800)
    assert len(rows(split.pool)) == 800 and len(rows(split.test)) == 997
    assert not rows(split.pool) & rows(split.test)
    assert rows(data.digits(1, pool=800).pool) != rows(split.pool)


def test_every_digit_of_the_pool_goes_to_one_client() -> None:
    for kind in ("UNI", "POW"):
        parts = load("classification.data").dealt(pool(), 10, kind, seed=0)
        sizes = [len(samples.labels) for samples in parts.values()]
        assert sum(sizes) == 800 and sizes == sorted(sizes)
        assert set.union(*(rows(samples) for samples in parts.values())) == rows(pool())
        assert (sizes[0] == sizes[-1]) == (kind == "UNI")


def test_of_unequal_classes_each_agent_has_equal_numbers() -> None:
    parts = load("classification.data").dealt(pool(), 10, "CLA", seed=0)
    numbers = []
    for samples in parts.values():
        counts = samples.labels.bincount()
        assert len(samples.labels) == 80
        assert counts.max() - counts.min() <= 1
        numbers.append(len(counts))
    assert numbers == sorted(numbers) and numbers[0] == 1 and numbers[-1] == 10


def client(**changes: Any) -> Any:
    clients = load("classification.clients")
    samples = load("classification.data").dealt(pool(), 10, "UNI", seed=0)["client01"]
    torch.manual_seed(0)
    return clients.Client(samples, clients.Recipe(**changes))


def weights_of(a_client: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in a_client.network.state_dict().items()}


def test_a_client_trains_as_torchs_own_sgd_does() -> None:
    ours = client(rate=0.3, batch=80, epochs=3)
    start = weights_of(ours)
    reply = ours.answer(Train("client01", dict(start)))

    network = ours.recipe.network()
    network.load_state_dict(start)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.3)
    for _ in range(3):
        optimizer.zero_grad()
        logits = network(ours.samples.points)
        torch.nn.functional.cross_entropy(logits, ours.samples.labels).backward()
        optimizer.step()
    for name, tensor in network.state_dict().items():
        torch.testing.assert_close(start[name] + reply.update[name], tensor)
    assert reply.num_samples == 80
