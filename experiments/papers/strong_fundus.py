# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Looks that do not lose a disc, on the real photographs: Dice, discs missed, the last mile."""

from __future__ import annotations

import numpy as np
from papers import last_mile
from papers.last_mile import came_out
from reading import (
    NOT_FOUND,
    NotFinished,
    hierarchical_interval,
    markdown,
    not_found,
    shares,
    words,
)
from seeds import (
    Cells,
    Scores,
    finished,
    gains,
    on_same_cells,
    received_and_used,
    scores,
    site_means,
)
from study import Study

STUDIES = ("strong_fundus",)
MOST_LOSS = 0.01
MOST_MISSED = 2
MOST_GAIN = 0.02
LOCAL = "FedAvg, local norm"
SMALL, NEAREST = "IDRiD", "DrishtiGS1"
"""The small and unusual clinic, and the one at which training alone was best beforehand."""


def table() -> str:
    """Write Dice as received and as used, the missed discs, and what was predicted."""
    study = Study.read("strong_fundus")
    everything = finished(study)
    local = finished(study, "local_norm").get("FedAvg")
    if local:
        everything[LOCAL] = local
    for needed in ("FedAvg", "Standalone"):
        if needed not in everything:
            raise NotFinished(f"runs of {needed}")
    found = on_same_cells(everything)
    return "\n\n".join(
        [
            *received_and_used(found),
            f"Discs not found (Dice below {NOT_FOUND:g}) as received, seed by seed:",
            _missed(found),
            "The last mile, strategy by strategy:",
            last_mile.table_of("strong_fundus"),
            "What was predicted before any test, and what came out:",
            _predictions(found, complete=not study.missing()),
        ]
    )


def _missed(found: dict[str, Cells]) -> str:
    rows = []
    for strategy, cells in found.items():
        rows.append([strategy, _listed(_missed_of_seeds(cells))])
    return markdown(["strategy", "not found"], rows)


def _missed_of_seeds(cells: Cells) -> list[tuple[int, int]]:
    """Return, seed by seed, how many discs were not found, and of how many."""
    counts = []
    for seed in sorted({seed for seed, _ in cells}):
        results = [result for (of, _), result in sorted(cells.items()) if of == seed]
        counts.append(not_found(results, "disc"))
    return counts


def _listed(counts: list[tuple[int, int]]) -> str:
    """Write counts.

    >>> _listed([(1, 165), (0, 165)])
    '1 of 165, 0 of 165'
    """
    return ", ".join(f"{missed} of {discs}" for missed, discs in counts)


def _predictions(found: dict[str, Cells], complete: bool) -> str:
    fedavg = scores(found["FedAvg"])
    over_alone = site_means(gains(fedavg, scores(found["Standalone"])))
    missed = _missed_of_seeds(found["FedAvg"])
    rows = [
        [
            f"FedAvg as received: no site below training alone by more than {MOST_LOSS}",
            _of_sites(over_alone),
            came_out(min(over_alone.values()) >= -MOST_LOSS, complete),
        ],
        [
            f"FedAvg misses at most {MOST_MISSED} discs with each seed",
            _listed(missed),
            came_out(all(number <= MOST_MISSED for number, _ in missed), complete),
        ],
    ]
    if "FedCE-sum" in found:
        rows += _of_fedce(found["FedCE-sum"], fedavg, complete)
    rows += last_mile.predicted(found["FedAvg"], found["Standalone"], complete)
    return markdown(["predicted", "came out", ""], rows)


def _of_fedce(fedce: Cells, fedavg: Scores, complete: bool) -> list[list[str]]:
    difference = gains(scores(fedce), fedavg)
    mean = hierarchical_interval(difference)
    of_sites = site_means(difference)
    weight, photographs = _weight_and_photographs(fedce, SMALL)
    not_below = of_sites[SMALL] >= 0 and of_sites[NEAREST] >= -MOST_LOSS
    return [
        [
            f"FedCE's sum is not below FedAvg by more than {MOST_LOSS} in the mean over sites",
            words(mean, signed=True),
            came_out(mean.estimate >= -MOST_LOSS, complete),
        ],
        [
            f"FedCE's sum gives {SMALL} more weight than its share of the photographs",
            f"weight {weight:.3f}, share {photographs:.3f}",
            came_out(weight > photographs, complete),
        ],
        [
            f"FedCE's sum: {SMALL} not below FedAvg, {NEAREST} not by more than {MOST_LOSS}",
            _of_sites(of_sites),
            came_out(not_below, complete),
        ],
        [
            f"FedCE's sum gains no more than {MOST_GAIN} anywhere",
            _of_sites(of_sites),
            came_out(max(of_sites.values()) <= MOST_GAIN, complete),
        ],
    ]


def _weight_and_photographs(cells: Cells, site: str) -> tuple[float, float]:
    """Return a site's weight in the last rounds, and its share of the training photographs."""
    weights = []
    photographs = []
    for result in cells.values():
        weights.append(shares(result, "aggregation")[site])
        photographs.append(result["samples"][site] / sum(result["samples"].values()))
    return float(np.mean(weights)), float(np.mean(photographs))


def _of_sites(means: dict[str, float]) -> str:
    return ", ".join(f"{site} {mean:+.3f}" for site, mean in means.items())
