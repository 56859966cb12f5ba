# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Two of ten clients have noisy volumes: FedAvg and FedISM after four times as many rounds."""

from __future__ import annotations

from papers.uneven_corrupted import table_of

STUDIES = ("uneven_corrupted_longer",)


def table() -> str:
    """A row per method, after four times the rounds of ``uneven_corrupted``."""
    return table_of(STUDIES[0])
