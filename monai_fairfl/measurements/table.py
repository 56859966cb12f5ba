# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Lists what a client can measure: :data:`MEASUREMENTS`, one entry per name.

To add one, write its function here or in a module of this package, and add a line to the table.
CONTRIBUTING.md has a complete example.
"""

from __future__ import annotations

from monai_fairfl.measurements.entry import Context, Entry, Memory
from monai_fairfl.measurements.features import cka, feature_cosine
from monai_fairfl.measurements.forward import has_no_batch
from monai_fairfl.measurements.leave_one_out import leave_one_out_error
from monai_fairfl.measurements.probe import Probe
from monai_fairfl.measurements.training_probe import TrainingProbe
from monai_fairfl.messages import CANDIDATES, Measurement, Weights

SAM_RADIUS = 0.05
"""Radius of the measurement ``sharpness`` where the server sends no ``sam_rho``."""


def score(probe: Probe, weights: Weights, memory: Memory, context: Context) -> Measurement | None:
    """Mean Dice of ``weights`` on the probe's data, per class too; ``None`` without any case."""
    return None if has_no_batch(probe.engine) else probe.score(weights)


def loss(probe: TrainingProbe, weights: Weights, memory: Memory, context: Context) -> Measurement:
    """The bundle's training loss of ``weights`` on the training data, the same crops each time."""
    return probe.loss(weights)


def sharpness(probe: TrainingProbe, weights: Weights, memory: Memory, context: Context) -> float:
    """FedISM's sharpness of ``weights`` on the training data; radius ``sam_rho`` (IJCAI 2024)."""
    return probe.sharpness(weights, context.get("sam_rho", SAM_RADIUS))


def surface_distance(
    probe: Probe, weights: Weights, memory: Memory, context: Context
) -> Measurement | None:
    """95th percentile of the surface distance of ``weights``, by the evaluator's metric ``hd95``.

    A bundle whose evaluator has that metric is measured so at the end; in Python
    ``Federation(final=("score", "test_score", "test_hd95"))`` asks for it. ``None`` where the
    evaluator has no such metric, or the client has no test case.
    """
    return probe.further("hd95", weights)


MEASUREMENTS: dict[str, Entry] = {
    "leave_one_out_error": Entry("received", leave_one_out_error, needs="previous"),
    "global_score": Entry("received", score),
    "score": Entry("received", score),
    "test_score": Entry("received", score, data="test"),
    "test_hd95": Entry("received", surface_distance, data="test"),
    "local_score": Entry("trained", score),
    "global_loss": Entry("received", loss, data="training"),
    "local_loss": Entry("trained", loss, data="training"),
    "sharpness": Entry("received", sharpness, data="training"),
    "cka": Entry("received", cka, needs="present", training_key="cka_training"),
    "feature_cosine": Entry(
        "received", feature_cosine, needs="present", training_key="cka_training"
    ),
}
"""name -> entry. ``train_loss`` is not here: a handler collects it during training
(:class:`~monai_fairfl.handlers.TrainLoss`).
"""

# The models that only their site may have.
for _model in ("personal", *CANDIDATES):
    MEASUREMENTS[f"{_model}_score"] = Entry(_model, score)
    MEASUREMENTS[f"{_model}_test_score"] = Entry(_model, score, data="test")
