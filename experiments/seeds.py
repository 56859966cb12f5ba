# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Studies that train every fold with several seeds: their cells, compared on the same ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from reading import (
    NOTHING,
    NotFinished,
    cases,
    hierarchical_interval,
    markdown,
    shown_name,
    words,
)
from study import Study

from monai_fairfl.statistics.fairness import performance

Cells = dict[tuple[int, int], dict[str, Any]]
"""(seed, fold) -> the result of one strategy."""
Scores = dict[int, dict[str, dict[str, float]]]
"""seed -> site -> case -> score."""


def finished(study: Study, setting: str = "") -> dict[str, Cells]:
    """Read the results that exist: strategy -> its cells, of the strategies that have any."""
    found: dict[str, Cells] = {}
    for result in study.committed():
        if result["setting"] == setting:
            of_strategy = found.setdefault(result["strategy"], {})
            of_strategy[result["seed"], result["fold"]] = result
    return found


def on_same_cells(found: Mapping[str, Cells]) -> dict[str, Cells]:
    """Restrict all strategies to the seeds and folds that each of them has.

    Raises:
        NotFinished: there is no such seed and fold.

    >>> on_same_cells({"A": {(0, 0): {}, (0, 1): {}}, "B": {(0, 1): {}}})
    {'A': {(0, 1): {}}, 'B': {(0, 1): {}}}
    """
    common: set[tuple[int, int]] = set()
    for number, cells in enumerate(found.values()):
        if number == 0:
            common = set(cells)
        common &= set(cells)
    if not common:
        raise NotFinished("a seed and fold of every strategy")
    same = {}
    for strategy, cells in found.items():
        same[strategy] = {key: cells[key] for key in sorted(common)}
    return same


def scores(cells: Cells, model: str = "test") -> Scores:
    """Pool the test scores of every seed over its folds.

    Args:
        cells: of one strategy.
        model: ``"test"``, the one that a site received, or ``"test_used"``, after its last mile.
    """
    of_seeds: dict[int, list[dict[str, Any]]] = {}
    for (seed, _), result in sorted(cells.items()):
        of_seeds.setdefault(seed, []).append(result)
    return {seed: cases(results, model=model) for seed, results in of_seeds.items()}


def gains(one: Scores, other: Scores) -> Scores:
    """Subtract case by case, seed by seed."""
    found: Scores = {}
    for seed, sites in one.items():
        found[seed] = {}
        for site, of_cases in sites.items():
            of_other = other[seed][site]
            found[seed][site] = {case: of_cases[case] - of_other[case] for case in of_cases}
    return found


def site_means(of_seeds: Scores) -> dict[str, float]:
    """Average every site's scores over seeds and cases.

    >>> site_means({0: {"A": {"c1": 0.25}}, 1: {"A": {"c1": 0.75}}})
    {'A': 0.5}
    """
    pooled: dict[str, list[float]] = {}
    for sites in of_seeds.values():
        for site, of_cases in sites.items():
            pooled.setdefault(site, []).extend(of_cases.values())
    return {site: float(np.mean(values)) for site, values in sorted(pooled.items())}


def each_seed(of_seeds: Scores) -> str:
    """Write the mean over sites of every seed."""
    shown = []
    for seed in sorted(of_seeds):
        means = site_means({seed: of_seeds[seed]})
        shown.append(f"{np.mean(list(means.values())):+.3f}")
    return ", ".join(shown)


def dice_of_seeds(found: Mapping[str, Cells], model: str, baseline: str = "FedAvg") -> str:
    """Write every strategy's Dice at every site, mean, deviation, worst site, and its gain.

    Args:
        found: strategy -> its cells, the same for all.
        model: as for `scores`.
        baseline: over which the gain is, case by case and seed by seed, with the same model.
    """
    of_strategies = {strategy: scores(cells, model) for strategy, cells in found.items()}
    sites = list(site_means(next(iter(of_strategies.values()))))
    rows = []
    for strategy, of_seeds in of_strategies.items():
        means = site_means(of_seeds)
        summary = performance(means)
        row = [shown_name(strategy), *(f"{means[site]:.3f}" for site in sites)]
        row += [
            words(hierarchical_interval(of_seeds)),
            f"{summary.std:.3f}",
            f"{summary.worst:.3f} ({summary.worst_client})",
        ]
        if strategy == baseline or baseline not in of_strategies:
            row += [NOTHING, NOTHING]
        else:
            gained = gains(of_seeds, of_strategies[baseline])
            row += [words(hierarchical_interval(gained), signed=True), each_seed(gained)]
        rows.append(row)
    head = ["strategy", *sites, "mean", "std", "worst site", f"gain over {baseline}"]
    return markdown([*head, "seed by seed"], rows)


def received_and_used(
    found: Mapping[str, Cells], baseline: str = "FedAvg", of: str = "On"
) -> list[str]:
    """Write the Dice of the models as received, and of those after the last mile, with titles.

    Args:
        found: strategy -> its cells, the same for all.
        baseline: as for `dice_of_seeds`.
        of: the first words of the title.
    """
    return [
        f"{of} {described(found[baseline])}. As received:",
        dice_of_seeds(found, "test", baseline),
        "With the model that each site uses after its last mile:",
        dice_of_seeds(found, "test_used", baseline),
    ]


def described(cells: Cells) -> str:
    """Write on how many seeds and folds a table rests.

    >>> described({(0, 0): {}, (0, 1): {}, (2, 0): {}})
    '3 cells: seed 0, folds 0 and 1; seed 2, fold 0'
    """
    noun = "cells"
    if len(cells) == 1:
        noun = "cell"
    return f"{len(cells)} {noun}: {seeds_and_folds(cells)}"


def seeds_and_folds(cells: Cells) -> str:
    """Write which seeds and folds cells have; seeds with the same folds stand together.

    >>> seeds_and_folds({(0, 0): {}, (0, 1): {}, (1, 0): {}, (1, 1): {}, (2, 0): {}})
    'seeds 0 and 1, folds 0 and 1; seed 2, fold 0'
    """
    folds: dict[int, list[int]] = {}
    for seed, fold in sorted(cells):
        folds.setdefault(seed, []).append(fold)
    seeds: dict[tuple[int, ...], list[int]] = {}
    for seed, of_seed in folds.items():
        seeds.setdefault(tuple(of_seed), []).append(seed)
    parts = []
    for of_seeds, same in seeds.items():
        parts.append(f"{_numbered('seed', same)}, {_numbered('fold', of_seeds)}")
    return "; ".join(parts)


def _numbered(noun: str, numbers: Sequence[int]) -> str:
    """Write one thing or several with their numbers.

    >>> _numbered("fold", [0]), _numbered("fold", [0, 1, 2])
    ('fold 0', 'folds 0, 1 and 2')
    """
    if len(numbers) == 1:
        return f"{noun} {numbers[0]}"
    return f"{noun}s {_listed(numbers)}"


def _listed(numbers: Sequence[int]) -> str:
    """Write numbers as in a sentence."""
    *first, last = [str(number) for number in numbers]
    if not first:
        return last
    return f"{', '.join(first)} and {last}"
