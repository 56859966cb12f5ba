# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a measurement may be: unit and range of every name that crosses the wire.

A client computes its measurements itself, and no server can recompute them. It can refuse what is
impossible. So each name has a :class:`Range` in :data:`RANGES`, and a value outside of it is
dropped, as one that is not finite is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from monai_fairfl.protocol.last_mile import ADAPTED_EPOCHS, CANDIDATES, gain_name, score_names
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.texts import printable
from monai_fairfl.protocol.values import (
    IN_TRAINING,
    IN_VALIDATION,
    Estimate,
    Measurement,
    plain_numbers,
)

ROUNDING = 1e-6
"""Part of a range by which rounding may carry a value out of it; of 100 at most, so that counts of
a million cases are not rounded by one.
"""

MOST_NAME = 128
"""Characters of a measurement's name, or of the name of a class or layer in it."""

MOST_VALUES = 10_000
"""Numbers in one reply. A network of a thousand layers sends a thousand similarities."""

LEAST_PARTS = 100
"""Classes or layers that a measurement of any model may have."""

MOST_CASES = 1_000_000
"""Observations behind one estimate: cases of a site, or batches of an epoch."""

MOST_LISTED = 20
"""Dropped measurements of one reply that a record lists one by one."""


@dataclass(frozen=True)
class Range:
    """The values that a measurement can have.

    Args:
        unit: such as ``"Dice"``.
        least: value.
        most: value, finite: a value without bound would decide every mean.

    Raises:
        ValueError: when ``least`` and ``most`` are no finite interval.

    >>> Range("Dice", 0, 1).holds(1 + 1e-9), Range("Dice", 0, 1).holds(85.0)
    (True, False)
    >>> str(Range("loss", 0, 100))
    '0 to 100 (loss)'
    """

    unit: str
    least: float
    most: float

    def __post_init__(self) -> None:
        is_finite = math.isfinite(self.least) and math.isfinite(self.most)
        if not is_finite or not self.least < self.most:
            raise ValueError(
                f"the range of {self.unit} must be two finite numbers, the lower one first, got "
                f"{self.least!r} and {self.most!r}"
            )

    def holds(self, value: float) -> bool:
        """Whether ``value`` is in the range, but for rounding."""
        slack = ROUNDING * min(self.most - self.least, 100.0)
        return self.least - slack <= value <= self.most + slack

    def __str__(self) -> str:
        return f"{self.least:g} to {self.most:g} ({self.unit})"


DICE = Range("Dice", 0.0, 1.0)

LOSS = Range("loss", 0.0, 100.0)
"""A cross-entropy has no upper bound, and weights by loss need one, else a single number takes all
of the weight. Dice losses are at most 1. A cross-entropy per voxel of 100 means a probability of
1e-43 for the true class, everywhere: no training that goes on reaches it.
"""

UNDECLARED = Range("no declared unit", -1e6, 1e6)
"""Of a measurement that no table declares. Its powers and sums stay finite."""

UNBIASED_CKA = Range("similarity", -10.0, 10.0)
"""The unbiased estimate is a ratio of differences. Of few images it may leave [0, 1], and Fed-LWR
clips it.
"""

DISTANCE = Range("distance in the unit of the spacing, mm", 0.0, 1e4)
"""Of two surfaces: none is farther than the diagonal of an image."""

RANGES: dict[str, Range] = {
    "leave_one_out_error": Range("1 - Dice", 0.0, 1.0),
    "global_score": DICE,
    "score": DICE,
    "test_score": DICE,
    "test_hd95": DISTANCE,
    "local_score": DICE,
    "personal_score": DICE,
    "personal_test_score": DICE,
    ADAPTED_EPOCHS: Range("epochs", 0, 1e6),
    "train_loss": LOSS,
    "global_loss": LOSS,
    "local_loss": LOSS,
    # A difference of two losses, which is negative where the loss falls along the gradient.
    "sharpness": Range("rise of the loss", -LOSS.most, LOSS.most),
    "cka": Range("similarity", 0.0, 1.0),
    "feature_cosine": Range("cosine", -1.0, 1.0),
    IN_VALIDATION: Range("cases", 0, MOST_CASES),
    IN_TRAINING: Range("cases", 0, MOST_CASES),
}
"""Measurement -> its range. A measurement of your own is one more line, at server and sites."""

for _candidate in CANDIDATES:
    RANGES[gain_name(_candidate)] = Range("gain in Dice", -1.0, 1.0)
    for _name in score_names(_candidate).values():
        RANGES[_name] = DICE

SENT_UNASKED = frozenset({IN_VALIDATION, IN_TRAINING})
"""What a client may send in place of the test score that it was asked for."""


@dataclass(frozen=True)
class Expected:
    """Which measurements a server takes.

    Args:
        ranges: measurement -> range; one that is not here has the range :data:`UNDECLARED`.
        unasked: whether names that no request asked for are taken, too: scripts choose their own.

    >>> asked = Request("A", "measure", {}, ("score",))
    >>> sent = Reply("A", None, 0, {"score": 85.0, "weight_of_B": 0.0})
    >>> Expected().checked(sent, asked).dropped["weight_of_B"]
    'the request did not ask for it'
    """

    ranges: Mapping[str, Range] = field(default_factory=lambda: RANGES)
    unasked: bool = False

    def checked(
        self,
        reply: Reply,
        request: Request | None,
        most_parts: Callable[[], int] = lambda: LEAST_PARTS,
    ) -> Checked:
        """The measurements of ``reply`` that can be used, and what is wrong with the others.

        Args:
            reply: of a client.
            request: that it answers; ``None``: unknown, then every name counts as asked for.
            most_parts: gives how many classes or layers one measurement may have, and is called
                for one with more than :data:`LEAST_PARTS`. The record of a round holds each of
                them.
        """
        found = Checked()
        values = 0
        for name, sent in reply.measurements.items():
            parts = sent.values() if isinstance(sent, Mapping) else ()
            # A mapping in a mapping may even be itself.
            is_nested = any(isinstance(part, Mapping) for part in parts)
            value = math.nan if is_nested else plain_numbers(sent)
            problem = self._problem_of_name(name, request)
            if problem is None and _size(value) > LEAST_PARTS and _size(value) > most_parts():
                problem = f"it has more than {most_parts()} values"
            if problem is None and _size(value) + values > MOST_VALUES:
                problem = f"the reply has more than {MOST_VALUES} values"
            if problem is None and not is_finite(value):
                found.not_finite.append(name)
                continue
            if problem is None:
                problem = self._problem_of_value(self._range_of(name, request), value)
            if problem is None:
                found.usable[name] = value
                values += _size(value)
            else:
                found.drop(name, problem)
        found.not_finite.sort()
        return found

    def _problem_of_name(self, name: object, request: Request | None) -> str | None:
        if not _is_name(name):
            return f"its name is no text of at most {MOST_NAME} printable characters"
        if request is None or self.unasked or name in SENT_UNASKED or name in request.measure:
            return None
        return "the request did not ask for it"

    def _range_of(self, name: str, request: Request | None) -> Range:
        is_unbiased = request is not None and request.context.get("cka_unbiased", 0)
        if name == "cka" and is_unbiased:
            return UNBIASED_CKA
        return self.ranges.get(name, UNDECLARED)

    def _problem_of_value(self, allowed: Range, value: Measurement) -> str | None:
        """What is wrong with a finite measurement; ``None`` where nothing is."""
        if not isinstance(value, Mapping):
            return _problem_of_number(allowed, value)
        for part, number in value.items():
            if not _is_name(part):
                return f"a name in it is no text of at most {MOST_NAME} printable characters"
            problem = _problem_of_number(allowed, number)
            if problem is not None:
                return f"{part!r} is {problem}"
        return None


@dataclass
class Checked:
    """The measurements of one reply after the check.

    Args:
        usable: name -> measurement.
        not_finite: names of those that are malformed or not finite, sorted.
        dropped: name -> reason, of all others; at most :data:`MOST_LISTED`, then their number.
    """

    usable: dict[str, Measurement] = field(default_factory=dict)
    not_finite: list[str] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)
    _unlisted: int = 0

    def drop(self, name: object, reason: str) -> None:
        """Record a measurement that is left out, and why."""
        if len(self.dropped) < MOST_LISTED:
            self.dropped[_shortened(name)] = reason
            return
        self._unlisted += 1
        self.dropped["..."] = f"and {self._unlisted} more"


def is_finite(value: object) -> bool:
    """Whether a measurement is finite, and so is everything in it.

    It is a plain number, an :class:`~monai_fairfl.protocol.Estimate` of one, or a mapping of these
    that holds ``"mean"``. A deeper mapping counts as malformed, and that is as bad.

    >>> is_finite({"mean": Estimate(0.5, 0.1, 3), "cup": 0.4}), is_finite({"mean": {"mean": 0.5}})
    (True, False)
    """
    if isinstance(value, Mapping):
        return "mean" in value and all(_is_estimate(item) for item in value.values())
    return _is_estimate(value)


def _is_estimate(value: object) -> bool:
    if not isinstance(value, Estimate):
        return _is_number(value)
    if isinstance(value.n, bool) or not isinstance(value.n, int) or value.n < 1:
        return False
    if value.stderr is not None and not (_is_number(value.stderr) and value.stderr >= 0):
        return False
    return _is_number(value.value)


def _is_number(value: object) -> bool:
    """Whether ``value`` is a finite number, and no truth value."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer too large for a float
        return False


def _problem_of_number(allowed: Range, number: float | Estimate) -> str | None:
    """What is wrong with one finite number; ``None`` where nothing is."""
    if isinstance(number, Estimate) and number.n > MOST_CASES:
        return f"a mean of more than {MOST_CASES} observations, which are not believed"
    value = float(number)
    if allowed.holds(value):
        return None
    return f"{value:.6g}, outside of {allowed}: the setting ranges allows others"


def _size(value: object) -> int:
    """How many numbers a measurement holds."""
    return len(value) if isinstance(value, Mapping) else 1


def _is_name(name: object) -> bool:
    """Whether logs, records and pages can have this name."""
    return isinstance(name, str) and len(name) <= MOST_NAME and name.isprintable()


def _shortened(name: object) -> str:
    """A name as a record shows it."""
    text = printable(name) if isinstance(name, str) else type(name).__name__
    return text if len(text) <= MOST_NAME else text[:MOST_NAME] + "..."
