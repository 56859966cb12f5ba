# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""CGSV, Table 3: seconds to value the clients of a round, and their ratio to training.

The paper finds cosines at most 0.4 times as long as training, and valuing by validation (ECI) up to
141 times. Here we have six generated hospitals and a small U-Net, one after the other on one
thread; seconds are the processor's.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from reading import markdown, measurement
from study import ROOT

from monai_fairfl.bundle.federation import BundleFederation
from monai_fairfl.data import write_sites
from monai_fairfl.protocol.averages import sample_shares
from monai_fairfl.protocol.geometry import Geometry
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.run_folder.recorded_updates import recorded_rounds
from monai_fairfl.strategies import FedAvg
from monai_fairfl.strategies.base import Rounds
from monai_fairfl.valuation import (
    FinishedRun,
    Game,
    Reconstruction,
    Valuation,
    cosine_game,
    exact_shapley,
)
from monai_fairfl.valuation.finished import Evaluator
from monai_fairfl.valuation.utility import MeasuredModels

STUDIES = ()
ROUNDS = 3
LOCAL_EPOCHS = 2
LIGHT = ("configs/train.json", "configs/light.json")
OVERRIDES = {"size": [64, 64], "channels": [16, 32, 64, 128]}


class Timed(FedAvg):
    """FedAvg that measures how long its clients train in each round."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def round(self, clients: Sequence[str]) -> Rounds:
        """As FedAvg's."""
        generator = super().round(clients)
        requests = next(generator)
        begun = time.process_time()
        replies = yield requests
        self.seconds.append(time.process_time() - begun)
        try:
            generator.send(replies)
        except StopIteration as stop:
            return stop.value
        raise AssertionError("FedAvg asks once")


class LastRound(Reconstruction):
    """Values the last round alone, and measures how long that takes.

    It measures all its models itself.
    """

    def games(self, run: FinishedRun, evaluate: Evaluator) -> list[Game]:
        """Return the last round's game alone."""
        return super().games(run, evaluate)[-1:]

    def measured(self, run: FinishedRun) -> MeasuredModels:
        """Begin without any measured model."""
        return MeasuredModels(run.run_dir / f"{self.name}.jsonl", "")

    def value(self, run: FinishedRun) -> Valuation:
        """Value as usual; the sites load their images before the clock starts."""
        run.panel.measure(recorded_rounds(run.run_dir)[-1].start(), self.utility.measurement)
        begun = time.process_time()
        found = super().value(run)
        self.seconds = time.process_time() - begun
        self.models = found.evaluations
        return found


def contributions(replies: Replies, exactly: bool) -> list[float]:
    """Compute CGSV's contributions from the updates alone, with a new Gram matrix."""
    geometry = Geometry(replies.matrix, replies.spec)
    scale = np.array(list(sample_shares(replies).values())) / geometry.norms
    if not exactly:
        return [geometry.cosine(client, scale) for client in np.eye(len(replies))]
    game = cosine_game(geometry.gram, scale, replies.clients)
    return [float(value) for value in exact_shapley(game).values.values()]


def seconds_of(step: Callable[[], Any]) -> float:
    """Measure a step: the median of nine runs."""
    seconds = []
    for _ in range(9):
        begun = time.process_time()
        step()
        seconds.append(time.process_time() - begun)
    return median(seconds)


def measure(data: Path, runs: Path) -> dict[str, Any]:
    """Train, value the last round by models, and time the server's steps on recorded updates."""
    torch.set_num_threads(1)
    strategy = Timed()
    leave_one_out = LastRound("leave_one_out")
    shapley = LastRound("exact")
    bundle = ROOT / "bundles" / "prostate_mri_segmentation"
    with tempfile.TemporaryDirectory() as folder:
        sites = f"{folder}/sites"
        run = f"{folder}/run"
        write_sites(sites, size=(64, 64, 16))
        BundleFederation(
            str(bundle),
            sites,
            strategy,
            ROUNDS,
            run,
            config=LIGHT,
            overrides=OVERRIDES,
            local_epochs=LOCAL_EPOCHS,
            record_updates=True,
            valuations=[leave_one_out, shapley],
            evaluate=(),
            report=False,
        ).run()
        replies = recorded_rounds(run)[-1].replies()
    average = seconds_of(lambda: replies.average(sample_shares(replies)))
    psi = seconds_of(lambda: contributions(replies, exactly=False))
    exact = seconds_of(lambda: contributions(replies, exactly=True))
    # Seconds, and how many models were scored.
    steps = {
        "FedAvg: the average alone": (average, 0),
        "CGSV: psi": (psi, 0),
        "CGSV: exact, from the Gram matrix": (exact, 0),
        "leave-one-out of averaged models": (leave_one_out.seconds, leave_one_out.models),
        "Shapley value of averaged models": (shapley.seconds, shapley.models),
    }
    return {
        "clients": len(replies),
        "parameters": replies.matrix.rows.shape[1],
        "training": strategy.seconds,
        "steps": steps,
    }


def table() -> str:
    """A row per step; training is the median round of all sites, one after the other."""
    found = measurement("cgsv_overhead")
    training = median(found["training"])
    rows = [["training, one round", "–", f"{training:.2g}", "1"]]
    for name, (seconds, models) in found["steps"].items():
        rows.append([name, models or "–", f"{seconds:.2g}", f"{seconds / training:.1g}"])
    size = (
        f"{found['clients']} clients, {found['parameters']} parameters, {LOCAL_EPOCHS} local epochs"
    )
    return f"{size}:\n\n{markdown(['step', 'models scored', 'seconds', 'ratio to training'], rows)}"
