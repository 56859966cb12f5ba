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

from monai_fairfl.games import LEAST_TOTAL
from monai_fairfl.replies import normalise
from monai_fairfl.report.collect import Row, Run
from monai_fairfl.report.scores import Entry, half_width


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


def is_current(valuation: Mapping[str, Any], run: Run) -> bool:
    """Whether a valuation is of the model that the run ended with; the run may have gone on."""
    model = (run.end or {}).get("model")
    return run.end is not None and bool(valuation.get("model", model) == model)


def own_contributions(run: Run) -> dict[str, Row]:
    """site -> its contribution in the last round with contributions that asked it."""
    points = {site: run.series(site, "contribution") for site in run.sites}
    rounds = {row.round for rows in points.values() for row in rows}
    last: dict[str, int] = {}
    for record in run.rounds:
        if record["round"] in rounds:
            last.update(dict.fromkeys(record["clients"], record["round"]))
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


def contributions_of(entry: Entry) -> dict[str, dict[str, Any]]:
    """site -> what the method itself estimates; empty where it estimates nothing.

    Returns:
        ``value``: of one run the newest, of several the mean over seeds of means over folds;
        ``least`` and ``most``, its 95 % interval over several seeds, else ``None``.
    """
    # Site -> seed -> its value in each fold.
    values: dict[str, dict[Any, list[float]]] = {}
    for run in entry.runs:
        for site, row in own_contributions(run).items():
            values.setdefault(site, {}).setdefault(run.seed, []).append(row.number.value)
    contributions = {}
    for site, by_seed in values.items():
        of_seeds = [mean(found) for found in by_seed.values()]
        value, n = mean(of_seeds), len(of_seeds)
        width = half_width(stdev(of_seeds) / math.sqrt(n), n) if n > 1 else None
        least, most = (None, None) if width is None else (value - width, value + width)
        contributions[site] = {"value": value, "least": least, "most": most}
    return contributions


def points_of(runs: Sequence[Run], name: str) -> dict[str, list[dict[str, Any]]]:
    """site -> points of a measurement, or of ``"dice"``: ``"round"`` and ``"value"``.

    Of several seeds or folds it is the mean, of the rounds that every run has.
    """
    values: dict[str, dict[int, list[float]]] = {}
    for run in runs:
        for site in run.sites:
            found = {row.round: row.number for row in run.series(site, name)}
            of_site = values.setdefault(site, {})
            for number, measured in (run.dice(site) if name == "dice" else found).items():
                of_site.setdefault(number, []).append(measured.value)
    points: dict[str, list[dict[str, Any]]] = {}
    for site, by_round in values.items():
        for number, of_runs in sorted(by_round.items()):
            if len(of_runs) == len(runs):
                points.setdefault(site, []).append({"round": number, "value": mean(of_runs)})
    return points


def similarity_of(run: Run) -> dict[str, Any] | None:
    r"""The mean cosine of each pair of sites' updates, over the rounds in which both sent one.

    .. math:: c_{ij} = \frac{1}{|T_{ij}|} \sum_{t \in T_{ij}}
       \frac{G^t_{ij}}{\sqrt{G^t_{ii} G^t_{jj}}}

    G is the Gram matrix of a round's updates. Updates that are zero or not finite do not count.

    Returns:
        ``sites``, in the order of an average linkage with distance 1 - c, in which like sites are
        neighbours; ``cosines``, a row for each; ``rounds``, their number. ``None`` for sites that
        train alone, whose updates start from different models, and where no two sent an update.
    """
    grams = [record["gram"] for record in run.rounds if record["gram"]]
    cosines = np.full((len(grams), len(run.sites), len(run.sites)), math.nan)
    for number, gram in enumerate(grams):
        products = np.array(gram["whole"], dtype=float)
        # Both halves are of the same pairs, but for float32's rounding.
        squares = np.where(np.diagonal(products) > 0, np.diagonal(products), math.nan)
        found = (products + products.T) / 2 / np.sqrt(np.outer(squares, squares))
        places = [run.sites.index(client) for client in gram["clients"]]
        cosines[number][np.ix_(places, places)] = np.clip(found, -1, 1)
    known = np.isfinite(cosines)
    if run.is_standalone or not known[:, ~np.eye(len(run.sites), dtype=bool)].any():
        return None
    means = np.ma.masked_invalid(cosines).mean(axis=0).filled(math.nan)
    rounds = int(known.any((1, 2)).sum())
    # A pair that never met counts as orthogonal.
    pairs = np.triu_indices(len(means), 1)
    distances = 1 - np.nan_to_num(means[pairs])
    order = leaves_list(linkage(distances, "average", optimal_ordering=True))
    sites = [run.sites[number] for number in order]
    return {"sites": sites, "cosines": means[np.ix_(order, order)].tolist(), "rounds": rounds}
