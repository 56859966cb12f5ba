# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Half precision, and tensors without entries or dimensions, with every strategy (fault 16)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.odd_federation import CLIENTS, SHAPES, SPEC, Fault, federation, start

from monai_fairfl.protocol.checks import refusal
from monai_fairfl.protocol.messages import Reply, Request, Train
from monai_fairfl.strategies import (
    CFFL,
    CGSV,
    FedAvg,
    FedCE,
    FedLWR,
    Mixed,
    ShapFed,
    Sparsified,
    Strategy,
    compose,
)
from monai_fairfl.strategies.resolver import shipped

REWARDED: dict[str, Strategy] = {
    "CGSV-released": CGSV(variant="released"),
    "CGSV-paper": CGSV(variant="paper"),
    "CGSV-round robin": CGSV(reward="round_robin"),
    "CGSV-data size": CGSV(reward="data_size"),
    "CGSV-euclidean": CGSV(reward="euclidean"),
    "CGSV-contribution index": CGSV(reward="contribution_index"),
    "ShapFed-personalised": ShapFed(personalised=True),
    "ShapFed-scaled": ShapFed(personalised=True, scale="max"),
    "FedCE-sparsified": compose(FedCE("cos"), reward=Sparsified()),
    "FedCE-mixed": compose(FedCE("cos"), reward=Mixed()),
    "FedLWR-one layer": FedLWR(layerwise=False),
    "CFFL-own rest": compose(CFFL(), reward=Sparsified(ratio="share", rest="own")),
}
STRATEGIES: dict[str, Strategy] = {
    **{name: kind() for name, kind in shipped().items()},
    **REWARDED,
}
HALVES = (torch.float16, torch.bfloat16)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32, torch.float64])
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_model_has_the_types_and_shapes_of_the_first(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    strategy = STRATEGIES[name]
    history = federation(strategy, tmp_path / "run", dtype=dtype).run()
    assert history.finished and not any(record["missing"] for record in history.rounds)
    expected = start(dtype)
    for client in ("everybody", *strategy.rewards):
        model = strategy.rewards.get(client, strategy.weights)
        for tensor, first in expected.items():
            assert model[tensor].dtype == first.dtype, (client, tensor)
            assert model[tensor].shape == first.shape, (client, tensor)
            assert model[tensor].isfinite().all(), (client, tensor)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ["FedAvg", "CGSV", "ShapFed-personalised", "Standalone"])
def test_a_client_that_computes_in_half_precision_changes_no_type(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    """The first client's, whose type an average of buffers would have."""
    strategy = STRATEGIES[name]
    first = {CLIENTS[0]: dtype}
    history = federation(strategy, tmp_path / "run", client_dtypes=first).run()
    assert history.finished and not any(record["missing"] for record in history.rounds)
    for model in (strategy.weights, *strategy.rewards.values()):
        for tensor, expected in start(torch.float32).items():
            assert model[tensor].dtype == expected.dtype


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_is_the_average_in_full_precision_rounded_once_a_round(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    half, full = FedAvg(), FedAvg()
    federation(half, tmp_path / "half", dtype=dtype, rounds=1).run()
    federation(full, tmp_path / "full", dtype=torch.float32, rounds=1).run()
    resolution = torch.finfo(dtype).eps
    for tensor in SHAPES:
        torch.testing.assert_close(
            half.weights[tensor].float(), full.weights[tensor], atol=4 * resolution, rtol=resolution
        )


def test_absent_clients_that_have_one_model_resume_to_the_same_bits(tmp_path: Path) -> None:
    """Before the resume they have the same tensors, after it equal ones."""

    def absent_in(number: int) -> Fault:
        def fault(request: Request, reply: Reply) -> Reply:
            if request.round == number:
                raise TimeoutError
            return reply

        return fault

    def run(folder: Path, rounds: int) -> list[Any]:
        faults = {client: absent_in(0) for client in CLIENTS[1:]}
        faults[CLIENTS[0]] = absent_in(1)
        settings = {"rounds": rounds, "min_clients": 1, "final": ()}
        strategy = ShapFed(personalised=True)
        resumable = federation(strategy, folder, dtype=torch.float64, faults=faults, **settings)
        return [record["model"] for record in resumable.run(resume=True).rounds]

    run(tmp_path / "parts" / "run", 1)
    assert run(tmp_path / "parts" / "run", 3) == run(tmp_path / "whole" / "run", 3)


def test_an_update_of_whole_numbers_is_refused_by_its_name() -> None:
    """No parameter can be of whole numbers, since those have no gradient."""
    model = start(torch.float32)
    update = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    update["head.bias"] = torch.zeros(2, dtype=torch.int64)
    reply = Reply("ash", update, 1, id=0)
    reason = refusal(Train("ash", model), reply, SPEC)
    assert reason == "update 'head.bias' has type torch.int64, expected torch.float32"


def test_a_tensor_without_entries_takes_nothing_from_the_share_of_the_step(tmp_path: Path) -> None:
    strategy = CGSV(variant="released")
    (record,) = federation(strategy, tmp_path / "run", rounds=1).run().rounds
    sizes = [math.prod(shape) for shape in SHAPES.values()]
    # The best client receives all but one entry of every tensor that has any.
    received = sum(size - 1 for size in sizes if size)
    assert max(record["details"]["kept"].values()) == pytest.approx(received / sum(sizes))
