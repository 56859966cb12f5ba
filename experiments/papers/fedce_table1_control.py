# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedCE, Table 1 on the generated hospitals: does augmentation close the gap by itself?

Control to the tables of the real images: the same strategies with augmentation, and some of them
without, as the papers train (photographs are still looked at from anywhere near the disc).
Hospitals differ there by construction.
"""

from __future__ import annotations

from papers.fedce_table1_fundus import missed
from reading import dice_table, read

STUDIES = ("six_prostate", "six_fundus")
SETTINGS = {"": "as everywhere else", "no_augmentation": "without augmentation"}


def table() -> str:
    """A table per task and setting; the gain over FedAvg is case by case, in the same setting."""
    parts = []
    for study in STUDIES:
        for setting, name in SETTINGS.items():
            results = read(study, setting)
            parts.append(f"`{study}`, {name}:")
            parts.append(dice_table(results))
            if study == "six_fundus":
                parts.append(missed(results))
    return "\n\n".join(parts)
