# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Normalisation layers that stay at the sites, beside layers that all share: FedAvg's Dice."""

from __future__ import annotations

from reading import NotFinished
from seeds import finished, on_same_cells, received_and_used
from study import Study

STUDIES = ("strong_prostate",)
SHARED, LOCAL = "shared layers", "local normalisation layers"


def table() -> str:
    """Write a row for each, on the same seeds and folds."""
    study = Study.read("strong_prostate")
    shared = finished(study).get("FedAvg")
    local = finished(study, "local_norm").get("FedAvg")
    if not shared or not local:
        raise NotFinished("runs of FedAvg with both")
    found = on_same_cells({SHARED: shared, LOCAL: local})
    return "\n\n".join(received_and_used(found, baseline=SHARED))
