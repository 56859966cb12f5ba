# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Every strategy in one odd federation: half precision, tensors without entries, strange numbers,
clients that are away, replies in another order, a stop and a resumption.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.faulty_transports import Fault
from helpers.least_squares_federation import ledger_bytes
from helpers.odd_federation import federation, start
from helpers.shipped_strategies import SHIPPED
from helpers.tiny_networks import SITES

from monai_fairfl import Reply, Request
from monai_fairfl.audit import replay
from monai_fairfl.server import Observer
from monai_fairfl.strategies import (
    CFFL,
    CGSV,
    FedCE,
    FedLWR,
    Median,
    Mixed,
    Proportional,
    ShapFed,
    Sparsified,
)

MADE: dict[str, Any] = {
    **SHIPPED,
    "CGSV-exact": lambda: CGSV(variant="paper", exact=True),
    "CGSV-contribution index": lambda: CGSV(reward="contribution_index"),
    "CGSV-euclidean": lambda: CGSV(reward="euclidean"),
    "FedCE-median": lambda: FedCE("cos", average=Median()),
    "FedCE-parts": lambda: FedCE(
        "cos", weighting=Proportional(2.0), reward=Mixed("max"), training={"prox_mu": 0.1}
    ),
    "FedLWR-one layer": lambda: FedLWR(layerwise=False, similarity="cosine"),
    "ShapFed-paper": lambda: ShapFed(variant="paper"),
    "ShapFed-personalised": lambda: ShapFed(personalised=True),
    "CFFL-own rest": lambda: CFFL(reward=Sparsified(ratio="share", rest="own")),
}
TYPES = (torch.float16, torch.bfloat16, torch.float64)


def away(request: Request, reply: Reply) -> Reply | None:
    return None if request.round == 1 else reply


def reporting(*values: Any) -> Fault:
    """Reports these values, one in each round, wherever it is asked for a number."""

    def lie(request: Request, reply: Reply) -> Reply:
        value = values[request.round % len(values)]
        return replace(reply, measurements=dict.fromkeys(reply.measurements, value))

    return lie


class StopsAfterTheFirst(Observer):
    """Asks a federation to stop after its first round."""

    federation: Any = None

    def record_added(self, record: Mapping[str, Any]) -> None:
        if record["kind"] == "round":
            self.federation.stop()


STRANGE: dict[str, Fault] = {
    "elm": reporting(-math.inf, math.nan, 1e308),
    "oak": reporting(10**400, None, {"mean": 0.5, "body": 0.5, "head": 1e300}),
}


@pytest.mark.parametrize("name", MADE)
def test_every_strategy_keeps_the_promises_of_all(name: str, tmp_path: Path) -> None:
    dtype = TYPES[list(MADE).index(name) % 3]
    strategy = MADE[name]()
    given: dict[str, Any] = {"dtype": dtype, "faults": {"beech": away, **STRANGE}}
    history = federation(strategy, tmp_path / "whole", **given).run()
    assert history.finished

    # The absent client and those that sent strange numbers are named, and no one else.
    assert [set(record["missing"]) for record in history.rounds] == [set(), {"beech"}, set()]
    for record in history.rounds:
        assert {*record["not_finite"], *record["dropped"]} <= set(STRANGE)
        assert set(record["contributions"]) <= set(SITES) - set(record["missing"])
        # Weights are shares, of each layer where layers have their own.
        rows = [record["aggregation"]]
        if any(isinstance(row, Mapping) for row in record["aggregation"].values()):
            rows = list(record["aggregation"].values())
        for row in rows:
            assert not row or sum(row.values()) == pytest.approx(1, abs=1e-9)
            assert min(row.values(), default=0) >= 0

    # Each model is finite, and has the types and shapes of the first.
    first = start(dtype)
    for model in (strategy.weights, *strategy.rewards.values()):
        for tensor, expected in first.items():
            assert model[tensor].dtype == expected.dtype
            assert model[tensor].shape == expected.shape
            assert model[tensor].isfinite().all()

    # All numbers follow from the ledger alone.
    replayed = replay(tmp_path / "whole" / "run")
    assert (replayed.rounds, replayed.differences) == (3, ())

    # A run that is stopped and resumed has the same bits.
    stop = StopsAfterTheFirst()
    folder = tmp_path / "parts"
    stop.federation = federation(MADE[name](), folder, observer=stop, **given)
    assert not stop.federation.run().finished
    federation(MADE[name](), folder, **given).run(resume=True)
    assert ledger_bytes(folder) == ledger_bytes(tmp_path / "whole")
