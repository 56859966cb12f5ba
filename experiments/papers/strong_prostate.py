# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A stronger base on the real prostate volumes: Dice as received, and with the models used."""

from __future__ import annotations

import numpy as np
from papers.last_mile import MOST_LOSERS, RUINED, losses_of, share_of_losers
from reading import NotFinished, hierarchical_interval, markdown, words
from seeds import Cells, described, dice_of_seeds, finished, gains, on_same_cells, scores
from study import Study

STUDIES = ("strong_prostate",)
LEAST_RECEIVED, LEAST_USED = 0.85, 0.87
MOST_LOSS = 0.01
LEAST_BOUND = -0.005


def table() -> str:
    """Write Dice as received and as used; below, what was predicted."""
    study = Study.read("strong_prostate")
    everything = finished(study)
    found = on_same_cells(everything)
    cells = next(iter(found.values()))
    return "\n\n".join(
        [
            f"On {described(cells)}. As received:",
            dice_of_seeds(found, "test"),
            "With the model that each site uses after its last mile:",
            dice_of_seeds(found, "test_used"),
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
                _came_out(mean.estimate >= least, complete),
            ]
        )
    if "FedCE-sum" in found:
        difference = gains(scores(found["FedCE-sum"]), scores(found["FedAvg"]))
        gain = hierarchical_interval(difference)
        rows.append(
            [
                f"FedCE's sum is not lower than FedAvg by more than {MOST_LOSS}",
                words(gain, signed=True),
                _came_out(gain.estimate >= -MOST_LOSS, complete),
            ]
        )
    if "Standalone" in found:
        rows += _of_last_mile(found, complete)
    return markdown(["predicted", "came out", ""], rows)


def _of_last_mile(found: dict[str, Cells], complete: bool) -> list[list[str]]:
    losses = losses_of(found["FedAvg"], found["FedAvg"], found["Standalone"])
    mean = hierarchical_interval(losses)
    share = share_of_losers(losses)
    bound = mean.low
    if np.isnan(bound):
        bound = mean.estimate
    return [
        [
            "FedAvg: used less the better of FedAvg and alone, lower bound at least "
            f"{LEAST_BOUND}",
            words(mean, signed=True),
            _came_out(bound >= LEAST_BOUND, complete),
        ],
        [
            f"the same: lower by more than {RUINED} in at most one in ten",
            f"{share:.0%}",
            _came_out(share <= MOST_LOSERS, complete),
        ],
    ]


def _came_out(holds: bool, complete: bool) -> str:
    """Write whether a prediction was met; where cells are missing, only so far."""
    word = "missed"
    if holds:
        word = "met"
    if complete:
        return word
    return f"{word} so far"
