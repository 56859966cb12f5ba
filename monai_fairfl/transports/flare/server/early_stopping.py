# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""NVFlare's ``stop_cond`` and ``patience`` for a federation's run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nvflare.app_common.utils.math_utils import parse_compare_criteria

from monai_fairfl.errors import ConfigError
from monai_fairfl.transports.flare.server.curves import numbers_of


class EarlyStop:
    """Ends a run when the mean of a measurement over sites meets a condition, or stops improving.

    Rounds that a site missed do not count: a mean over the others is one over other patients.

    Args:
        condition: such as ``"global_score >= 0.8"``; ``None``: never.
        patience: rounds without a better mean; ``None``: as many as there are.
        conclude: ends the run; the controller sets it once the run exists.

    Raises:
        ConfigError: when the condition cannot be read, or there is patience without a condition.
    """

    def __init__(
        self,
        condition: str | None,
        patience: int | None = None,
        conclude: Callable[[], None] = lambda: None,
    ):
        if patience is not None and not condition:
            raise ConfigError(
                f"patience {patience} needs stop_cond, which names the measurement to watch"
            )
        self.patience = patience
        self.conclude = conclude

        self.name = ""
        self.target = 0.0
        self.meets: Callable[[float, float], bool] | None = None
        if condition:
            self.name, self.target, self.meets = parse_condition(condition)
        self.sign = -1.0 if condition and "<" in condition else 1.0

        self.best = -float("inf")
        self.rounds_since_best = 0
        self.expected_sites: Sequence[str] = ()

    def observe(self, record: Mapping[str, Any]) -> None:
        """Look at one record of the ledger, and end the run where it is time."""
        if record["kind"] == "start" and not record["clients_per_round"]:
            self.expected_sites = record["clients"]
        if record["kind"] != "round" or self.meets is None:
            return
        numbers = numbers_of(record["measurements"], self.name)
        expected = {*self.expected_sites, *record["clients"]}
        if not numbers or not expected <= numbers.keys():
            return

        mean = sum(numbers.values()) / len(numbers)
        if self.sign * mean > self.best:
            self.best = self.sign * mean
            self.rounds_since_best = 0
        else:
            self.rounds_since_best += 1

        out_of_patience = self.patience is not None and self.rounds_since_best >= self.patience
        if self.meets(mean, self.target) or out_of_patience:
            self.conclude()


def parse_condition(
    condition: str, example: str = "global_score"
) -> tuple[str, float, Callable[[float, float], bool]]:
    """Return measurement, target and comparison of a ``stop_cond``.

    Args:
        condition: such as ``"dice >= 0.8"``.
        example: a measurement for the error's example.

    Raises:
        ConfigError: when it cannot be read.

    >>> name, target, meets = parse_condition("dice >= 0.8")
    >>> name, target, meets(0.9, target)
    ('dice', 0.8, True)
    """
    try:
        name, target, compare = parse_compare_criteria(condition)
    except ValueError as error:
        raise ConfigError(
            f"stop_cond {condition!r} must be such as '{example} >= 0.8': {error}"
        ) from error
    return name, target, compare
