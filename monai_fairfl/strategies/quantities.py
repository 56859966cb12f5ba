# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a method's own quantities mean: the texts that the report shows beside their figures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Quantity:
    """How the report shows one entry of a strategy's ``details``.

    Args:
        title: plain words, without units.
        axis: title of the axis.
        meaning: one sentence with unit and range.
        key: what a bare number among its keys stands for, such as ``"class"``.

    >>> Quantity("Weight", "Weight", "Share of the average; a round sums to 1.").title
    'Weight'
    """

    title: str
    axis: str
    meaning: str = ""
    key: str = ""


SCALE = Quantity(
    "Factor of the update",
    "Factor",
    "What each site's update is multiplied with before it is averaged; 1 is FedAvg's.",
)
"""``scale``, which every strategy may give to :meth:`~monai_fairfl.strategies.Strategy.finish`."""
