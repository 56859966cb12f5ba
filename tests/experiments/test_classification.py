# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The classification controls: how data are dealt, and what their clients answer."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
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


def test_a_class_goes_to_its_owner_alone() -> None:
    data = load("classification.data")
    owned = np.eye(2)[[0, 1, 0, 1, 0, 1, 0, 1, 0, 1]].T
    even, odd = data.by_shares(pool(), owned, seed=0).values()
    assert set(even.labels.tolist()) == {0, 2, 4, 6, 8}
    assert len(even.labels) + len(odd.labels) == 800
    with pytest.raises(ValueError, match="sum to at most 1"):
        data.by_shares(pool(), owned + 0.1, seed=0)


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


def test_a_predicate_holds_only_for_all_seeds_and_one_model_for_all_has_no_fairness() -> None:
    summaries = load("classification.summaries")
    assert summaries.answer([True, False, True]) == "no (2 of 3 seeds)"
    assert math.isnan(summaries.fairness([0.1, 0.5, 0.9], [0.7, 0.7, 0.7]))
    runs = [{"seed": 1, "of": "a"}, {"seed": 0, "of": "a"}, {"seed": 0, "of": "b"}]
    assert [run["seed"] for run in summaries.chosen(runs, of="a")] == [0, 1]


def test_without_a_reward_all_agents_have_one_model_and_dealt_wrongly_the_same_shares() -> None:
    cgsv = load("papers.controls_cgsv")
    null = cgsv.one_run(10, "POW", "null: beta 1e7", seed=0, rounds=1)
    assert len(set(null["received"])) == 1 and set(null["kept"]) == {1.0}
    # After one round both runs have had the same updates.
    rewarded = cgsv.one_run(10, "POW", "CGSV, beta 1", seed=0, rounds=1)
    assert len(set(rewarded["received"])) > 1 and rewarded["client_rounds"] == 10
    wrong = cgsv.one_run(10, "POW", "null: dealt wrongly", seed=0, rounds=1)
    assert wrong["kept"] != rewarded["kept"]
    assert sorted(wrong["kept"]) == sorted(rewarded["kept"])
