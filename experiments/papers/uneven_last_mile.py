# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The last mile on uneven hospitals: what the sites use against what they had."""

from __future__ import annotations

from papers.last_mile import table_of

STUDIES = ("uneven_prostate",)


def table() -> str:
    """Write what every strategy's sites use where BIDMC has one training volume."""
    return table_of("uneven_prostate")
