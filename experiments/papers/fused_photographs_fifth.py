# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A blind test of the package's rule for fused models, with more photographs that train."""

from __future__ import annotations

from papers import fused_photographs
from papers.fused_photographs import (
    always_fused,
    unless_worse_than_best,
    unless_worse_than_received,
    without_fused,
)

STUDIES = ("fused_photographs_fifth",)
RULES = {
    "no fused models": without_fused,
    "fused, unless more than 0.02 worse than what the site takes without": unless_worse_than_best,
    "fused, unless more than 0.02 worse than the received model: **the package's rule, as"
    " predicted, and used in this study**": unless_worse_than_received,
    "always fused": always_fused,
}


def table() -> str:
    """Write Dice as received and as used, the last mile, and what was predicted."""
    return fused_photographs.table_of("fused_photographs_fifth", RULES)
