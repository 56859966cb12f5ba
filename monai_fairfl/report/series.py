# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a run's records hold over the rounds, site by site: the lines of the report's plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from monai_fairfl.replies import weights_of_model
from monai_fairfl.report.numbers import Number
from monai_fairfl.report.run import Run
from monai_fairfl.run.ledger import number_in
from monai_fairfl.valuation.free_riders import free_rider_history

FACTOR = 5.0
ROUNDS = 3
SUSPICIOUS = f"above {FACTOR:g} times the median of the other sites' in {ROUNDS} consecutive rounds"
FREE_RIDER_RULE = (
    f"A site is flagged when its score is {SUSPICIOUS}. The threshold was fixed beforehand. Honest "
    "sites whose images are unlike the others' score high too, and in experiments they had most of "
    "the flags. A flag is a reason to ask, not a proof."
)


@dataclass(frozen=True)
class Point:
    """A number of one site in one round."""

    round: int
    value: float


@dataclass(frozen=True)
class EstimatedPoint(Point):
    """A point with its standard error and the observations behind it; ``None`` where unknown."""

    stderr: float | None = None
    n: int | None = None

    @classmethod
    def of(cls, round: int, number: Number) -> EstimatedPoint:
        """The point of a number."""
        return cls(round, number.value, number.stderr, number.n)


@dataclass(frozen=True)
class WeightSeries:
    """Aggregation weights by round.

    Args:
        points: site -> its weight in each round that averaged its update.
        layers: how many layers a weight is the plain mean of; ``None`` where a method weighs whole
            models.
    """

    points: dict[str, list[Point]]
    layers: int | None = None


@dataclass(frozen=True)
class FreeRiderSeries:
    """Free-rider scores by round.

    Args:
        points: site -> its score in each round that had all the measurements.
        flagged: site -> round of its first flag, see :data:`FREE_RIDER_RULE`.
    """

    points: dict[str, list[Point]]
    flagged: dict[str, int]


def dice_series(run: Run) -> dict[str, list[EstimatedPoint]]:
    """site -> validation Dice of the model that it would use after 0, 1, ... rounds of training.

    The closing measurement gives the last point, :meth:`~monai_fairfl.report.run.Run.dice` the
    others.
    """
    series = {}
    for site in run.sites:
        dice = run.dice(site)
        closing = run.closing(site, "score")
        if closing is not None:
            dice[len(run.rounds)] = closing
        series[site] = [EstimatedPoint.of(number, dice[number]) for number in sorted(dice)]
    return series


def contribution_series(run: Run) -> dict[str, list[EstimatedPoint]]:
    """site -> its contribution in each round that has one, with the method's standard error."""
    series: dict[str, list[EstimatedPoint]] = {site: [] for site in run.sites}
    for record in run.rounds:
        for site, value in record["contributions"].items():
            # An estimate that was not finite has no number.
            if number_in(value) is None:
                continue
            point = EstimatedPoint.of(record["round"], Number.read(value))
            series.setdefault(site, []).append(point)
    return series


def last_contributions(
    run: Run, contributions: Mapping[str, Sequence[EstimatedPoint]]
) -> dict[str, EstimatedPoint]:
    """site -> its contribution in the last round with contributions, of the sites that have one.

    Where each round draws some of the sites, it is the last of these rounds that drew the site.

    Args:
        run: in question.
        contributions: of :func:`contribution_series`.
    """
    rounds = {point.round for points in contributions.values() for point in points}
    last_round_of: dict[str, int] = {}
    for record in run.rounds:
        if record["round"] in rounds:
            counted = record["clients"] if run.draws_sites else run.sites
            last_round_of.update(dict.fromkeys(counted, record["round"]))

    found = {}
    for site, points in contributions.items():
        if points and points[-1].round == last_round_of.get(site):
            found[site] = points[-1]
    return found


def weight_series(run: Run) -> WeightSeries:
    """The aggregation weights of each site by round."""
    series: dict[str, list[Point]] = {site: [] for site in run.sites}
    layers = None
    for record in run.rounds:
        weights = record["aggregation"]
        if any(isinstance(of_layer, Mapping) for of_layer in weights.values()):
            layers = len(weights)
        for site, value in weights_of_model(weights).items():
            if value is not None:
                series.setdefault(site, []).append(Point(record["round"], float(value)))
    return WeightSeries(series, layers)


def free_rider_series(run: Run) -> FreeRiderSeries:
    """Free-rider scores and flags, of the rounds that averaged and measured what they need.

    They need ``global_score`` and ``local_score``.
    """
    history = free_rider_history(run.rounds, factor=FACTOR, rounds=ROUNDS)
    series: dict[str, list[Point]] = {}
    for site, scores in history.scores.items():
        series[site] = []
        for number, score in zip(history.rounds, scores):
            if score is not None:
                series[site].append(Point(number, score))
    return FreeRiderSeries(series, history.flagged)
