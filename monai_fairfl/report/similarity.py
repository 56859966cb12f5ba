# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""How alike the sites' updates are, from the inner products that the ledger records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from monai_fairfl.report.run import Run


@dataclass(frozen=True)
class Similarity:
    """The mean cosine of each pair of sites' updates.

    Args:
        sites: in an order in which those with like updates are neighbours.
        cosines: a row for each site, in this order; NaN where two sites share no round.
        rounds: that have inner products.
    """

    sites: list[str]
    cosines: list[list[float]]
    rounds: int


def similarity_of(run: Run) -> Similarity | None:
    r"""The similarity of the updates of a run.

    .. math:: c_{ij} = \frac{1}{|T_{ij}|} \sum_{t \in T_{ij}}
       \frac{G^t_{ij}}{\sqrt{G^t_{ii} G^t_{jj}}}

    G is the Gram matrix of a round's updates, and T_ij are the rounds in which both sites sent one
    that is finite and not zero. The order is that of an average linkage with distance 1 - c.

    Args:
        run: in question.

    Returns:
        ``None`` for sites that train alone, whose updates start from different models, and where
        the ledger has no inner products of pairs.
    """
    if run.is_standalone:
        return None
    sites = run.sites
    place = {site: number for number, site in enumerate(sites)}
    sums = np.zeros((len(sites), len(sites)))
    counts = np.zeros_like(sums)
    rounds = 0
    for record in run.rounds:
        found = _cosines(record["gram"])
        if found is None:
            continue
        clients, cosines = found
        places = [place[client] for client in clients]
        known = np.isfinite(cosines)
        sums[np.ix_(places, places)] += np.where(known, cosines, 0.0)
        counts[np.ix_(places, places)] += known
        rounds += 1
    if not counts[~np.eye(len(sites), dtype=bool)].any():
        return None

    with np.errstate(invalid="ignore"):
        means = sums / counts
    order = _clustered(means)
    ordered = means[np.ix_(order, order)]
    return Similarity([sites[number] for number in order], ordered.tolist(), rounds)


def _cosines(gram: Any) -> tuple[Sequence[str], NDArray[np.float64]] | None:
    """The clients of one round and the cosines of their updates; NaN where one is not usable."""
    if not isinstance(gram, dict):
        return None
    clients = gram["clients"]
    products = np.array(gram["whole"], dtype=float)
    if products.shape != (len(clients), len(clients)):
        return None
    squares = np.diagonal(products)
    with np.errstate(invalid="ignore"):
        lengths = np.sqrt(np.where(squares > 0, squares, math.nan))
        cosines = products / np.outer(lengths, lengths)
    # Both halves are of the same pairs, but for float32's rounding.
    return clients, np.clip((cosines + cosines.T) / 2, -1.0, 1.0)


def _clustered(cosines: NDArray[np.float64]) -> list[int]:
    """The sites' places in an order of like neighbours; a pair that never met is orthogonal."""
    number = len(cosines)
    if number < 3:
        return list(range(number))
    distances = 1 - np.nan_to_num(cosines)
    np.fill_diagonal(distances, 0.0)
    tree = linkage(squareform(distances, checks=False), "average", optimal_ordering=True)
    return [int(place) for place in leaves_list(tree)]
