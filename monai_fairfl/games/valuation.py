# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The result of a valuation: each player's value with its uncertainty, the method and the cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.messages import Estimate, to_json
from monai_fairfl.replies import normalise

LEAST_TOTAL = 1e-12
"""Values of a smaller sum are not divided by it."""


@dataclass(frozen=True)
class Valuation:
    """Values of the players of a game.

    Args:
        method: how they were found: ``"exact"``, ``"leave_one_out"``, ``"permutation"``, ``"gtg"``.
        values: player -> value in the unit of the utility, signed. The standard error is that of
            *sampling* coalitions: 0 where all were evaluated, ``None`` where it is unknown. What
            another seed of the training would change in the utility itself is not in it.
        evaluations: of the utility, without those known earlier.
        rank_stability: in [0, 1], see :func:`rank_stability`; 1 where nothing was sampled.
        total: what is shared out, V(all) - V(nobody); exact Shapley values add up to it. For
            leave-one-out, which has no such property, the sum of the drops.
        rounds: of ``"gtg"``, what each round cost: ``"gain"``, V(all) - V(nobody); ``"skipped"``,
            whether it changed the score by too little to be shared out; ``"permutations"`` walked
            through; marginal contributions that were ``"truncated"``, that is taken for 0 without
            evaluation; and ``"evaluations"`` of the utility.

    >>> from monai_fairfl.messages import Estimate
    >>> found = Valuation("exact", {"A": Estimate(0.3, 0.0), "B": Estimate(-0.1, 0.0)}, 4, 1.0, 0.2)
    >>> found.shares()
    {'A': 1.0, 'B': 0.0}
    """

    method: str
    values: Mapping[str, Estimate]
    evaluations: int
    rank_stability: float | None
    total: float
    rounds: tuple[Mapping[str, float], ...] = ()

    def shares(self) -> dict[str, float]:
        """player -> share of the positive values; empty when no value is positive.

        Negative values count as 0, and all shares sum to 1.
        """
        values = {player: float(value) for player, value in self.values.items()}
        if sum(max(value, 0.0) for value in values.values()) <= LEAST_TOTAL:
            return {}
        return dict(zip(values, normalise(list(values.values())).tolist(), strict=True))

    def to_json(self) -> dict[str, Any]:
        """All of it, and the shares, as plain JSON."""
        found = {**to_json(asdict(self)), "shares": self.shares()}
        if not self.rounds:
            del found["rounds"]
        return found


def rank_stability(values: Mapping[str, Estimate]) -> float | None:
    r"""How far the ranking of the players can be trusted: 1 is certain, 0 is chance.

    It is the Kendall correlation to expect between this ranking and the true one, if true
    differences lie around the found ones with their standard errors: the mean over pairs of
    :math:`2 \Phi(|\phi_i - \phi_j| / s_{ij}) - 1`. How two estimates correlate is not known, so
    :math:`s_{ij} = s_i + s_j`, the largest it can be.

    Chance drives estimates apart, so that the result of few samples is too high: in random games of
    six players 0.50 where 0.36 is true after 10 permutations, 0.60 and 0.54 after 40, 0.75 and 0.73
    after 160. Another sample of the same size agrees with this one less than either does with the
    truth. A pair without uncertainty, tied or not, counts as 1.

    Args:
        values: player -> estimate.

    Returns:
        In [0, 1]; ``None`` when a standard error is unknown; 1 for a single player.

    >>> from monai_fairfl.messages import Estimate
    >>> rank_stability({"A": Estimate(0.3, 0.01, 9), "B": Estimate(0.1, 0.01, 9)})
    1.0
    >>> rank_stability({"A": Estimate(0.3, 0.1, 9), "B": Estimate(0.2, 0.1, 9)}).__round__(3)
    0.383
    """
    agreements = []
    for a, b in combinations(values.values(), 2):
        if a.stderr is None or b.stderr is None:
            return None
        # 2 Phi(x) - 1, written as erf.
        spread = a.stderr + b.stderr
        certainty = (
            math.erf(abs(a.value - b.value) / spread / math.sqrt(2)) if spread > 1e-12 else 1
        )
        agreements.append(certainty)
    return sum(agreements) / len(agreements) if agreements else 1.0


def sum_over_rounds(rounds: Sequence[Valuation], decay: float | None = None) -> Valuation:
    r"""One valuation of several rounds of a federation, each of which was a game of its own.

    It is the plain sum :math:`\sum_t \phi_t`, or with a decay
    :math:`\sum_t \lambda^t \phi_t / \sum_i \phi_{t,i}`: rounds count alike whatever they gained,
    but early ones more (the lambda-MR index of Song et al., IEEE Big Data 2019).

    With a decay, a round whose values do not sum to more than 0 gained nothing to share out and is
    left out. One that gained next to nothing counts as much as any, and values of either sign
    divided by their small sum are large: late rounds, which gain and lose by chance, can outweigh
    all the others.

    Args:
        rounds: in order; a player who sat a round out has no value in it, which counts as 0.
        decay: lambda, above 0, at most 1; ``None``: the plain sum.

    Returns:
        Values with standard errors added in quadrature: rounds are sampled independently.

    Raises:
        ConfigError: when there is no round or the decay is out of range.

    >>> from monai_fairfl.messages import Estimate
    >>> values = {"A": Estimate(0.3, 0.0), "B": Estimate(0.1, 0.0)}
    >>> rounds = [Valuation("exact", values, 4, 1.0, 0.4)] * 2
    >>> [round(float(value), 3) for value in sum_over_rounds(rounds).values.values()]
    [0.6, 0.2]
    >>> [round(float(value), 3) for value in sum_over_rounds(rounds, decay=0.5).values.values()]
    [1.125, 0.375]
    """
    if not rounds:
        raise ConfigError("there is no round to sum; give the valuation of at least one")
    if decay is not None and not 0 < decay <= 1:
        raise ConfigError(f"decay must be above 0 and at most 1, got {decay}")

    # What the values of each round are multiplied with.
    factors = [1.0] * len(rounds)
    if decay is not None:
        for number, found in enumerate(rounds):
            total = math.fsum(float(value) for value in found.values.values())
            factors[number] = decay**number / total if total > LEAST_TOTAL else 0.0

    values = {}
    for player in sorted({player for found in rounds for player in found.values}):
        terms = []
        errors = []
        observations = 0
        for found, factor in zip(rounds, factors):
            if player in found.values:
                estimate = found.values[player]
                terms.append(factor * estimate.value)
                errors.append(math.nan if estimate.stderr is None else factor * estimate.stderr)
                observations += estimate.n
        error = math.hypot(*errors)
        stderr = None if math.isnan(error) else error
        values[player] = Estimate(math.fsum(terms), stderr, observations)
    return Valuation(
        method=rounds[0].method,
        values=values,
        evaluations=sum(found.evaluations for found in rounds),
        rank_stability=rank_stability(values),
        total=math.fsum(factor * found.total for factor, found in zip(factors, rounds)),
    )
