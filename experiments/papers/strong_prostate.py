# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A stronger base on the real prostate volumes: Dice as received, and with the models used."""

from __future__ import annotations

from papers.last_mile import came_out, predicted
from reading import NotFinished, hierarchical_interval, markdown, words
from seeds import Cells, finished, gains, on_same_cells, received_and_used, scores
from study import Study

STUDIES = ("strong_prostate",)
LEAST_RECEIVED, LEAST_USED = 0.85, 0.87
MOST_LOSS = 0.01


def table() -> str:
    """Write Dice as received and as used; below, what was predicted."""
    study = Study.read("strong_prostate")
    everything = finished(study)
    found = on_same_cells(everything)
    return "\n\n".join(
        [
            *received_and_used(found),
            "What was predicted before any test, and what came out:",
            _predictions(found, complete=not study.missing()),
        ]
    )


def _predictions(found: dict[str, Cells], complete: bool) -> str:
    if "FedAvg" not in found:
        raise NotFinished("runs of FedAvg")
    rows = []
    for model, least, name in (
        ("test", LEAST_RECEIVED, "as received"),
        ("test_used", LEAST_USED, "as used"),
    ):
        mean = hierarchical_interval(scores(found["FedAvg"], model))
        rows.append(
            [
                f"FedAvg's mean Dice {name} is at least {least}",
                words(mean),
                came_out(mean.estimate >= least, complete),
            ]
        )
    if "FedCE-sum" in found:
        difference = gains(scores(found["FedCE-sum"]), scores(found["FedAvg"]))
        gain = hierarchical_interval(difference)
        rows.append(
            [
                f"FedCE's sum is not lower than FedAvg by more than {MOST_LOSS}",
                words(gain, signed=True),
                came_out(gain.estimate >= -MOST_LOSS, complete),
            ]
        )
    if "Standalone" in found:
        rows += predicted(found["FedAvg"], found["Standalone"], complete)
    return markdown(["predicted", "came out", ""], rows)
