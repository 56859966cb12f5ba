# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Uneven hospitals and corrupted clients: what was predicted, and what came out.

The predictions stand in ``experiments/README.md`` since before any of these cells was tested. They
are of the models that the sites receive; the other column judges those used after a last mile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import uneven
from papers import uneven_corrupted
from reading import (
    NOTHING,
    NotFinished,
    Results,
    hierarchical_difference,
    markdown,
    site_means,
    words,
)
from study import ALONE, Study

from monai_fairfl.statistics.fairness import pearson

STUDIES = ("uneven_prostate", "uneven_corrupted")
SETTINGS = ("", "float32", "instance_norm")
NAMED_MODE = "FedCE"
"""The mode of FedCE that was named beforehand: the product."""

LEAST_GAIN = 0.05
MOST_LOSS = 0.01
LEAST_SEEDS = 2
LEAST_FAIRNESS = 70
LEAST_ABOVE_NULL = 20
LEAST_CORRELATION = 0.85

Verdict = tuple[bool, str]
"""Whether a prediction came true, and the numbers."""


def table() -> str:
    """A row per prediction: yes or no, with the numbers."""
    rows = []
    for prediction, judge in PREDICTIONS.items():
        row = [prediction]
        for model in uneven.MODELS:
            row.append(_judged(judge, model))
        rows.append(row)
    rows.append([CORRUPTED, _judged(fedism_protects, "test"), NOTHING])
    if all(NOTHING == cell for row in rows for cell in row[1:]):
        raise NotFinished("the runs of any prediction")
    return markdown(["predicted", "models received", "models used"], rows)


def _judged(judge: Callable[[str], Verdict], model: str) -> str:
    try:
        came_true, numbers = judge(model)
    except NotFinished:
        return NOTHING
    if came_true:
        return f"**yes**: {numbers}"
    return f"**no**: {numbers}"


def fedce_gains(model: str) -> Verdict:
    """Worst site 0.05 above FedAvg's with an interval above zero, and the mean not lower."""
    fedce, fedavg = _values(model, NAMED_MODE, "FedAvg")
    worst = hierarchical_difference(fedce, fedavg, np.min)
    mean = hierarchical_difference(fedce, fedavg)
    came_true = worst.estimate >= LEAST_GAIN and worst.low > 0 and mean.estimate >= 0
    numbers = f"worst site {words(worst, signed=True)}, mean {words(mean, signed=True)}"
    return came_true, numbers


def fedce_evens(model: str) -> Verdict:
    """In two of three seeds evener and with a better worst site than FedAvg and uniform weights."""
    numbers = _seeds_ahead(NAMED_MODE, ["FedAvg", "FedAvg-uniform"], model, deviation_too=True)
    return numbers >= LEAST_SEEDS, f"{numbers} seeds"


def fedlwr_helps(model: str) -> Verdict:
    """With one of its variants, in two of three seeds a better worst site than uniform weights."""
    found = {}
    for variant in ("paper", "released"):
        found[variant] = _seeds_ahead(
            f"FedLWR-{variant}", ["FedAvg-uniform"], model, deviation_too=False
        )
    numbers = ", ".join(f"{variant} {number} seeds" for variant, number in found.items())
    return max(found.values()) >= LEAST_SEEDS, numbers


def cgsv_rewards(model: str) -> Verdict:
    """Collaboration fairness of at least 70, and 20 above that of no reward at all."""
    found = uneven.complete(STUDIES[0], ["instance_norm"])
    fairness = 100 * _correlation(found, "CGSV", model)
    null = 100 * _correlation(found, "CGSV-null", model)
    came_true = fairness >= LEAST_FAIRNESS and fairness - null >= LEAST_ABOVE_NULL
    return came_true, f"{fairness:.0f}, null row {null:.0f}"


def shapfed_follows(model: str) -> Verdict:
    """Dice follows that of training alone; beside it that of FedAvg, which rewards nobody."""
    found = uneven.complete(STUDIES[0])
    correlations = {}
    for variant in ("paper", "released"):
        correlations[variant] = _correlation(found, f"ShapFed-{variant}", model)
    numbers = ", ".join(f"{variant} {value:.2f}" for variant, value in correlations.items())
    of_fedavg = _correlation(found, "FedAvg", model)
    came_true = max(correlations.values()) >= LEAST_CORRELATION
    return came_true, f"{numbers}; FedAvg {of_fedavg:.2f}"


def fedism_protects(model: str) -> Verdict:
    """Corrupted clients above FedAvg's, clean ones not lower by more than 0.01."""
    found = uneven.complete(STUDIES[1])
    clients = Study.read(STUDIES[1]).arguments["groups"]
    gains = {}
    for group in uneven_corrupted.GROUPS:
        of_group = {}
        for method in ("FedISM", "FedAvg"):
            of_groups = uneven_corrupted.of_groups(found[method], clients)
            of_group[method] = uneven.only(of_groups, group)
        gains[group] = hierarchical_difference(of_group["FedISM"], of_group["FedAvg"])
    came_true = gains["corrupted"].estimate > 0 and gains["clean"].estimate >= -MOST_LOSS
    numbers = [f"{group} {words(gain, signed=True)}" for group, gain in gains.items()]
    return came_true, ", ".join(numbers)


PREDICTIONS: Mapping[str, Callable[[str], Verdict]] = {
    f"{NAMED_MODE}: worst site at least 0.05 above FedAvg's, interval above zero, mean not lower": (
        fedce_gains
    ),
    f"{NAMED_MODE}: deviation lower and worst site higher than FedAvg's and uniform weights' "
    "in two of three seeds": fedce_evens,
    "Fed-LWR, one of its variants: worst site above that of uniform weights in two of three "
    "seeds": fedlwr_helps,
    "CGSV with rewards: collaboration fairness at least 70, and 20 above its null row": (
        cgsv_rewards
    ),
    "ShapFed, one of its variants: sites' Dice correlates with that of training alone by at least "
    "0.85": shapfed_follows,
}
CORRUPTED = (
    "FedISM with cross-entropy: corrupted clients above FedAvg's, clean ones not lower by more "
    "than 0.01"
)


def _values(model: str, *methods: str) -> list[uneven.BySeed]:
    found = uneven.complete(STUDIES[0], SETTINGS)
    return [uneven.by_seed(found[method], model) for method in methods]


def _seeds_ahead(method: str, others: Sequence[str], model: str, deviation_too: bool) -> int:
    values = _values(model, method, *others)
    one, *rivals = [uneven.of_each_seed(of_method) for of_method in values]
    return uneven.number_of_seeds(one, rivals, deviation_too)


def _correlation(found: Results, method: str, model: str) -> float:
    """Correlate the sites' Dice with that of the models trained alone, over all seeds' cases."""
    alone = site_means(uneven.pooled(uneven.by_seed(found[ALONE])))
    return pearson(alone, site_means(uneven.pooled(uneven.by_seed(found[method], model)))).r
