# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedCE, Table 1, control: what chance does: methods trained again, from another seed.

The same splits, rounds and images; another first model, another order of images, other
augmentation. The intervals of the other tables are over cases, and know nothing of this. A second
table has every hospital of the real volumes.
"""

from __future__ import annotations

from collections.abc import Sequence

from reading import (
    NOTHING,
    NotFinished,
    Result,
    Results,
    by_fold,
    cases,
    difference,
    markdown,
    read,
    site_means,
    words,
)

from monai_fairfl.statistics.fairness import performance

STUDIES = ("six_prostate", "six_fundus", "prostate", "fundus")
BY_SITE = "prostate"
"""The study whose sites have a table of their own."""
SEEDS = {"": "first", "another_seed": "another"}
"""Setting -> the name of its seed in that table."""


def table() -> str:
    """The means of every study, then the sites of one."""
    return f"{_means()}\n\n`{BY_SITE}`, site by site:\n\n{_sites()}"


def _means() -> str:
    """A row per study and method: both means, their difference case by case, what changed most."""
    rows = []
    for study in STUDIES:
        for strategy, again in _trained_again(study).items():
            rows.append([study, strategy, *_row(read(study)[strategy], again)])
    head = [
        "study",
        "strategy",
        "mean Dice",
        "another seed",
        "difference",
        "fold by fold",
        "site that changed most",
        "case that changed most",
    ]
    return markdown(head, rows)


def _sites() -> str:
    """A row per seed and method; under both methods of a seed what the second gains."""
    rows = []
    sites: list[str] = []
    for setting, seed in SEEDS.items():
        found = read(BY_SITE, setting)
        means = {}
        for strategy in ("FedAvg", "FedCE"):
            means[strategy] = site_means(cases(found[strategy]))
            sites = list(means[strategy])
            worst = performance(means[strategy])
            of_sites = [f"{means[strategy][site]:.3f}" for site in sites]
            rows.append([seed, strategy, *of_sites, f"{worst.worst:.3f} ({worst.worst_client})"])
        gains = [f"{means['FedCE'][site] - means['FedAvg'][site]:+.3f}" for site in sites]
        rows.append([seed, "FedCE less FedAvg", *gains, NOTHING])
    return markdown(["seed", "strategy", *sites, "worst site"], rows)


def _trained_again(study: str) -> Results:
    try:
        return read(study, "another_seed")
    except NotFinished:
        return Results()


def _row(first: Sequence[Result], again: Sequence[Result]) -> list[str]:
    cases_of_first = cases(first)
    cases_of_again = cases(again)
    means_of_first = site_means(cases_of_first)
    means_of_again = site_means(cases_of_again)

    changes_of_sites = {}
    changes_of_cases = []
    for site, scores in cases_of_again.items():
        changes_of_sites[site] = means_of_again[site] - means_of_first[site]
        for case, dice in scores.items():
            changes_of_cases.append(dice - cases_of_first[site][case])
    site = max(changes_of_sites, key=lambda each: abs(changes_of_sites[each]))
    return [
        f"{performance(means_of_first).mean:.3f}",
        f"{performance(means_of_again).mean:.3f}",
        words(difference(again, first), signed=True),
        by_fold(again, first),
        f"{changes_of_sites[site]:+.3f} ({site})",
        f"{max(changes_of_cases, key=abs):+.2f}",
    ]
