# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Every strategy's numbers stay the same, whatever is rebuilt around them.

The clients of ``golden/federations.json`` do least squares in float64 on a model of nine numbers,
so no processor changes more than the last digits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from monai_fairfl import Federation, InProcess, ModelSpec, Reply, Request, Strategy, read_ledger
from monai_fairfl.strategies import (
    AFL,
    CFFL,
    CGSV,
    Ditto,
    FairFed,
    FedAvg,
    FedCE,
    FedCI,
    FedGA,
    FedISM,
    FedLWR,
    LeaveOneOut,
    QFedAvg,
    ShapFed,
    Standalone,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "federations.json"
SPEC = ModelSpec(
    ("body.weight", "head.weight"),
    layers={"body.weight": "body", "head.weight": "head"},
    output=("head", 0),
)
TARGETS = {"ash": 1.0, "beech": 1.25, "elm": -0.5, "oak": 2.0}
IMAGES = {"ash": 40, "beech": 10, "elm": 20, "oak": 30}
ROUNDS = 3
RECORDED = ("aggregation", "contributions", "measurements", "details", "scores", "best")

STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        FedAvg(),
        Standalone(),
        FedCE(),
        FedCE(mode="sum"),
        CGSV(),
        FedLWR(),
        ShapFed(),
        ShapFed(personalised=True),
        FedISM(),
        QFedAvg(),
        AFL(),
        CFFL(),
        FedCI(),
        Ditto(),
        FairFed(),
        FedGA(),
        LeaveOneOut(),
    )
}


class Quadratic:
    """A client that pulls the model towards its own target, and measures by fixed formulas."""

    def __init__(self, name: str):
        self.name = name
        number = sorted(TARGETS).index(name)
        body = [TARGETS[name], number / 4, 1.0]
        head = [[TARGETS[name], -1.0, number / 8], [0.5, number / 2, TARGETS[name] / 2]]
        self.target = {
            "body.weight": torch.tensor(body, dtype=torch.float64),
            "head.weight": torch.tensor(head, dtype=torch.float64),
        }

    def answer(self, request: Request) -> Reply:
        update = {}
        distance = 0.0
        for tensor, target in self.target.items():
            step = target - request.weights[tensor]
            update[tensor] = step / 2
            distance += float(step.square().sum())
        measured: dict[str, Any] = {}
        for place, name in enumerate(sorted(request.measure), 1):
            value = place / (place + 1 + distance)
            if name in ("cka", "feature_cosine"):
                measured[name] = {"mean": value, "body": value, "head": value / 2}
            elif name.endswith(("loss", "error", "sharpness")):
                measured[name] = 1 - value
            else:
                measured[name] = {"mean": value, "gland": value}
        echo: dict[str, Any] = {"id": request.id, "run": request.run, "round": request.round}
        if request.task == "measure":
            return Reply(request.client, None, 0, measured, **echo)
        return Reply(request.client, update, IMAGES[self.name], measured, num_steps=2, **echo)


def numbers_of(strategy: Strategy, folder: Path) -> dict[str, Any]:
    """What a run of three rounds records, and its last models."""
    start = {name: torch.zeros_like(tensor) for name, tensor in Quadratic("ash").target.items()}
    transport = InProcess({name: partial(Quadratic, name) for name in TARGETS})
    federation = Federation(strategy, transport, ROUNDS, lambda: (start, SPEC), run_dir=folder)
    federation.run()
    records = []
    for record in read_ledger(folder / "ledger.jsonl")[1:]:
        records.append({key: record[key] for key in RECORDED if key in record})
    models = {"global": strategy.weights, **strategy.rewards}
    final: dict[str, Any] = {}
    for name, weights in sorted(models.items()):
        final[name] = {tensor: weights[tensor].tolist() for tensor in sorted(weights)}
    return {"records": records, "models": final}


def compare(found: Any, expected: Any, where: str) -> None:
    """The same keys, the same texts, and numbers within 1e-9."""
    if isinstance(expected, Mapping):
        assert isinstance(found, Mapping) and set(found) == set(expected), where
        for key, value in expected.items():
            compare(found[key], value, f"{where}/{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for number, value in enumerate(expected):
            compare(found[number], value, f"{where}/{number}")
    elif isinstance(expected, float):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12, err_msg=where)
    else:
        assert found == expected, where


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_a_run_has_the_same_numbers(name: str, tmp_path: Path) -> None:
    expected = json.loads(GOLDEN.read_text())[name]
    found = json.loads(json.dumps(numbers_of(STRATEGIES[name], tmp_path / "run")))
    compare(found, expected, name)
