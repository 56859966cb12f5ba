# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedCE, Table 1 on the generated hospitals, with augmentation and without: does augmentation close
the gap by itself?

Control to the tables of the real images: the same strategies, and some of them without
augmentation, as the papers train (photographs are still looked at from anywhere near the disc).
Hospitals differ there by construction.
"""

from __future__ import annotations

from papers.fedce_table1_fundus import missed
from reading import dice_table, read

STUDIES = ("six_prostate", "six_fundus")
SETTINGS = {"": "as everywhere else", "no_augmentation": "without augmentation"}


def table() -> str:
    """A table per task and setting; the gain over FedAvg is case by case, in the same setting."""
    return "\n\n".join(_of(study, setting) for study in STUDIES for setting in SETTINGS)


def _of(study: str, setting: str) -> str:
    results = read(study, setting)
    parts = [f"`{study}`, {SETTINGS[setting]}:", dice_table(results)]
    return "\n\n".join(parts + [missed(results)] if study == "six_fundus" else parts)
