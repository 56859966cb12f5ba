# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""NVFlare's ``stop_cond`` and ``patience`` for a federation's run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from statistics import mean, median
from typing import Any

from nvflare.app_common.utils.math_utils import parse_compare_criteria

from monai_fairfl.errors import ConfigError
from monai_fairfl.messages import RANGES, UNDECLARED
from monai_fairfl.transports.flare.server.curves import numbers_of
from monai_fairfl.utils.settings import is_whole

logger = logging.getLogger(__name__)


class EarlyStop:
    """Ends a run when the mean of a measurement over sites meets a condition, or stops improving.

    Rounds that a site missed do not count: a mean over the others is one over other patients.

    For a measurement without a known range, such as a script's metric, the median over sites counts
    in place of the mean: one site could end the run of all by a huge number. The median of two
    sites is their mean. Where a range is known, the server has dropped numbers outside of it.

    Args:
        condition: such as ``"global_score >= 0.8"``; ``None``: never.
        patience: rounds without a better mean or median, from 1; ``None``: as many as there are.
        conclude: ends the run; the controller sets it once the run exists.

    Raises:
        ConfigError: when the condition cannot be read, the patience is no number of rounds, or
            there is patience without a condition.
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
        if patience is not None and (not is_whole(patience) or patience < 1):
            raise ConfigError(
                "patience must be a number of rounds from 1, or None for no limit, got "
                f"{patience!r}"
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
        self.has_known_range = self.name in RANGES
        self.has_warned = False

    def observe(self, record: Mapping[str, Any]) -> None:
        """Look at one record of the ledger, and end the run where it is time."""
        if record["kind"] == "start":
            self._run_started(record)
        if record["kind"] != "round" or self.meets is None:
            return
        numbers = numbers_of(record["measurements"], self.name)
        if not numbers:
            self._warn_of_missing(record)
        expected = {*self.expected_sites, *record["clients"]}
        if not numbers or not expected <= numbers.keys():
            return

        middle = self._middle(list(numbers.values()))
        if self.sign * middle > self.best:
            self.best = self.sign * middle
            self.rounds_since_best = 0
        else:
            self.rounds_since_best += 1

        out_of_patience = self.patience is not None and self.rounds_since_best >= self.patience
        if self.meets(middle, self.target) or out_of_patience:
            self.conclude()

    def _run_started(self, record: Mapping[str, Any]) -> None:
        """Remember the sites of a run, and whether it gives the measurement a range."""
        if not record["clients_per_round"]:
            self.expected_sites = record["clients"]
        given = record.get("ranges", {}).get(self.name)
        if given is not None:
            # The range of a key metric, in whatever unit, is as wide as that of an unknown name.
            self.has_known_range = list(given) != [UNDECLARED.least, UNDECLARED.most]

    def _warn_of_missing(self, record: Mapping[str, Any]) -> None:
        """Name, once a run, the measurement that no site sent: the condition may misspell it."""
        if self.has_warned:
            return
        self.has_warned = True
        sent = {name for of_site in record["measurements"].values() for name in of_site}
        logger.warning(
            "stop_cond: no site sent %r in round %d, and without it the run does not end early; "
            "sites sent: %s",
            self.name,
            record["round"],
            ", ".join(sorted(sent)) or "nothing",
        )

    def _middle(self, numbers: Sequence[float]) -> float:
        """Return the mean of the sites' numbers, or their median where no range limits them."""
        return mean(numbers) if self.has_known_range else median(numbers)


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
