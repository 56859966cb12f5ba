# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fused models on the real photographs, with seeds that nobody had looked at."""

from __future__ import annotations

from papers import last_mile
from reading import NotFinished, markdown
from seeds import described, dice_of_seeds, finished, on_same_cells
from study import Study

STUDIES = ("fused_photographs",)


def table() -> str:
    """Write Dice as received and as used, the last mile, and what was predicted."""
    study = Study.read("fused_photographs")
    everything = finished(study)
    for needed in ("FedAvg", "Standalone"):
        if needed not in everything:
            raise NotFinished(f"runs of {needed}")
    found = on_same_cells(everything)
    predictions = last_mile.predicted(
        found["FedAvg"], found["Standalone"], complete=not study.missing()
    )
    return "\n\n".join(
        [
            f"On {described(found['FedAvg'])}. As received:",
            dice_of_seeds(found, "test"),
            "With the model that each site uses after its last mile:",
            dice_of_seeds(found, "test_used"),
            "The last mile:",
            last_mile.table_of("fused_photographs"),
            "What was predicted before any test, and what came out:",
            markdown(["predicted", "came out", ""], predictions),
        ]
    )
