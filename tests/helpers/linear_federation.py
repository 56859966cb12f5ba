# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A bundle's federation whose sites compute nothing, and clients of :mod:`helpers.linear_run`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.bundle_runs import federation

from monai_fairfl import BundleFederation, Estimate, Reply, Request, Strategy
from monai_fairfl.client import FairMonaiAlgo


def in_place_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sites' clients answer at once; everything else is the command's own."""

    def answer(client: FairMonaiAlgo, request: Request) -> Reply:
        score = 0.5 + 0.01 * (request.round + len(request.client))
        measured = {name: {"mean": Estimate(score, 0.1, 4)} for name in request.measure}
        if request.task == "measure":
            return request.reply(measurements=measured)
        step = 0.01 * len(request.client)
        statistics = ("running_mean", "running_var", "num_batches_tracked")
        update, buffers = {}, {}
        for name, values in request.weights.items():
            if name.endswith(statistics):
                buffers[name] = values
            else:
                update[name] = torch.full_like(values, step)
        counts = {"num_samples": 10, "num_cases": 2, "num_steps": 1}
        return request.reply(update, measurements=measured, buffers=buffers, **counts)

    monkeypatch.setattr(FairMonaiAlgo, "answer", answer)


def bundle_federation(
    sites: Path, run_dir: Path, strategies: Sequence[Strategy], **settings: Any
) -> BundleFederation:
    """Two rounds of the prostate bundle at three of the sites; see :func:`in_place_of_training`."""
    settings = {"site_names": ["alder", "cedar", "rowan"], "report": True, **settings}
    return federation(sites, run_dir, list(strategies), **settings)
