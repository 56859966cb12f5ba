# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The numbers of a ledger: a value, its standard error and the observations behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from monai_fairfl.messages import is_plain_estimate

MEAN = "mean"
"""The name under which the one number of a measurement stands beside its classes or layers."""


@dataclass(frozen=True)
class Number:
    """A value with its standard error and the number of observations behind it.

    ``None`` stands for a standard error or a number of observations that is not known.
    """

    value: float
    stderr: float | None = None
    n: int | None = None

    @classmethod
    def read(cls, data: Any) -> Number:
        """The one number of a measurement as the ledger holds it.

        Args:
            data: a number, an estimate's fields, or a mapping by class with its ``"mean"``.

        >>> Number.read({"mean": {"value": 0.8, "stderr": 0.1, "n": 4}, "gland": 0.8})
        Number(value=0.8, stderr=0.1, n=4)
        """
        return numbers_by_class(data)[MEAN]


def numbers_by_class(data: Any) -> dict[str, Number]:
    """The numbers of a measurement by class or layer; a single number is its own ``"mean"``.

    A mapping without ``"mean"``, such as one value per layer, gets the plain mean of its values,
    without uncertainty.

    >>> numbers_by_class(0.5)
    {'mean': Number(value=0.5, stderr=None, n=None)}
    >>> list(numbers_by_class({"conv": 0.25, "fc": 0.75}))
    ['mean', 'conv', 'fc']
    >>> numbers_by_class({"conv": 0.25, "fc": 0.75})["mean"].value
    0.5
    """
    if not isinstance(data, Mapping):
        return {MEAN: Number(float(data))}
    if is_plain_estimate(data):
        return {MEAN: Number(float(data["value"]), data["stderr"], data["n"])}

    numbers = {name: Number.read(item) for name, item in data.items() if item is not None}
    if numbers and MEAN not in numbers:
        total = sum(number.value for number in numbers.values())
        return {MEAN: Number(total / len(numbers)), **numbers}
    return numbers
