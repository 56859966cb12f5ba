# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A bundle's federation whose sites compute nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.bundle_runs import federation
from helpers.tiny_networks import OF_LAYERS, STATISTICS, by_layer

from monai_fairfl import BundleFederation, Estimate, Reply, Request, Strategy
from monai_fairfl.client import FairMonaiAlgo


def score_of(request: Request) -> float:
    return 0.5 + 0.01 * (request.round + len(request.client))


def answer(client: FairMonaiAlgo, request: Request) -> Reply:
    """In place of training and measuring."""
    score = score_of(request)
    measured: dict[str, Any] = {}
    for name in request.measure:
        estimate = {"mean": Estimate(score, 0.1, 4)}
        measured[name] = by_layer(request, score) if name in OF_LAYERS else estimate
    if request.task == "measure":
        return request.reply(measurements=measured)
    step = 0.01 * len(request.client)
    update, buffers = {}, {}
    for name, values in request.weights.items():
        if name.endswith(STATISTICS):
            buffers[name] = values
        else:
            update[name] = torch.full_like(values, step)
    counts = {"num_samples": 10, "num_cases": 2, "num_steps": 1}
    return request.reply(update, measurements=measured, buffers=buffers, **counts)


def in_place_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sites' clients answer at once; everything else is the command's own."""
    monkeypatch.setattr(FairMonaiAlgo, "answer", answer)


def bundle_federation(
    sites: Path, run_dir: Path, strategies: Sequence[Strategy], **settings: Any
) -> BundleFederation:
    """Two rounds of the prostate bundle at three of the sites; see :func:`in_place_of_training`."""
    settings = {"site_names": ["alder", "cedar", "rowan"], "report": True, **settings}
    return federation(sites, run_dir, list(strategies), **settings)


def answer_with_cases(client: FairMonaiAlgo, request: Request) -> Reply:
    """The same; a score has a table of cases, which are compared."""
    # A run's name ends with its fold.
    fold, score = request.run[-1], score_of(request)
    for name in request.measure:
        cases = {f"fold{fold}-{step}": {"dice": score + 0.1 * step} for step in (-1, 0, 1)}
        client.states.folder.mkdir(parents=True, exist_ok=True)
        client.states.save_cases(request.run, f"{name}-{request.round}-0", cases)
    return answer(client, request)
