# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Credit for measured benefit: what each site's updates were worth on the images of others.

It is computed from a ledger's records, in which a run with ``cross_evaluate_every`` has the scores
of :mod:`monai_fairfl.server.cross_evaluation`. What a site reports of itself has no part in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linprog

from monai_fairfl.protocol.averages import normalise, uniform, weights_of_model

LEAST_JUDGES = 3
"""A median of fewer is what one of them says."""

TOO_FEW = "fewer than three sites judged it"
NOT_APART = "no judge could tell it apart from other sites: judge more rounds"
NOT_ASKED = "its update had next to no weight in every judged round"

LEAST_RELATIVE_WEIGHT = 0.05
"""With a smaller part of its reference weight an update changes too little to be judged."""

ROUNDING = 1e-7
"""By how much an error that is 0, or a price that is 1 or -1, may differ by rounding."""


@dataclass(frozen=True)
class Credit:
    """What one site's updates were worth to others.

    Args:
        value: Dice that a judged round's model gains by the site's update, on images of others, if
            the update has its :func:`reference_weights`; ``None``: not judged.
        least: smallest value when any one judge is left out (of the server: any one round).
        most: largest one.
        judges: number of sites that judged it; 1 for the server.
        rounds: judged rounds in which its update had weight.
        reason: why it is not judged; empty where it is.
    """

    value: float | None
    least: float | None = None
    most: float | None = None
    judges: int = 0
    rounds: int = 0
    reason: str = ""

    @property
    def total(self) -> float | None:
        """Dice over all judged rounds: a site that was absent, or without weight, has less."""
        return None if self.value is None else self.value * self.rounds


@dataclass(frozen=True)
class Comparison:
    r"""One judge's answer: what a model loses without a group of sites.

    .. math:: v_j(N \setminus j) - v_j(N \setminus j \setminus G)
       = \sum_{i \in G} \frac{\rho_i}{p_i} \phi_i + e

    Args:
        judge: j.
        group: site -> :math:`\rho_i / p_i`, the weight of its update over its reference weight.
        loss: Dice.
    """

    judge: str
    group: Mapping[str, float]
    loss: float


def credit_from_sites(
    records: Iterable[Mapping[str, Any]], by_images: bool | None = None
) -> dict[str, Credit]:
    r"""The value of each site's update to the other sites.

    The values :math:`\phi` have the least sum of absolute errors over all judges' comparisons,

    .. math:: \min_\phi \sum_{j, G} \Big| v_j(N \setminus j) - v_j(N \setminus j \setminus G)
       - \sum_{i \in G} \frac{\rho_i}{p_i} \phi_i \Big|,

    which is the median over judges where a group is one site. So one judge that lies moves them as
    little as it moves a median. Nobody's own score enters its own value, as in Everybody-Else
    (arXiv 2602.21721). A weight :math:`\rho_i` that a method gave a site for its reports does not
    either: the value is of an update with the weight :math:`p_i`, see :func:`reference_weights`.

    Args:
        records: of a ledger, with the opening one.
        by_images: whether updates are valued at their share of the images; ``None``: as
            :func:`is_valued_by_images` says of these records.

    Returns:
        site -> its credit, for every site that trained in a judged round; empty where the sites
        judged no round.

    >>> names = "ABCDE"
    >>> def judged(loss):  # each of five sites judges two pairs of the others
    ...     sites = {}
    ...     for place, judge in enumerate(names):
    ...         a, b, c, d = (names * 2)[place + 1 : place + 5]
    ...         sites[judge] = [{"without": [judge], "score": 0.8}]
    ...         for pair in ((a, b), (c, d)):
    ...             score = 0.8 - sum(loss[site] for site in pair)
    ...             sites[judge].append({"without": [judge, *pair], "score": score})
    ...     found = {"sites": sites, "server": [], "together": {}}
    ...     equal = {"aggregation": dict.fromkeys(names, 0.2), "samples": dict.fromkeys(names, 9)}
    ...     return {"kind": "round", "cross_evaluation": found, **equal}
    >>> losses = {"A": 0.01, "B": 0.02, "C": 0.03, "D": 0.04, "E": 0.05}
    >>> credits = credit_from_sites([judged(losses)])
    >>> {site: round(credit.value, 6) for site, credit in credits.items()}
    {'A': 0.01, 'B': 0.02, 'C': 0.03, 'D': 0.04, 'E': 0.05}
    """
    records = list(records)
    if by_images is None:
        by_images = is_valued_by_images(records)
    comparisons: list[Comparison] = []
    stands_for: dict[str, str] = {}
    trained: set[str] = set()
    weighted: set[str] = set()
    rounds: dict[str, int] = {}
    for record in _judged_rounds(records):
        found = record["cross_evaluation"]
        if not found["sites"]:
            continue
        references = reference_weights(record["samples"], by_images)
        of_round = _comparisons_of(record, references)
        comparisons.extend(of_round)
        for name in _judges_of(of_round):
            rounds[name] = rounds.get(name, 0) + 1
        trained.update(record["samples"])
        for client in record["samples"]:
            if _relative_weight(record, client, references) >= LEAST_RELATIVE_WEIGHT:
                weighted.add(client)
        for first, of_group in found["together"].items():
            trained.update(of_group)
            stands_for.update(dict.fromkeys(of_group, first))

    credits = {}
    values = least_absolute_values(comparisons)
    ranges = _without_each_judge(comparisons)
    judges = _judges_of(comparisons)
    for site in sorted(trained):
        # A site whose update was another's counts as that one, unless it was judged by itself.
        name = site if site in judges else stands_for.get(site, site)
        of_site = judges.get(name, set())
        if not of_site and name not in weighted:
            credits[site] = Credit(None, reason=NOT_ASKED)
        elif len(of_site) < LEAST_JUDGES:
            # Perhaps none, where the others did not answer.
            credits[site] = Credit(None, judges=len(of_site), reason=TOO_FEW)
        elif name not in values:
            credits[site] = Credit(None, judges=len(of_site), reason=NOT_APART)
        else:
            least, most = ranges.get(name, (None, None))
            credits[site] = Credit(values[name], least, most, len(of_site), rounds[name])
    return credits


def credit_from_server(
    records: Iterable[Mapping[str, Any]], by_images: bool | None = None
) -> dict[str, Credit]:
    r"""The value of each site's update on the server's own images.

    .. math:: \phi_i = \frac{1}{T} \sum_t
       \frac{p_i}{\rho_i} \big( v(N_t) - v(N_t \setminus i) \big)

    with :math:`p_i` of :func:`reference_weights`.

    Args:
        records: of a ledger, with the opening one.
        by_images: as of :func:`credit_from_sites`.

    Returns:
        site -> its credit, over the T judged rounds in which its update had weight; empty where
        the server judged none.
    """
    records = list(records)
    if by_images is None:
        by_images = is_valued_by_images(records)
    values: dict[str, list[float]] = {}
    judged_sites: set[str] = set()
    for record in _judged_rounds(records):
        found = record["cross_evaluation"]
        references = reference_weights(record["samples"], by_images)
        score_of_all = None
        for entry in found["server"]:
            if not entry["without"]:
                score_of_all = entry["score"]
                continue
            (client,) = entry["without"]
            of_group = found["together"].get(client, [client])
            judged_sites.update(of_group)
            if score_of_all is None or entry["score"] is None:
                # The server's own function gave no number.
                continue
            relative_weight = _relative_weight(record, client, references)
            if relative_weight >= LEAST_RELATIVE_WEIGHT:
                for site in of_group:
                    values.setdefault(site, []).append(
                        (score_of_all - entry["score"]) / relative_weight
                    )

    credits = {}
    for site in sorted(judged_sites):
        of_site = values.get(site, [])
        if not of_site:
            credits[site] = Credit(None, reason=NOT_ASKED)
            continue
        means = []
        for left_out in range(len(of_site)):
            others = of_site[:left_out] + of_site[left_out + 1 :]
            if others:
                means.append(float(np.mean(others)))
        credits[site] = Credit(
            float(np.mean(of_site)),
            min(means, default=None),
            max(means, default=None),
            judges=1,
            rounds=len(of_site),
        )
    return credits


def reference_weights(samples: Mapping[str, int], by_images: bool) -> dict[str, float]:
    """The weight at which each site's update is valued.

    Args:
        samples: site -> images that counted in a round.
        by_images: whether it is the site's share of the images, see :func:`is_valued_by_images`;
            else it is the same for all sites.

    >>> reference_weights({"A": 30, "B": 10}, by_images=True)
    {'A': 0.75, 'B': 0.25}
    >>> reference_weights({"A": 30, "B": 10}, by_images=False)
    {'A': 0.5, 'B': 0.5}
    """
    return normalise(samples) if by_images else uniform(samples)


def is_valued_by_images(records: Iterable[Mapping[str, Any]]) -> bool:
    """Whether updates are valued at their share of the images.

    They are where the run's settings declare the images of all sites of all judged rounds. A number
    that a site reports of itself has no part; nor has one that a site with the same update reports.

    Args:
        records: of a ledger, with the opening one.
    """
    declared: set[str] = set()
    sites: set[str] = set()
    for record in records:
        if record["kind"] == "start":
            declared.update(record.get("samples") or ())
        for judged in _judged_rounds([record]):
            sites.update(judged["samples"])
            for of_group in judged["cross_evaluation"]["together"].values():
                sites.update(of_group)
    return sites <= declared


def least_absolute_values(comparisons: Sequence[Comparison]) -> dict[str, float]:
    """The values with the least sum of absolute errors; see :func:`credit_from_sites`.

    Args:
        comparisons: of any number of judges and rounds.

    Returns:
        site -> value. A site that the comparisons do not tell apart from others is left out. Where
        several values have the least sum, it is the middle between the smallest and the largest of
        these, as of a median of an even number.

    >>> losses = [0.1, 0.1, 0.9]  # the third judge lies
    >>> judged = [Comparison(judge, {"A": 1.0}, loss) for judge, loss in zip("BCD", losses)]
    >>> least_absolute_values(judged)
    {'A': 0.1}
    """
    sites = sorted({site for comparison in comparisons for site in comparison.group})
    if not sites:
        return {}
    columns = {site: column for column, site in enumerate(sites)}
    factors = np.zeros((len(comparisons), len(sites)))
    for row, comparison in enumerate(comparisons):
        for site, relative_weight in comparison.group.items():
            factors[row, columns[site]] = relative_weight
    losses = np.array([comparison.loss for comparison in comparisons])

    least = _LeastErrors(factors, losses)
    determined = _determined(factors)
    settled = _determined(factors[least.none])
    values = {}
    for site, column in columns.items():
        if not determined[column]:
            continue
        value = least.values[column]
        if not settled[column]:
            # Values in between have the same errors. The middle depends on no site's name.
            value = (least.smallest(column) + least.largest(column)) / 2
        values[site] = float(value)
    return values


class _LeastErrors:
    r"""The values :math:`\phi` with the least sum of absolute errors, :math:`|l - F \phi|_1`.

    They are found by the dual linear program, which has a price :math:`\lambda` for each
    comparison and one equation for each site, so that it is small however many comparisons there
    are:

    .. math:: \max_\lambda \; l \cdot \lambda \quad\text{where}\quad
       F^T \lambda = 0, \; -1 \le \lambda \le 1.

    By complementary slackness, an error is 0 or above only where its price is 1, and 0 or below
    only where it is -1. Elsewhere it is 0 whenever the sum is least.

    Args:
        factors: :math:`F` of the comparisons, a row each, by the sites, a column each.
        losses: :math:`l` of the comparisons.

    Attributes:
        values: that the solver found; there may be others.
        none: of each comparison, whether its error is 0 wherever the sum is least.
    """

    def __init__(self, factors: np.ndarray, losses: np.ndarray):
        prices = linprog(-losses, A_eq=factors.T, b_eq=np.zeros(factors.shape[1]), bounds=(-1, 1))
        # How the largest sum changes with the right sides: the values, with the other sign.
        self.values = -prices.eqlin.marginals
        errors = losses - factors @ self.values
        above = (prices.x > 1 - ROUNDING) | (errors > ROUNDING)
        below = (prices.x < ROUNDING - 1) | (errors < -ROUNDING)
        self.none = ~(above | below)
        # As linprog has them: limits * values <= bounds.
        only_above, only_below = above & ~below, below & ~above
        self._limits = np.vstack([factors[only_above], -factors[only_below]])
        self._bounds = np.concatenate([losses[only_above], -losses[only_below]])
        self._exact = factors[self.none], losses[self.none]

    def smallest(self, column: int) -> float:
        """The smallest value of a site, of all values with the least sum of errors."""
        return self._extreme(column, 1.0)

    def largest(self, column: int) -> float:
        """The largest one."""
        return self._extreme(column, -1.0)

    def _extreme(self, column: int, cost: float) -> float:
        costs = np.zeros(len(self.values))
        costs[column] = cost
        equations, right_sides = self._exact
        found = linprog(
            costs, self._limits, self._bounds, equations, right_sides, bounds=(None, None)
        )
        if not found.success:
            # By rounding, the solver finds no values with exactly these errors.
            return float(self.values[column])
        return float(found.x[column])


def _determined(factors: np.ndarray) -> np.ndarray:
    """For each column, whether the rows tell its value apart from those of the others.

    They do where no change of the values that leaves every comparison as it is changes this one:
    where the projection onto the span of the rows leaves the column's unit vector as it is.
    """
    products = factors.T @ factors
    projection = np.linalg.pinv(products, hermitian=True) @ products
    return np.isclose(np.diag(projection), 1.0, atol=1e-8)


def _judged_rounds(records: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rounds that others judged."""
    judged = []
    for record in records:
        if record["kind"] == "round" and record.get("cross_evaluation"):
            judged.append(record)
    return judged


def _comparisons_of(record: Mapping[str, Any], references: Mapping[str, float]) -> list[Comparison]:
    """The comparisons of one round; a judge that did not score the model of all has none."""
    comparisons = []
    for judge, entries in sorted(record["cross_evaluation"]["sites"].items()):
        scores = {tuple(entry["without"]): entry["score"] for entry in entries}
        score_of_all = scores.pop((judge,), None)
        if score_of_all is None:
            continue
        for without, score in scores.items():
            group = {}
            for site in without:
                if site == judge:
                    continue
                relative_weight = _relative_weight(record, site, references)
                if relative_weight >= LEAST_RELATIVE_WEIGHT:
                    group[site] = relative_weight
            comparisons.append(Comparison(judge, group, score_of_all - score))
    return comparisons


def _relative_weight(
    record: Mapping[str, Any], client: str, references: Mapping[str, float]
) -> float:
    r""":math:`\rho_i / p_i` of a client, the weight of its update over its reference weight.

    One that stands for several with the same update has the weight of all of them, and its value
    is divided among them.
    """
    of_group = record["cross_evaluation"]["together"].get(client, [client])
    weights = weights_of_model(record["aggregation"])
    weight = sum(weights.get(site, 0.0) for site in of_group)
    return len(of_group) * weight / references[client]


def _judges_of(comparisons: Sequence[Comparison]) -> dict[str, set[str]]:
    """site -> the sites that judged it."""
    judges: dict[str, set[str]] = {}
    for comparison in comparisons:
        for site in comparison.group:
            judges.setdefault(site, set()).add(comparison.judge)
    return judges


def _without_each_judge(comparisons: Sequence[Comparison]) -> dict[str, tuple[float, float]]:
    """site -> its least and its largest value when any one judge is left out."""
    found: dict[str, list[float]] = {}
    for judge in sorted({comparison.judge for comparison in comparisons}):
        others = [comparison for comparison in comparisons if comparison.judge != judge]
        for site, value in least_absolute_values(others).items():
            found.setdefault(site, []).append(value)
    return {site: (min(values), max(values)) for site, values in found.items()}
