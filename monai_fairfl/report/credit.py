# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Credit under several rules side by side. Who divides something must choose one of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from monai_fairfl.games.valuation import LEAST_TOTAL
from monai_fairfl.protocol.averages import normalise
from monai_fairfl.report.run import Run
from monai_fairfl.report.series import EstimatedPoint, Point, last_contributions
from monai_fairfl.report.valuations import title_of
from monai_fairfl.valuation.cross_evaluation import (
    Credit,
    credit_from_server,
    credit_from_sites,
    is_valued_by_images,
)

BY_SITES = "Judged by the other sites"
BY_SERVER = "Judged by the server"
"""Names of the rules that others' measurements make."""


@dataclass(frozen=True)
class Rule:
    """One rule, and what each site gets by it.

    Args:
        name: of the rule, as a column's title.
        meaning: where its numbers come from, as a sentence.
        shares: site -> share, in sum 1; negative values count as 0, and all shares are 0 where no
            value is above 0. A site without a value is not in it, nor is one whose last value is of
            an earlier round than those that count.
        judged: site -> value and range, where others judged it.
        by_round: site -> the least and the largest value of single judged rounds, where others
            judged several.
        by_images: whether its shares can be compared with shares of the images.
    """

    name: str
    meaning: str
    shares: Mapping[str, float]
    judged: Mapping[str, Credit] = field(default_factory=dict)
    by_round: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    by_images: bool = True


def rules_of(
    run: Run,
    weights: Mapping[str, Sequence[Point]],
    contributions: Mapping[str, Sequence[EstimatedPoint]],
    estimates: str | None,
    valuations: Sequence[Mapping[str, Any]],
) -> list[Rule]:
    """The rules that a run has numbers for.

    Args:
        run: in question.
        weights: aggregation weights by round.
        contributions: by round.
        estimates: what the strategy's contributions are, in words; empty: they are its weights.
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
    if estimates != "":
        last = last_contributions(run, contributions)
        words = estimates or "the strategy's own contributions"
        when = when_words({point.round for point in last.values()}, len(run.rounds))
        meaning = f"The contributions of {when}: {words}."
        values = {site: point.value for site, point in last.items()}
        rules.append(Rule(own_rule(run.method), meaning, shares_of(values)))

    weighed = "Each update counts with the same weight"
    if is_valued_by_images([run.start, *run.rounds]):
        weighed = "An update counts with the weight of the images that the run's settings declare"
    by_sites = (
        "How much Dice the global model of a judged round gains by the site's update, on the "
        f"validation images of the other sites. {weighed}. A site's own reports do not count. "
        "Shares are of the sums over the judged rounds."
    )
    rules += _judged_rule(run, BY_SITES, by_sites, credit_from_sites)
    by_server = (
        "How much Dice the global model of a judged round gains by the site's update, on the "
        f"server's own images; only the valued site is left out. {weighed}. Shares are of the "
        "sums over the judged rounds."
    )
    rules += _judged_rule(run, BY_SERVER, by_server, credit_from_server)

    for valuation in valuations:
        meaning = f"{title_of(valuation)}."
        rules.append(Rule(valuation["name"], meaning, dict(valuation["shares"])))
    return rules


def _judged_rule(
    run: Run, name: str, meaning: str, credit_from: Callable[..., Mapping[str, Credit]]
) -> list[Rule]:
    """The rule of what others measured; none where they judged no round.

    Args:
        run: in question.
        name: of the rule.
        meaning: where its numbers come from.
        credit_from: computes the credit of some records.
    """
    records = [run.start, *run.rounds]
    judged = credit_from(records)
    if not judged:
        return []
    by_images = is_valued_by_images(records)
    by_round = _by_round(run, by_images, credit_from)
    return [Rule(name, meaning, _of_credits(judged), judged, by_round, by_images)]


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


def judged_words(credit: Mapping[str, Any]) -> str:
    """The value of a site to others, with its range.

    >>> judged_words({"value": 0.012, "least": 0.01, "most": 0.015})
    '+0.0120 Dice (+0.0100 to +0.0150)'
    """
    words = f"{credit['value']:+.4f} Dice"
    if credit["least"] is None:
        return words
    return f"{words} ({credit['least']:+.4f} to {credit['most']:+.4f})"


def _by_round(
    run: Run, by_images: bool, credit_from: Callable[..., Mapping[str, Credit]]
) -> dict[str, tuple[float, float]]:
    """Site -> the least and the largest of its values in single judged rounds, of two or more.

    Args:
        run: in question.
        by_images: whether updates are valued at their share of the images.
        credit_from: computes the credit of some records.
    """
    values: dict[str, list[float]] = {}
    for record in run.rounds:
        for site, credit in credit_from([record], by_images).items():
            if credit.value is not None:
                values.setdefault(site, []).append(credit.value)
    return {site: (min(found), max(found)) for site, found in values.items() if len(found) > 1}


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
        return normalise(ordered)
    return dict.fromkeys(ordered, 0.0)


def _of_credits(credits: Mapping[str, Credit]) -> dict[str, float]:
    """The shares of the sites that were judged."""
    values = {}
    for site, credit in credits.items():
        if credit.total is not None:
            values[site] = credit.total
    return shares_of(values)


def _sum(points: Sequence[Point]) -> float:
    """The shares of sums over the same rounds are those of means over them."""
    return sum(point.value for point in points)
