# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedCE against an implementation that is not ours: NVIDIA FLARE 2.9's, round by round."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.driving import drive

from monai_fairfl import ModelSpec, Reply, Request
from monai_fairfl.strategies import FedCE

pytest.importorskip(
    "nvflare", reason="nvflare is not installed: pip install 'monai_fairfl[nvflare]'"
)
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType  # noqa: E402
from nvflare.app_opt.pt.fedce import FedCEConstants, FedCEModelAggregator  # noqa: E402

CLIENTS = ["BIDMC", "HK", "RUNMC", "UCL"]
SHAPES = {"conv.weight": (4, 2, 3, 3), "conv.bias": (4,), "head.weight": (2, 4)}
SPEC = ModelSpec(tuple(sorted(SHAPES)), layers={name: name.split(".")[0] for name in SHAPES})


@pytest.mark.parametrize(("mode", "theirs"), [("multi", "times"), ("sum", "plus")])
def test_ten_rounds_with_an_absent_client_equal_nvflare(mode: str, theirs: str) -> None:
    """Weights and parameters are equal within 1e-6.

    Buffers are left out: NVFlare sends and averages their differences in float32, we average their
    absolute values in float64, and take the maximum of counters.
    """
    generator = np.random.default_rng(0)
    drift = {c: {k: generator.normal(size=s) for k, s in SHAPES.items()} for c in CLIENTS}
    start = {k: torch.zeros(s) for k, s in SHAPES.items()}
    ours, peer = FedCE(mode, "revised"), FedCEModelAggregator(theirs, list(SPEC.parameters))
    ours.start(start, CLIENTS, SPEC)
    global_peer = {k: v.clone() for k, v in start.items()}
    dice_history: dict[str, list[float]] = {c: [] for c in CLIENTS}
    for number in range(10):
        present = [c for c in CLIENTS if not (c == "HK" and number == 4)]
        updates: dict[str, dict[str, torch.Tensor]] = {}
        for client in present:
            updates[client] = {}
            for name, shape in SHAPES.items():
                noise = generator.normal(size=shape) / (number + 1)
                update = 0.3 * drift[client][name] + 0.1 + noise
                updates[client][name] = torch.tensor(update, dtype=torch.float32)
        dice = {client: float(generator.uniform(0.3, 0.9)) for client in present}

        def answer(request: Request) -> Reply:
            measured = {name: 1 - dice[request.client] for name in request.measure}  # noqa: B023
            return request.reply(updates[request.client], 8, measurements=measured)  # noqa: B023

        result, _ = drive(ours, present, answer, SPEC)

        peer.reset_stats()
        for client in present:
            # The reference client sends 1 - mean of its scores so far; it makes up a first one, 0.
            dice_history[client].append(dice[client] if number else 0.0)
            error = 1 - float(np.mean(dice_history[client]))
            meta = {"client_name": client, FedCEConstants.MINUS_MODEL_SCORE: error}
            peer.accept_model(
                FLModel(ParamsType.DIFF, params=updates[client], current_round=number, meta=meta)
            )
        aggregated = peer.aggregate_model()
        global_peer = {k: global_peer[k] + aggregated.params[k] for k in global_peer}

        for client in present:
            expected = aggregated.meta[FedCEConstants.CONTRIBUTION_WEIGHTS][client]
            assert result.aggregation[client] == pytest.approx(expected, abs=1e-6), (number, client)
        for name in SHAPES:
            np.testing.assert_allclose(result.weights[name], global_peer[name], atol=1e-6)
