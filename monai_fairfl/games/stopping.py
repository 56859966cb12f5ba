# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""When to stop sampling: rules that combine with ``&`` (both) and ``|`` (either)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from monai_fairfl.errors import ConfigError
from monai_fairfl.games.valuation import rank_stability
from monai_fairfl.protocol.values import Estimate


@dataclass(frozen=True)
class SamplingProgress:
    """How far a sampled valuation has come: what a rule decides on.

    Args:
        values: player -> estimate so far; standard errors are ``None`` after the first sample.
        samples: permutations walked through (antithetic: pairs of these; stratified: passes over
            all sizes).
        evaluations: of the utility, by this valuation.
        unseen: coalitions whose utility is not known yet.
    """

    values: Mapping[str, Estimate]
    samples: int
    evaluations: int = 0
    unseen: int = 1


class StoppingRule(ABC):
    """Decides after every sample whether it was the last.

    >>> from monai_fairfl.protocol import Estimate
    >>> rule = (StandardError(0.01) & RankStable(0.9)) | MaxEvaluations(200)
    >>> values = {"A": Estimate(0.3, 0.1, 40)}
    >>> rule(SamplingProgress(values, samples=40, evaluations=210))
    True
    """

    @abstractmethod
    def __call__(self, progress: SamplingProgress) -> bool:
        """Whether to stop."""

    def __and__(self, other: StoppingRule) -> StoppingRule:
        require_rule(other)
        return _Both(self, other)

    def __or__(self, other: StoppingRule) -> StoppingRule:
        require_rule(other)
        return _Either(self, other)


def require_rule(given: object) -> None:
    """Refuse what is no stopping rule before anything is evaluated.

    Raises:
        ConfigError: naming what was given.

    >>> require_rule(MaxSamples(200))
    >>> require_rule(200)
    Traceback (most recent call last):
    monai_fairfl.errors.ConfigError: a stopping rule must be one such as MaxSamples(200), got 200
    """
    if isinstance(given, type) or not callable(given):
        raise ConfigError(f"a stopping rule must be one such as MaxSamples(200), got {given!r}")


@dataclass(frozen=True)
class _Both(StoppingRule):
    first: StoppingRule
    second: StoppingRule

    def __call__(self, progress: SamplingProgress) -> bool:
        return self.first(progress) and self.second(progress)


@dataclass(frozen=True)
class _Either(StoppingRule):
    first: StoppingRule
    second: StoppingRule

    def __call__(self, progress: SamplingProgress) -> bool:
        return self.first(progress) or self.second(progress)


@dataclass(frozen=True)
class MaxSamples(StoppingRule):
    """After ``n`` samples, at least 1.

    >>> from monai_fairfl.games import Game, permutation_shapley
    >>> game = Game("AB", lambda coalition: float(len(coalition)))
    >>> permutation_shapley(game, MaxSamples(50)).values["A"]
    Estimate(value=1.0, stderr=0.0, n=50)
    """

    n: int

    def __post_init__(self) -> None:
        _check(self.n >= 1, "MaxSamples: n must be at least 1", self.n)

    def __call__(self, progress: SamplingProgress) -> bool:
        return progress.samples >= self.n


@dataclass(frozen=True)
class MaxEvaluations(StoppingRule):
    """After ``n`` evaluations.

    Where every coalition is known by then, and sampling costs nothing, after ``n`` samples. A
    sample that was begun is finished, so there may be up to one sample's evaluations more.

    >>> from monai_fairfl.games import Game, permutation_shapley
    >>> game = Game("ABCDEFGH", lambda coalition: len(coalition) ** 0.5)
    >>> permutation_shapley(game, MaxEvaluations(20)).evaluations  # of 2^8 coalitions
    23
    """

    n: int

    def __post_init__(self) -> None:
        _check(self.n >= 1, "MaxEvaluations: n must be at least 1", self.n)

    def __call__(self, progress: SamplingProgress) -> bool:
        if progress.evaluations >= self.n:
            return True
        return progress.unseen == 0 and progress.samples >= self.n


@dataclass(frozen=True)
class StandardError(StoppingRule):
    """When every player's standard error is at most ``epsilon`` (unit of the utility, above 0).

    Not before ``least`` samples: the standard error of a few is itself too uncertain, and 0 when
    they happen to agree.
    """

    epsilon: float
    least: int = 30

    def __post_init__(self) -> None:
        _check(self.epsilon > 0, "StandardError: epsilon must be above 0", self.epsilon)

    def __call__(self, progress: SamplingProgress) -> bool:
        if progress.samples < self.least:
            return False
        for estimate in progress.values.values():
            if estimate.stderr is None or not estimate.stderr <= self.epsilon:
                return False
        return True


@dataclass(frozen=True)
class Hoeffding(StoppingRule):
    r"""When each value is within ``epsilon`` of the truth with probability 1 - ``delta``.

    This holds for any game, after :math:`m \ge \ln(2/\delta) \, r^2 / (2 \epsilon^2)` samples
    (Hoeffding, 1963). For all N players at once divide ``delta`` by N.

    Args:
        epsilon: in the unit of the utility, above 0.
        delta: between 0 and 1.
        range: r, largest minus smallest possible marginal contribution: 2 for a utility in [0, 1],
            1 if more players never do harm.

    >>> Hoeffding(0.1, 0.05, range=1).needed
    185
    """

    epsilon: float
    delta: float
    range: float

    def __post_init__(self) -> None:
        above_zero = self.epsilon > 0 and self.range > 0
        _check(above_zero, "Hoeffding: epsilon and range must be above 0", self)
        _check(0 < self.delta < 1, "Hoeffding: delta must be between 0 and 1", self.delta)

    @property
    def needed(self) -> int:
        """Number of samples."""
        return math.ceil(math.log(2 / self.delta) * self.range**2 / (2 * self.epsilon**2))

    def __call__(self, progress: SamplingProgress) -> bool:
        return progress.samples >= self.needed


@dataclass(frozen=True)
class RankStable(StoppingRule):
    """When the :func:`~monai_fairfl.valuation.rank_stability` is at least ``threshold``.

    Not before ``least`` samples. Players of equal value never get there: combine it with a maximum.
    """

    threshold: float = 0.95
    least: int = 30

    def __post_init__(self) -> None:
        in_range = 0 < self.threshold <= 1
        _check(in_range, "RankStable: threshold must be above 0 and at most 1", self.threshold)

    def __call__(self, progress: SamplingProgress) -> bool:
        if progress.samples < self.least:
            return False
        stability = rank_stability(progress.values)
        return stability is not None and stability >= self.threshold


def _check(holds: bool, expected: str, got: object) -> None:
    if not holds:
        raise ConfigError(f"{expected}, got {got}")
