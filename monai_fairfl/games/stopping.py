# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""When to stop sampling: rules of which ``|`` makes one that stops with either."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from monai_fairfl.errors import ConfigError
from monai_fairfl.messages import Estimate


@dataclass(frozen=True)
class SamplingProgress:
    """How far a sampled valuation has come: what a rule decides on.

    Args:
        values: player -> estimate so far; standard errors are ``None`` after the first sample.
        samples: permutations walked through (stratified: passes over all sizes).
        evaluations: of the utility, by this valuation.
        unseen: coalitions whose utility is not known yet.
    """

    values: Mapping[str, Estimate]
    samples: int
    evaluations: int = 0
    unseen: int = 1


class StoppingRule(ABC):
    """Decides after every sample whether it was the last.

    >>> from monai_fairfl.messages import Estimate
    >>> rule = StandardError(0.01) | MaxEvaluations(200)
    >>> values = {"A": Estimate(0.3, 0.1, 40)}
    >>> rule(SamplingProgress(values, samples=40, evaluations=210))
    True
    """

    @abstractmethod
    def __call__(self, progress: SamplingProgress) -> bool:
        """Whether to stop."""

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


def _check(holds: bool, expected: str, got: object) -> None:
    if not holds:
        raise ConfigError(f"{expected}, got {got}")
