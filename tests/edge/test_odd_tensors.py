# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Tensors and numbers of a kind that training seldom makes: they work, or are refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from monai_fairfl import Federation, InProcess, ModelSpec, Reply, Request
from monai_fairfl.errors import ConfigError
from monai_fairfl.protocol import Measurement
from monai_fairfl.strategies import FedAvg

SPEC = ModelSpec(("w",))
ONES = torch.ones(4)


class Site:
    """Sends one update and one number in every round."""

    def __init__(self, update: torch.Tensor, value: Any):
        self.update = update
        self.value = value

    def answer(self, request: Request) -> Reply:
        measured: dict[str, Measurement] = dict.fromkeys(request.measure, self.value)
        echo: dict[str, Any] = {"id": request.id, "run": request.run, "round": request.round}
        if request.task == "measure":
            return Reply(request.client, None, 0, measured, **echo)
        return Reply(request.client, {"w": self.update}, 10, measured, **echo)


def train(
    folder: Path, update: torch.Tensor = ONES, value: Any = 0.5, model: torch.Tensor = 0 * ONES
) -> dict[str, Any]:
    """The first record of a run in which one of three sites sends what is odd."""
    sites: dict[str, Callable[[], Site]] = {name: partial(Site, ONES, 0.5) for name in "BC"}
    sites["A"] = partial(Site, update, value)

    def initial() -> tuple[Mapping[str, torch.Tensor], ModelSpec]:
        return {"w": model}, SPEC

    federation = Federation(FedAvg(), InProcess(sites), 1, initial, run_dir=folder / "run")
    return dict(federation.run().rounds[0])


@pytest.mark.parametrize(
    "update",
    [torch.ones(4, requires_grad=True), ONES.to(torch.float8_e4m3fn), ONES.double()],
    ids=["requires grad", "8 bit", "64 bit"],
)
def test_an_update_of_another_kind_counts_by_its_values(
    update: torch.Tensor, tmp_path: Path
) -> None:
    assert train(tmp_path, update)["aggregation"]["A"] == pytest.approx(1 / 3)
    stored = torch.load(tmp_path / "run" / "models" / "global.pt")
    assert torch.equal(stored["w"], ONES) and not stored["w"].requires_grad


@pytest.mark.parametrize(
    ("update", "word"), [(ONES.to_sparse(), "sparse"), (ONES.to(torch.complex64), "complex64")]
)
def test_an_update_without_a_mean_is_refused_by_name(
    update: torch.Tensor, word: str, tmp_path: Path
) -> None:
    record = train(tmp_path, update)
    assert "A" not in record["aggregation"]
    assert "'w'" in record["missing"]["A"] and word in record["missing"]["A"]


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (ONES.to(torch.complex64), "complex64"),
        (ONES.to(torch.float8_e4m3fn), "float8"),
        (ONES.to_sparse(), "sparse"),
    ],
)
def test_a_model_without_a_mean_is_refused_before_the_first_round(
    model: torch.Tensor, word: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"'w'.*{word}"):
        train(tmp_path, model=model)


def test_a_measurement_that_contains_itself_does_not_count(tmp_path: Path) -> None:
    endless: dict[str, Any] = {}
    endless["mean"] = endless
    record = train(tmp_path, value=endless)
    assert {site for site, found in record["measurements"].items() if found} == {"B", "C"}
    assert record["aggregation"]["A"] == pytest.approx(1 / 3)


def test_a_client_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    transport = InProcess({"A": partial(Site, ONES, 0.5)})
    transport.clients = ["A", "A"]
    federation = Federation(
        FedAvg(), transport, 1, lambda: ({"w": ONES}, SPEC), run_dir=tmp_path / "run"
    )
    with pytest.raises(ConfigError, match="twice.*'A'"):
        federation.run()
