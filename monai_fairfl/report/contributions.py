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
from monai_fairfl.report.collect import Row, Run, numbers_by_class
from monai_fairfl.report.scores import Entry, half_width
from monai_fairfl.run.ledger import number_in
from monai_fairfl.strategies.registry import shipped

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
    per_round = run.start.get("clients_per_round")
    draws_sites = per_round is not None and per_round < len(run.sites)
    last: dict[str, int] = {}
    for record in run.rounds:
        if record["round"] in rounds:
            counted = record["clients"] if draws_sites else run.sites
            last.update(dict.fromkeys(counted, record["round"]))
    return {s: rows[-1] for s, rows in points.items() if rows and rows[-1].round == last.get(s)}


def credit_of(run: Run) -> dict[str, dict[str, float]]:
    """Rule -> site -> share, in sum 1; who divides something must choose one of the rules.

    ``Images`` of an epoch; ``Weight``, the mean over all rounds, 0 in one without the site's
    update; the method's own contributions, where it estimates some; and each valuation.
    """
    weights = {site: run.series(site, "weight") for site in run.sites}
    rules = {
        "Images": shares_of(run.last_reported("samples")),
        # The shares of sums over the same rounds are those of means over them.
        "Weight": shares_of({s: sum(row.value for row in w) for s, w in weights.items() if w}),
    }
    if estimates_contributions(run):
        own = own_contributions(run)
        rules[f"{run.method}'s own"] = shares_of({site: row.value for site, row in own.items()})
    for valuation in run.valuations:
        if is_current(valuation, run):
            rules[valuation["name"]] = dict(valuation["shares"])
    return rules


def is_weight(run: Run) -> bool:
    """Whether a method's contributions are nothing but its weights, as FedCE's are."""
    known = False
    for site in run.sites:
        weights = {row.round: row.value for row in run.series(site, "weight")}
        for row in run.series(site, "contribution"):
            known = True
            if abs(row.value - weights.get(row.round, math.inf)) > SAME:
                return False
    return known


def contributions_of(entry: Entry) -> dict[str, dict[str, Any]]:
    """site -> what the method itself estimates; empty where it estimates nothing.

    Over several seeds it is the mean with its 95 % interval, over folds of one seed the mean with
    the range, since folds share training cases; of one run the newest with the range over rounds.

    Returns:
        ``value``; ``share`` of the sum over the sites that have one in the same round, ``None``
        where values cannot be added up; ``images``, the share of the images of the same sites;
        ``ratio``, the one over the other, or over an even share; ``least`` and ``most``;
        ``interval``, whether these are a confidence interval; ``round`` of the value, ``None``
        where it is the last one.
    """
    run = entry.run
    own = own_contributions(run)
    # Site -> the values behind its own, and the values of the sites that are counted with it.
    values: dict[str, list[float]] = {}
    together: dict[str, dict[str, float]] = {}
    seeds = dict.fromkeys(one.seed for one in entry.runs)
    if len(entry.runs) > 1:
        for seed in seeds:
            of_seed: dict[str, list[float]] = {}
            for one in entry.runs:
                for site, row in own_contributions(one).items() if one.seed == seed else ():
                    of_seed.setdefault(site, []).append(row.value)
            for site, of_folds in of_seed.items():
                # A seed's contribution is the mean over its folds.
                values.setdefault(site, []).extend([mean(of_folds)] if len(seeds) > 1 else of_folds)
        together = dict.fromkeys(sorted(values), {s: mean(found) for s, found in values.items()})
    elif own:
        series = {site: run.series(site, "contribution") for site in run.sites}
        of_round = {
            (s, point.round): point.value for s, points in series.items() for point in points
        }
        for site, rows in series.items():
            if rows:
                values[site] = [row.value for row in rows]
                together[site] = {s: v for (s, n), v in of_round.items() if n == rows[-1].round}

    images = shares_of(run.last_reported("samples"))
    known = shipped().get(run.strategy)
    contributions = {}
    for site, alike in together.items():
        share = ratio = of_images = number = None
        known_images = {other: images[other] for other in alike if images.get(other)}
        if site in known_images:
            of_images = known_images[site] / sum(known_images.values())
        is_additive = known and known.additive or abs(sum(alike.values()) - 1) < 0.02
        if is_additive and (len(entry.runs) > 1 or site in own):
            share = shares_of(alike)[site]
        if share is not None and (of_images or len(alike) > 1):
            ratio = share / (of_images or 1 / len(alike))
        of_site, interval = values[site], len(seeds) > 1 and len(values[site]) > 1
        least, most = (min(of_site), max(of_site)) if len(of_site) > 1 else (None, None)
        if interval:
            width = half_width(stdev(of_site) / math.sqrt(len(of_site)), len(of_site)) or 0.0
            least, most = alike[site] - width, alike[site] + width
        elif len(entry.runs) == 1:
            last = run.series(site, "contribution")[-1].round
            number = last if last < len(run.rounds) - 1 else None
        found = {"value": alike[site], "share": share, "images": of_images, "ratio": ratio}
        ends = {"least": least, "most": most, "interval": interval}
        contributions[site] = {**found, **ends, "round": number}
    return contributions


def worth_of(run: Run) -> tuple[str | None, dict[str, dict[str, Any]]]:
    """The valuation that says what each site is worth, and site -> its value, error and share.

    First one in which no hospital's own scores count for itself.
    """
    current = [found for found in run.valuations if is_current(found, run)]
    if not current:
        return None, {}
    chosen = min(current, key=lambda found: found.get("judged_by") != "others")
    shares = chosen["shares"]
    return chosen["name"], {s: {**v, "share": shares.get(s)} for s, v in chosen["values"].items()}


def points_of(run: Run, name: str) -> dict[str, list[dict[str, Any]]]:
    """site -> its numbers by round: ``"round"``, ``"value"``, ``"stderr"`` and ``"n"``."""
    points = {}
    for site in run.sites:
        rows = run.series(site, name)
        points[site] = [
            {"round": r.round, "value": r.value, "stderr": r.stderr, "n": r.n} for r in rows
        ]
    return points


def dice_points(run: Run) -> dict[str, list[dict[str, Any]]]:
    """site -> validation Dice of the model that it would use after 0, 1, ... rounds of training."""
    points = {}
    for site in run.sites:
        dice = run.dice(site)
        closing = run.closing(site, "score")
        if closing is not None:
            dice[len(run.rounds)] = closing
        points[site] = [{"round": number, **found._asdict()} for number, found in dice.items()]
    return points


def over_runs(runs: Sequence[Mapping[str, Sequence[Mapping[str, Any]]]]) -> dict[str, Any]:
    """Several seeds or folds as one series: the mean, and a band from the least to the most.

    Only of the rounds that every run has.

    >>> one = {"elm": [{"round": 0, "value": 0.25}, {"round": 1, "value": 0.5}]}
    >>> over_runs([one, {"elm": [{"round": 0, "value": 0.75}]}])
    {'elm': [{'round': 0, 'value': 0.5, 'least': 0.25, 'most': 0.75}]}
    """
    if len(runs) == 1:
        return dict(runs[0])
    values: dict[str, dict[int, list[float]]] = {}
    for by_site in runs:
        for site, points in by_site.items():
            for point in points:
                values.setdefault(site, {}).setdefault(point["round"], []).append(point["value"])
    series: dict[str, Any] = {}
    for site, by_round in values.items():
        series[site] = []
        for number, found in sorted(by_round.items()):
            if len(found) == len(runs):
                point = {"round": number, "value": mean(found)}
                series[site].append({**point, "least": min(found), "most": max(found)})
    return series


def details_of(run: Run) -> dict[str, Any]:
    """The method's own quantities, beyond weights and contributions.

    Returns:
        ``"by_round"``: name -> site -> points ``{"round", "value"}``; ``"last_round"``: name ->
        ``{"round", "sites"}``, the newest site -> class or layer -> value.
    """
    by_round: dict[str, dict[str, list[dict[str, Any]]]] = {}
    last_round: dict[str, dict[str, Any]] = {}
    for record in run.rounds:
        number = record["round"]
        for name, values in record["details"].items():
            for site, value in values.items():
                if isinstance(value, Mapping) and "stderr" not in value:
                    if last_round.get(name, {}).get("round") != number:
                        last_round[name] = {"round": number, "sites": {}}
                    by_class = {key: number_in(item) for key, item in value.items()}
                    last_round[name]["sites"][site] = by_class
                elif number_in(value) is not None:
                    found = numbers_by_class(value)["mean"].value
                    points = by_round.setdefault(name, {}).setdefault(site, [])
                    points.append({"round": number, "value": found})
    return {"by_round": by_round, "last_round": last_round}


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
