# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedCE, Table 1, control: what chance does: methods trained again, from another seed.

The same splits, rounds and images; another first model, another order of images, other
augmentation. The intervals of the other tables are over cases, and know nothing of this.
"""

from __future__ import annotations

from reading import (
    NotFinished,
    Result,
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


def table() -> str:
    """A row per study and method: both means, their difference case by case, what changed most."""
    rows = [
        [study, strategy, *_row(read(study)[strategy], again)]
        for study in STUDIES
        for strategy, again in _again(study).items()
    ]
    head = ["study", "strategy", "mean Dice", "another seed", "difference", "fold by fold"]
    return markdown([*head, "site that changed most", "case that changed most"], rows)


def _again(study: str) -> dict[str, list[Result]]:
    try:
        return read(study, "another_seed")
    except NotFinished:
        return {}


def _row(first: list[Result], again: list[Result]) -> list[str]:
    before, after = cases(first), cases(again)
    means = [performance(site_means(pooled)).mean for pooled in (before, after)]
    sites = {
        site: after_mean - site_means(before)[site]
        for site, after_mean in site_means(after).items()
    }
    single = [
        dice - before[site][case] for site, scores in after.items() for case, dice in scores.items()
    ]
    site, most = max(sites.items(), key=lambda item: abs(item[1]))
    moved = [words(difference(again, first), signed=True), by_fold(again, first)]
    return [
        *(f"{mean:.3f}" for mean in means),
        *moved,
        f"{most:+.3f} ({site})",
        f"{max(single, key=abs):+.2f}",
    ]
