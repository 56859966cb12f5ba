# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Credit under several rules side by side. Who divides something must choose one of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from monai_fairfl.games import LEAST_TOTAL
from monai_fairfl.replies import normalise
from monai_fairfl.report.run import Run
from monai_fairfl.report.series import EstimatedPoint, Point, last_contributions
from monai_fairfl.report.valuations import title_of


@dataclass(frozen=True)
class Rule:
    """One rule, and what each site gets by it.

    Args:
        name: of the rule, as a column's title.
        meaning: where its numbers come from, as a sentence.
        shares: site -> share, in sum 1; negative values count as 0, and all shares are 0 where no
            value is above 0. A site without a value is not in it, nor is one whose last value is of
            an earlier round than those that count.
    """

    name: str
    meaning: str
    shares: Mapping[str, float]


def rules_of(
    run: Run,
    weights: Mapping[str, Sequence[Point]],
    contributions: Mapping[str, Sequence[EstimatedPoint]],
    estimates: bool,
    valuations: Sequence[Mapping[str, Any]],
) -> list[Rule]:
    """The rules that a run has numbers for.

    Args:
        run: in question.
        weights: aggregation weights by round.
        contributions: by round.
        estimates: whether contributions are more than the weights.
        valuations: made of the run, of its present model.
    """
    rules = [
        Rule(
            "Images",
            "The number of images in an epoch, as each site reports it.",
            shares_of(run.last_reported("samples")),
        ),
        Rule(
            "Weight",
            "The mean aggregation weight over all rounds; 0 in a round without the site's update.",
            shares_of({site: _sum(points) for site, points in weights.items() if points}),
        ),
    ]
    if estimates:
        last = last_contributions(run, contributions)
        when = when_words({point.round for point in last.values()}, len(run.rounds))
        meaning = f"The strategy's own contributions of {when}."
        values = {site: point.value for site, point in last.items()}
        rules.append(Rule(own_rule(run.method), meaning, shares_of(values)))

    for valuation in valuations:
        meaning = f"{title_of(valuation)}."
        rules.append(Rule(valuation["name"], meaning, dict(valuation["shares"])))
    return rules


def own_rule(method: str) -> str:
    """The name of the rule that a strategy's own contributions make.

    Args:
        method: the strategy's name with its arguments.
    """
    return f"{method}'s own"


def when_words(rounds: Collection[int], rounds_in_all: int) -> str:
    """The rounds of the contributions that count.

    Args:
        rounds: of the sites' contributions.
        rounds_in_all: of the run so far.

    >>> when_words({9}, 10), when_words({7}, 10)
    ('the last round', 'round 7, the last that has any')
    >>> when_words({7, 8, 9}, 10)
    'the last round that drew the hospital'
    """
    if len(rounds) > 1:
        return "the last round that drew the hospital"
    if rounds and max(rounds) < rounds_in_all - 1:
        return f"round {max(rounds)}, the last that has any"
    return "the last round"


def shares_of(values: Mapping[str, float]) -> dict[str, float]:
    """Each value over their sum, negative ones counted as 0; all 0 where none is above 0.

    Values that only rounding raises above 0 are not divided by their sum.

    >>> shares_of({"B": 0.03, "A": 0.01, "C": -0.01})
    {'A': 0.25, 'B': 0.75, 'C': 0.0}
    >>> shares_of({"A": -0.01, "B": -0.02})
    {'A': 0.0, 'B': 0.0}
    >>> shares_of({"A": 0.1 + 0.2 - 0.3, "B": 0.0})  # A's value is a rounding error
    {'A': 0.0, 'B': 0.0}
    """
    ordered = dict(sorted(values.items()))
    if sum(max(value, 0.0) for value in ordered.values()) > LEAST_TOTAL:
        return dict(zip(ordered, normalise(list(ordered.values())).tolist(), strict=True))
    return dict.fromkeys(ordered, 0.0)


def _sum(points: Sequence[Point]) -> float:
    """The shares of sums over the same rounds are those of means over them."""
    return sum(point.value for point in points)
