# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Who contributed what: images, weights, the method's own numbers, worth and free-rider scores.

These are answers to different questions. A weight says how much an update counted in the average.
What a method itself estimates is often its weight. What a hospital is worth to the others is
computed afterwards, by ``monai-fairfl value``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

import numpy as np
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from monai_fairfl.games import LEAST_TOTAL
from monai_fairfl.replies import normalise
from monai_fairfl.report.collect import Row, Run
from monai_fairfl.report.scores import Entry, half_width
from monai_fairfl.run.ledger import number_in
from monai_fairfl.strategies.registry import shipped

Points = dict[str, list[dict[str, Any]]]
"""Site -> its numbers by round: ``"round"`` and ``"value"``."""

SAME = 1e-9
"""A contribution that is no further from the weight than this is the weight."""


def shares_of(values: Mapping[str, float]) -> dict[str, float]:
    """Each value over their sum, negative ones counted as 0; all 0 where none is above 0.

    Values that only rounding raises above 0 are not divided by their sum.

    >>> shares_of({"B": 0.03, "A": 0.01, "C": -0.01})
    {'A': 0.25, 'B': 0.75, 'C': 0.0}
    >>> shares_of({"A": 0.1 + 0.2 - 0.3, "B": 0.0})  # A's value is a rounding error
    {'A': 0.0, 'B': 0.0}
    """
    ordered = dict(sorted(values.items()))
    if sum(max(value, 0.0) for value in ordered.values()) > LEAST_TOTAL:
        return dict(zip(ordered, normalise(list(ordered.values())).tolist(), strict=True))
    return dict.fromkeys(ordered, 0.0)


def estimates_contributions(run: Run) -> bool:
    """Whether contributions are more than weights; your own strategy may estimate anything."""
    known = shipped().get(run.strategy)
    return known is None or known.additive is not None


def is_current(valuation: Mapping[str, Any], run: Run) -> bool:
    """Whether a valuation is of the model that the run ended with; the run may have gone on."""
    if run.end is None:
        return False
    model = run.end.get("model")
    return bool(valuation.get("model", model) == model)


def own_contributions(run: Run) -> dict[str, Row]:
    """site -> its contribution in the last round with contributions, of the sites that have one.

    Where each round draws some of the sites, it is the last of these rounds that drew the site.
    """
    if not estimates_contributions(run):
        return {}
    points = {site: run.series(site, "contribution") for site in run.sites}
    rounds = {row.round for rows in points.values() for row in rows}
    draws_sites = (run.start.get("clients_per_round") or math.inf) < len(run.sites)
    last: dict[str, int] = {}
    for record in run.rounds:
        if record["round"] in rounds:
            counted = record["clients"] if draws_sites else run.sites
            last.update(dict.fromkeys(counted, record["round"]))
    return {s: rows[-1] for s, rows in points.items() if rows and rows[-1].round == last.get(s)}


def credit_of(runs: Sequence[Run]) -> dict[str, dict[str, float]]:
    """Rule -> site -> share, in sum 1; who divides something must choose one of the rules.

    ``Images`` of an epoch; ``Weight``, the mean over all rounds, 0 in one without the site's
    update; the method's own contributions, where it estimates some; and each valuation of a single
    run. Over several runs it is the mean of those that have one.
    """
    shares: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        weights = {s: [row.number.value for row in run.series(s, "weight")] for s in run.sites}
        rules = {
            "Images": shares_of(run.last_reported("samples")),
            # The shares of sums over the same rounds are those of means over them.
            "Weight": shares_of({site: sum(found) for site, found in weights.items() if found}),
        }
        if estimates_contributions(run):
            own = {site: row.number.value for site, row in own_contributions(run).items()}
            rules[f"{run.method}'s own"] = shares_of(own)
        rules |= {one["name"]: one["shares"] for one in run.valuations if is_current(one, run)}
        for rule, of_sites in rules.items():
            for site, share in of_sites.items():
                shares.setdefault(rule, {}).setdefault(site, []).append(share)
    credit: dict[str, dict[str, float]] = {}
    for rule, found in shares.items():
        credit[rule] = {site: sum(of_runs) / len(of_runs) for site, of_runs in found.items()}
    return credit


def is_weight(run: Run) -> bool:
    """Whether a method's contributions are nothing but its weights, as FedCE's are."""
    differences = []
    for site in run.sites:
        weights = {row.round: row.number.value for row in run.series(site, "weight")}
        for row in run.series(site, "contribution"):
            differences.append(abs(row.number.value - weights.get(row.round, math.inf)))
    return bool(differences) and max(differences) <= SAME


def contributions_of(entry: Entry) -> dict[str, dict[str, Any]]:
    """site -> what the method itself estimates; empty where it estimates nothing.

    Over several seeds it is the mean with its 95 % interval, over folds of one seed the mean with
    the range, since folds share training cases; of one run the newest with the range over rounds.

    Returns:
        ``value``; ``ratio`` of its share, over the sites with a value of the same round, to the
        share of the images of the same sites, or to an even share, ``None`` where values cannot be
        added up; ``least`` and ``most``; ``interval``, whether these are a confidence interval;
        ``round`` of the value, ``None`` where it is the last one.
    """
    run = entry.run
    own = own_contributions(run)
    # Site -> the values behind its own, and the values of the sites that are counted with it.
    values: dict[str, list[float]] = {}
    together: dict[str, dict[str, float]] = {}
    seeds = {one.seed for one in entry.runs}
    if len(entry.runs) > 1:
        by_seed: dict[tuple[str, Any], list[float]] = {}
        for one in entry.runs:
            for site, row in own_contributions(one).items():
                # A seed's contribution is the mean over its folds.
                key = (site, one.seed if len(seeds) > 1 else one.fold)
                by_seed.setdefault(key, []).append(row.number.value)
        for (site, _), of_folds in by_seed.items():
            values.setdefault(site, []).append(mean(of_folds))
        together = dict.fromkeys(values, {s: mean(found) for s, found in values.items()})
    elif own:
        of_round: dict[int, dict[str, float]] = {}
        for site in run.sites:
            for row in run.series(site, "contribution"):
                of_round.setdefault(row.round, {})[site] = row.number.value
                values.setdefault(site, []).append(row.number.value)
                together[site] = of_round[row.round]

    images = shares_of(run.last_reported("samples"))
    known = shipped().get(run.strategy)
    contributions = {}
    for site, alike in together.items():
        of_site, number, ratio = values[site], None, None
        is_additive = known and known.additive or abs(sum(alike.values()) - 1) < 0.02
        if is_additive and (len(entry.runs) > 1 or site in own):
            of_images = sum(images.get(other, 0) for other in alike)
            even = 1 / len(alike)
            ratio = shares_of(alike)[site] / (
                images[site] / of_images if images.get(site) else even
            )
        least, most = (min(of_site), max(of_site)) if len(of_site) > 1 else (None, None)
        interval = len(seeds) > 1 and len(of_site) > 1
        if interval:
            width = half_width(stdev(of_site) / math.sqrt(len(of_site)), len(of_site)) or 0.0
            least, most = alike[site] - width, alike[site] + width
        elif len(entry.runs) == 1:
            last = run.series(site, "contribution")[-1].round
            number = last if last < len(run.rounds) - 1 else None
        found = {"value": alike[site], "ratio": ratio, "round": number}
        contributions[site] = {**found, "least": least, "most": most, "interval": interval}
    return contributions


def worth_of(valuations: Sequence[Mapping[str, Any]]) -> tuple[str | None, dict[str, Any]]:
    """The valuation that says what each site is worth, and site -> its value and standard error.

    First one in which no hospital's own scores count for itself.
    """
    if not valuations:
        return None, {}
    chosen = min(valuations, key=lambda found: found.get("judged_by") != "others")
    return chosen["name"], chosen["values"]


def points_of(run: Run, name: str) -> Points:
    """site -> its numbers by round."""
    found = {site: run.series(site, name) for site in run.sites}
    return {s: [{"round": r.round, "value": r.number.value} for r in of] for s, of in found.items()}


def dice_points(run: Run) -> Points:
    """site -> validation Dice of the model that it would use after 0, 1, ... rounds of training."""
    points = {}
    for site in run.sites:
        dice = run.dice(site)
        closing = run.closing(site, "score")
        if closing is not None:
            dice[len(run.rounds)] = closing
        points[site] = [{"round": number, "value": found.value} for number, found in dice.items()]
    return points


def over_runs(runs: Sequence[Points]) -> Points:
    """Several seeds or folds as one series: the mean, and a band from the least to the most.

    Only of the rounds that every run has.

    >>> one = {"elm": [{"round": 0, "value": 0.25}, {"round": 1, "value": 0.5}]}
    >>> over_runs([one, {"elm": [{"round": 0, "value": 0.75}]}])
    {'elm': [{'round': 0, 'value': 0.5, 'least': 0.25, 'most': 0.75}]}
    """
    if len(runs) == 1:
        return runs[0]
    values: dict[str, dict[int, list[float]]] = {}
    for by_site in runs:
        for site, points in by_site.items():
            for point in points:
                values.setdefault(site, {}).setdefault(point["round"], []).append(point["value"])
    series: Points = {}
    for site, by_round in values.items():
        series[site] = []
        for number, found in sorted(by_round.items()):
            if len(found) == len(runs):
                point = {"round": number, "value": mean(found)}
                series[site].append({**point, "least": min(found), "most": max(found)})
    return series


def details_of(run: Run) -> dict[str, Points]:
    """Name -> points of the method's own quantities, beyond weights and contributions."""
    details: dict[str, Points] = {}
    for record in run.rounds:
        for name, values in record["details"].items():
            for site, value in values.items():
                # Quantities of classes or layers are in the ledger only.
                if number_in(value) is not None:
                    point = {"round": record["round"], "value": number_in(value)}
                    details.setdefault(name, {}).setdefault(site, []).append(point)
    return details


def similarity_of(run: Run) -> dict[str, Any] | None:
    r"""The mean cosine of each pair of sites' updates, over the rounds in which both sent one.

    .. math:: c_{ij} = \frac{1}{|T_{ij}|} \sum_{t \in T_{ij}}
       \frac{G^t_{ij}}{\sqrt{G^t_{ii} G^t_{jj}}}

    G is the Gram matrix of a round's updates. Updates that are zero or not finite do not count.

    Returns:
        ``sites``, in the order of an average linkage with distance 1 - c, in which like sites are
        neighbours; ``cosines``, a row for each; ``rounds``, their number. ``None`` for sites that
        train alone, whose updates start from different models, and where the ledger has no inner
        products of pairs.
    """
    grams = [record["gram"] for record in run.rounds if isinstance(record["gram"], dict)]
    cosines = np.full((len(grams), len(run.sites), len(run.sites)), math.nan)
    for number, gram in enumerate(grams):
        products = np.array(gram["whole"], dtype=float)
        if products.ndim == 2:
            # Both halves are of the same pairs, but for float32's rounding.
            squares = np.where(np.diagonal(products) > 0, np.diagonal(products), math.nan)
            found = (products + products.T) / 2 / np.sqrt(np.outer(squares, squares))
            places = [run.sites.index(client) for client in gram["clients"]]
            cosines[number][np.ix_(places, places)] = np.clip(found, -1, 1)
    known = np.isfinite(cosines)
    counts = known.sum(0)
    if run.is_standalone or not counts[~np.eye(len(run.sites), dtype=bool)].any():
        return None
    with np.errstate(invalid="ignore"):
        means = np.where(known, cosines, 0).sum(0) / counts
    rounds = int(known.any((1, 2)).sum())
    order = np.arange(len(run.sites))
    if len(order) > 2:
        # A pair that never met counts as orthogonal.
        distances = 1 - np.nan_to_num(means)
        np.fill_diagonal(distances, 0.0)
        tree = linkage(squareform(distances, checks=False), "average", optimal_ordering=True)
        order = leaves_list(tree)
    sites = [run.sites[number] for number in order]
    return {"sites": sites, "cosines": means[np.ix_(order, order)].tolist(), "rounds": rounds}
