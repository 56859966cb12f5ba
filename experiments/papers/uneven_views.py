# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""One clinic of another kind: its photographs are pairs of views side by side, which nobody splits.

Six generated clinics. At all others a photograph is one view.
"""

from __future__ import annotations

import uneven
from reading import dice_table

STUDIES = ("uneven_views",)
OTHER_KIND = "ebony"


def table() -> str:
    """A row per method: gains over FedAvg; then each clinic's Dice."""
    found = uneven.complete(STUDIES[0])
    values = {name: uneven.by_seed(results) for name, results in found.items()}
    parts = [uneven.table_of(values, OTHER_KIND)]
    if "FedAvg" in found:
        parts.append(f"Each clinic, with intervals over cases alone:\n\n{dice_table(found)}")
    return "\n\n".join(parts)
