# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedISM, Table 2: its training alone (SALT), its weights alone (SAGA), and both.

20 % of the clients have noise.
"""

from __future__ import annotations

from papers.fedism_table1 import HEAD, SETTINGS, rows_of
from reading import markdown

STUDIES = ("quality", "quality_volumes")
PARTS = {
    "neither (FedAvg)": "FedAvg",
    "SALT only": "FedAvg-SALT",
    "SAGA only": "SAGA",
    "both (FedISM)": "FedISM",
}


def table() -> str:
    """A row per combination."""
    settings = {}
    for (study, setting), what in SETTINGS.items():
        if setting == "noise20":
            settings[study, setting] = what
    return markdown(["images", "parts", *HEAD], rows_of(settings, PARTS))
