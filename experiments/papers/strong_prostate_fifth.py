# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Real prostate volumes that train in place of validating: FedAvg's Dice with both shares."""

from __future__ import annotations

from papers.last_mile import came_out
from papers.strong_prostate import LEAST_USED
from reading import NotFinished, hierarchical_interval, markdown, words
from seeds import Cells, finished, gains, on_same_cells, received_and_used, scores
from study import Study

STUDIES = ("strong_prostate", "strong_prostate_fifth")
THIRD, FIFTH = "35 % validate", "20 % validate"


def table() -> str:
    """Write a row for each share, on the same seeds and folds; below, what was predicted."""
    study = Study.read("strong_prostate_fifth")
    third = finished(Study.read("strong_prostate")).get("FedAvg")
    fifth = finished(study).get("FedAvg")
    if not third or not fifth:
        raise NotFinished("runs of FedAvg with both shares")
    found = on_same_cells({THIRD: third, FIFTH: fifth})
    return "\n\n".join(
        [
            *received_and_used(found, baseline=THIRD, of="FedAvg on"),
            "What was predicted before any test, and what came out:",
            _predictions(found, complete=not study.missing()),
        ]
    )


def _predictions(found: dict[str, Cells], complete: bool) -> str:
    gain = hierarchical_interval(gains(scores(found[FIFTH]), scores(found[THIRD])))
    used = hierarchical_interval(scores(found[FIFTH], "test_used"))
    rows = [
        [
            "as received, more training volumes have the higher mean Dice",
            words(gain, signed=True),
            came_out(gain.estimate > 0, complete),
        ],
        [
            f"the mean Dice as used is at least {LEAST_USED}",
            words(used),
            came_out(used.estimate >= LEAST_USED, complete),
        ],
    ]
    return markdown(["predicted", "came out", ""], rows)
