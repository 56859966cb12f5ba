# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What the tables of uneven federations share: each seed trains another fold of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from reading import (
    NOTHING,
    BySeed,
    NotFinished,
    Result,
    Results,
    cases,
    hierarchical_difference,
    markdown,
    read,
    shown_name,
    site_means,
    words,
)

from monai_fairfl.statistics.fairness import performance

MODELS = {"test": "received", "test_used": "used"}
"""Key of a result -> what the sites test: what they receive, or what they use after a last mile."""


def complete(study: str, settings: Iterable[str] = ("",)) -> Results:
    """Read the methods of several settings that have all seeds, under their own names.

    A method that several settings train has the setting in its name, but for the first.

    Raises:
        NotFinished: no method has all seeds.
    """
    found = Results()
    for setting in settings:
        try:
            of_setting = read(study, setting)
        except NotFinished:
            continue
        for strategy, results in of_setting.items():
            name = strategy
            if name in found:
                name = f"{strategy}, {setting.replace('_', ' ')}"
            found[name] = results
    if not found:
        raise NotFinished(f"a method of {study} with all seeds")
    return found


def by_seed(results: Iterable[Result], model: str = "test") -> dict[Any, dict[str, Any]]:
    """Seed -> site -> test case -> Dice.

    Raises:
        ValueError: two results have the same seed, of which one would be lost.
    """
    found: dict[Any, dict[str, Any]] = {}
    for result in results:
        seed = result["seed"]
        if seed in found:
            raise ValueError(f"{result['strategy']}: two folds have the seed {seed}")
        found[seed] = cases([result], model=model)
    return found


def head(first: str, site: str) -> list[str]:
    """Write the head of a table of :func:`summary_cells` and :func:`gain_cells`."""
    gains = [f"{of} above FedAvg" for of in ("mean", "worst site", site)]
    return [first, "mean Dice", "std", "worst site", site, *gains]


def summary_cells(values: BySeed, site: str) -> list[str]:
    """Write mean, deviation over sites, worst site and one site's Dice.

    A site's mean is that of its cases of all seeds, of which none was tested twice.
    """
    means = site_means(pooled(values))
    summary = performance(means)
    return [
        f"**{summary.mean:.3f}**",
        f"{summary.std:.3f}",
        f"{summary.worst:.3f} ({summary.worst_client})",
        f"{means[site]:.3f}",
    ]


def pooled(values: BySeed) -> dict[str, dict[str, float]]:
    """Put the cases of all seeds together: site -> seed and case -> Dice."""
    found: dict[str, dict[str, float]] = {}
    for seed, of_sites in values.items():
        for site, scores in of_sites.items():
            for case, score in scores.items():
                found.setdefault(site, {})[f"{seed} {case}"] = score
    return found


def gain_cells(one: BySeed, other: BySeed | None, site: str) -> list[str]:
    """Write what a method gains over another: the mean, the worst site's Dice, one site's Dice."""
    if other is None:
        return [NOTHING] * 3
    return [
        words(hierarchical_difference(one, other), signed=True),
        words(hierarchical_difference(one, other, np.min), signed=True),
        words(hierarchical_difference(only(one, site), only(other, site)), signed=True),
    ]


def only(values: BySeed, site: str) -> BySeed:
    """Leave one site of the values."""
    return {seed: {site: of_seed[site]} for seed, of_seed in values.items()}


def of_each_seed(values: BySeed) -> dict[Any, tuple[float, float]]:
    """Seed -> the deviation over sites, and the worst site's mean."""
    found = {}
    for seed, of_sites in values.items():
        summary = performance(site_means(of_sites))
        found[seed] = (summary.std, summary.worst)
    return found


def number_of_seeds(
    one: Mapping[Any, tuple[float, float]],
    others: Iterable[Mapping[Any, tuple[float, float]]],
    deviation_too: bool,
) -> int:
    """Count the seeds in which a method's worst site is above that of all others.

    Args:
        one: of the method, as :func:`of_each_seed` returns it.
        others: of those that it is compared with.
        deviation_too: whether its deviation over sites must be lower, too.
    """
    rivals = list(others)
    number = 0
    for seed, (deviation, worst) in one.items():
        better = all(worst > rival[seed][1] for rival in rivals)
        evener = all(deviation < rival[seed][0] for rival in rivals)
        if better and (evener or not deviation_too):
            number += 1
    return number


def table_of(values: Mapping[str, BySeed], site: str, baseline: str = "FedAvg") -> str:
    """Write a row for every method, with its gains over one of them.

    Args:
        values: method -> seed -> site -> case -> Dice.
        site: with columns of its own.
        baseline: one of the methods; without it, no gain is written.
    """
    rows = []
    for method, of_method in values.items():
        gains = [NOTHING] * 3
        if method != baseline:
            gains = gain_cells(of_method, values.get(baseline), site)
        rows.append([shown_name(method), *summary_cells(of_method, site), *gains])
    return markdown(head("method", site), rows)
