# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedCE, Table 1, control: what uniform weights alone do: FedAvg that counts every site once.

FedAvg was trained again beside it on the same processor, from the same seeds: rounding differs
between processors, so uniform weights are compared with that training, and the other methods with
the FedAvg of their own table.
"""

from __future__ import annotations

from collections.abc import Sequence

from papers.fedce_table1_fundus import missed
from reading import (
    NotFinished,
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
PHOTOGRAPHS = ("six_fundus", "fundus")
# The methods that give all sites one model, as uniform weights do.
METHODS = (
    "FedCE",
    "FedCE-sum",
    "CGSV",
    "FedLWR",
    "ShapFed",
    "FedISM",
    "qFedAvg",
    "AFL",
    "FedCI",
    "FairFed",
    "FedGA",
    "CFFL",
)
ROUNDING = 0.002
"""A mean of FedAvg's second training that is farther from the first is marked."""


def table() -> str:
    """Uniform weights beside both trainings of FedAvg; then every method's gain at every site.

    Raises:
        NotFinished: no study has all its folds.
    """
    rows = []
    gains = []
    for study in STUDIES:
        trained = _trained(study)
        if trained is not None:
            rows += _rows(study, trained)
            gains.append(f"`{study}`, gain over FedAvg:\n\n{_gains(study, trained)}")
            if study in PHOTOGRAPHS:
                gains.append(_discs(study, trained))
    if not rows:
        raise NotFinished("runs with uniform weights")
    return "\n\n".join([markdown(HEAD, rows), MARK, *gains])


HEAD = [
    "study",
    "fold",
    "FedAvg",
    "FedAvg, trained again",
    "uniform weights",
    "uniform weights less FedAvg, trained again",
    "worst site, FedAvg again",
    "worst site, uniform",
    "std, FedAvg again",
    "std, uniform",
]
MARK = (
    f"\\* differs from the first training by more than {ROUNDING:g}: rounding of another processor"
)


def _trained(study: str) -> Results | None:
    """Both trainings of the setting; ``None`` where a fold of either is missing."""
    try:
        found = read(study, "uniform")
    except NotFinished:
        return None
    if "FedAvg" not in found or "FedAvg-uniform" not in found:
        return None
    return found


def _rows(study: str, trained: Results) -> list[list[str]]:
    """A row for each fold, and one for all of them."""
    first = read(study)["FedAvg"]
    again = trained["FedAvg"]
    uniform = trained["FedAvg-uniform"]
    rows = []
    for committed, repeated, even in zip(first, again, uniform, strict=True):
        rows.append([study, str(committed["fold"]), *_row([committed], [repeated], [even])])
    rows.append([study, "all", *_row(first, again, uniform)])
    return rows


def _row(first: Sequence[Result], again: Sequence[Result], uniform: Sequence[Result]) -> list[str]:
    """Means, the gain of uniform weights, and worst site and deviation over sites of both."""
    committed = performance(site_means(cases(first)))
    repeated = performance(site_means(cases(again)))
    even = performance(site_means(cases(uniform)))
    mark = ""
    if abs(repeated.mean - committed.mean) > ROUNDING:
        mark = "*"
    return [
        f"{committed.mean:.3f}",
        f"{repeated.mean:.3f}{mark}",
        f"{even.mean:.3f}",
        words(difference(uniform, again), signed=True),
        f"{repeated.worst:.3f} ({repeated.worst_client})",
        f"{even.worst:.3f} ({even.worst_client})",
        f"{repeated.std:.3f}",
        f"{even.std:.3f}",
    ]


def _gains(study: str, trained: Results) -> str:
    """Gains site by site.

    Uniform weights are compared with FedAvg trained again, every other method with the FedAvg of
    its own table.
    """
    committed = read(study)
    sites = list(cases(committed["FedAvg"]))
    rows = [["uniform weights", *_gain(trained["FedAvg-uniform"], trained["FedAvg"], sites)]]
    for method in METHODS:
        if method in committed:
            rows.append([shown_name(method), *_gain(committed[method], committed["FedAvg"], sites)])
    return markdown(["method", *sites, "mean", "fold by fold"], rows)


def _discs(study: str, trained: Results) -> str:
    """How many discs of every site both trainings of FedAvg, and uniform weights, did not find."""
    compared = {
        "FedAvg": read(study)["FedAvg"],
        "FedAvg, trained again": trained["FedAvg"],
        "uniform weights": trained["FedAvg-uniform"],
    }
    return missed(Results(compared))


def _gain(found: Sequence[Result], baseline: Sequence[Result], sites: Sequence[str]) -> list[str]:
    """The gain at each site, its mean with the interval over cases, and the mean in each fold."""
    of_sites = [f"{difference(found, baseline, [site]).estimate:+.3f}" for site in sites]
    return [*of_sites, words(difference(found, baseline), signed=True), by_fold(found, baseline)]
