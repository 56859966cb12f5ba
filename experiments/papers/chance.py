# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What chance and plain weights do: methods trained again from another seed; uniform weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from papers.fedce import missed
from reading import (
    NOTHING,
    Result,
    Results,
    by_fold,
    cases,
    difference,
    markdown,
    read,
    shown_name,
    site_means,
    words,
)

from monai_fairfl.statistics.fairness import performance

STUDIES = ("six_prostate", "six_fundus", "prostate", "fundus")


def seeds() -> str:
    """Methods trained again from another seed: every study, then site by site of the real volumes.

    The same splits, rounds and images; another first model, another order of images, other
    augmentation. The intervals of the other tables are over cases, and know nothing of this.
    """
    rows = []
    for study in STUDIES:
        for strategy, again in read(study, "another_seed").items():
            rows.append([study, strategy, *_moved(read(study)[strategy], again)])
    head = ["study", "strategy", "mean Dice", "another seed", "difference", "fold by fold"]
    moved = markdown([*head, "site that changed most", "case that changed most"], rows)
    return f"{moved}\n\n`prostate`, site by site:\n\n{_sites_of_prostate()}"


def _moved(first: Sequence[Result], again: Sequence[Result]) -> list[str]:
    """Both means, their difference case by case, and what changed most."""
    before, after = cases(first), cases(again)
    means_before, means_after = site_means(before), site_means(after)
    changes = {site: means_after[site] - means_before[site] for site in after}
    of_cases = []
    for site, scores in after.items():
        for case, dice in scores.items():
            of_cases.append(dice - before[site][case])
    site = max(changes, key=lambda each: abs(changes[each]))
    return [
        f"{performance(means_before).mean:.3f}",
        f"{performance(means_after).mean:.3f}",
        words(difference(again, first), signed=True),
        by_fold(again, first),
        f"{changes[site]:+.3f} ({site})",
        f"{max(of_cases, key=abs):+.2f}",
    ]


def _sites_of_prostate() -> str:
    """A row per seed and method; under both methods of a seed what the second gains."""
    rows = []
    sites: list[str] = []
    for setting, seed in {"": "first", "another_seed": "another"}.items():
        found = read("prostate", setting)
        means = {name: site_means(cases(found[name])) for name in ("FedAvg", "FedCE")}
        for strategy, of_strategy in means.items():
            sites = list(of_strategy)
            worst = performance(of_strategy)
            shown = [f"{of_strategy[site]:.3f}" for site in sites]
            rows.append([seed, strategy, *shown, f"{worst.worst:.3f} ({worst.worst_client})"])
        gains = [f"{means['FedCE'][site] - means['FedAvg'][site]:+.3f}" for site in sites]
        rows.append([seed, "FedCE less FedAvg", *gains, NOTHING])
    return markdown(["seed", "strategy", *sites, "worst site"], rows)


# The methods that give all sites one model, as uniform weights do.
METHODS = (
    *("FedCE", "FedCE-sum", "CGSV", "FedLWR", "ShapFed", "FedISM"),
    *("qFedAvg", "AFL", "FedCI", "FairFed", "FedGA", "CFFL"),
)
ROUNDING = 0.002
"""A mean of FedAvg's second run that is farther from the first is marked."""


def uniform() -> str:
    """Uniform weights beside both runs of FedAvg; then every method's gain at every site.

    FedAvg was trained again beside them on the same processor, from the same seeds: rounding
    differs between processors, so uniform weights are compared with that run, and the other
    methods with the FedAvg of their own table.
    """
    rows = []
    parts = []
    for study in STUDIES:
        first = read(study)
        beside = read(study, "uniform")
        three = (first["FedAvg"], beside["FedAvg"], beside["FedAvg-uniform"])
        for of_fold in zip(*three, strict=True):
            rows.append([study, str(of_fold[0]["fold"]), *_compared(*([each] for each in of_fold))])
        rows.append([study, "all", *_compared(*three)])
        parts.append(f"`{study}`, gain over FedAvg:\n\n{_gains(first, beside)}")
        if "fundus" in study:
            names = ("FedAvg", "FedAvg, trained again", "uniform weights")
            parts.append(missed(Results(dict(zip(names, three, strict=True)))))
    head = ["study", "fold", "FedAvg", "FedAvg, trained again", "uniform weights"]
    head += ["uniform weights less FedAvg, trained again", "worst site, FedAvg again"]
    head += ["worst site, uniform", "std, FedAvg again", "std, uniform"]
    mark = (
        f"\\* differs from the first run by more than {ROUNDING:g}: rounding of another processor"
    )
    return "\n\n".join([markdown(head, rows), mark, *parts])


def _compared(
    first: Sequence[Result], again: Sequence[Result], uniform: Sequence[Result]
) -> list[str]:
    """Means, the gain of uniform weights, and worst site and deviation over sites of both."""
    before, repeated, even = (
        performance(site_means(cases(found))) for found in (first, again, uniform)
    )
    mark = "*" if abs(repeated.mean - before.mean) > ROUNDING else ""
    return [
        f"{before.mean:.3f}",
        f"{repeated.mean:.3f}{mark}",
        f"{even.mean:.3f}",
        words(difference(uniform, again), signed=True),
        f"{repeated.worst:.3f} ({repeated.worst_client})",
        f"{even.worst:.3f} ({even.worst_client})",
        f"{repeated.std:.3f}",
        f"{even.std:.3f}",
    ]


def _gains(first: Results, beside: Results) -> str:
    """The gain at each site, its mean with the interval over cases, and the mean in each fold."""
    compared = {"uniform weights": (beside["FedAvg-uniform"], beside["FedAvg"])}
    for method in METHODS:
        if method in first:
            compared[shown_name(method)] = (first[method], first["FedAvg"])
    sites = list(cases(first["FedAvg"]))
    rows = []
    for name, (found, baseline) in compared.items():
        row = [name]
        row += [f"{difference(found, baseline, [site]).estimate:+.3f}" for site in sites]
        mean = words(difference(found, baseline), signed=True)
        rows.append([*row, mean, by_fold(found, baseline)])
    return markdown(["method", *sites, "mean", "fold by fold"], rows)


TABLES: Mapping[str, Any] = {"fedce_table1_seed": seeds, "control_uniform": uniform}
