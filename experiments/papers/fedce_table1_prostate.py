# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedCE, Table 1, prostate: Dice of every strategy at every site.

Mean with its interval, deviation over sites, worst site.
"""

from __future__ import annotations

from reading import dice_table, joined, read

STUDIES = ("prostate", "prostate_other_folds")


def table() -> str:
    """A row per strategy; the gain over FedAvg is case by case."""
    two_folds = dice_table(read("prostate"))
    return (
        f"All four folds:\n\n{short_table()}\n\n"
        f"The first two folds, all methods:\n\n{two_folds}"
    )


def short_table() -> str:
    """Return the rows of the strategies that were trained on all four folds."""
    return dice_table(joined(*STUDIES))
