# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fault 14: updates that are all the same, or all zero, give equal weights and no 0 / 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.odd_federation import CLIENTS, Fault, federation

from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.strategies.resolver import shipped


def same_for_all(factor: float) -> dict[str, Fault]:
    """Every client sends ``factor`` in every entry, and the same measurements."""

    def change(request: Request, reply: Reply) -> Reply:
        measured = {name: _same(value) for name, value in reply.measurements.items()}
        if reply.update is None:
            return replace(reply, measurements=measured)
        update = {}
        for name, tensor in reply.update.items():
            update[name] = torch.full_like(tensor, factor)
        return replace(reply, update=update, measurements=measured, num_samples=10)

    return dict.fromkeys(CLIENTS, change)


def _same(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: 0.5 for name in value}
    return 0.5


@pytest.mark.parametrize("factor", [0.0, 0.1])
@pytest.mark.parametrize("name", shipped())
def test_clients_that_cannot_be_told_apart_weigh_the_same(
    name: str, factor: float, tmp_path: Path
) -> None:
    run = federation(shipped()[name](), tmp_path / "run", faults=same_for_all(factor))
    history = run.run()
    assert history.finished
    for record in history.rounds:
        assert record["missing"] == {}
        rows = [record["aggregation"]]
        if any(isinstance(row, Mapping) for row in rows[0].values()):
            rows = list(rows[0].values())
        for row in rows:
            np.testing.assert_allclose(list(row.values()), len(row) * [1 / max(len(row), 1)])
    assert all(tensor.isfinite().all() for tensor in run.strategy.weights.values())
