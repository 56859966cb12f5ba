# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedISM, Table 1: Dice of clean and of corrupted clients, with 10, 20 and 30 % of the clients
corrupted.

Ten clients hold even shares, of one real clinic's photographs (72 are tested) or of all generated
hospitals' volumes (54); corrupted ones have the larger shares: 12.5, 25 and 37.5 % of the volumes,
22 % of the photographs; all are tested with the same images, clean clients with clean ones,
corrupted clients with corrupted ones. Gaussian noise is of severity 3, as in the paper: added to
volumes where the network sees them, to photographs before the network's view is taken, which
averages most of it away. Motion blur is of severity 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reading import (
    NotFinished,
    Result,
    by_fold,
    cases,
    difference,
    interval_of,
    markdown,
    read,
    shown_name,
    words,
)
from study import Study

from monai_fairfl.statistics.intervals import Interval

STUDIES = ("quality", "quality_volumes")
SETTINGS = {
    ("quality", "noise20"): "photographs, noise, 20 %",
    ("quality", "severe20"): "photographs, noise of severity 5, 20 %",
    ("quality", "severe20_plain"): "the same, no noise or blur in augmentation",
    ("quality_volumes", "noise10"): "volumes, noise, 10 %",
    ("quality_volumes", "noise20"): "volumes, noise, 20 %",
    ("quality_volumes", "noise30"): "volumes, noise, 30 %",
    ("quality_volumes", "blur20"): "volumes, motion blur, 20 %",
}
METHODS = ("FedAvg", "qFedAvg", "AFL", "FairFed", "FedCE", "FedGA", "FedISM")
HEAD = ["clean", "corrupted", "corrupted, gain over FedAvg", "fold by fold"]


def table() -> str:
    """A row per setting and method, of the settings that are complete."""
    return markdown(
        ["images", "method", *HEAD],
        rows_of(SETTINGS, {shown_name(method): method for method in METHODS}),
    )


def rows_of(settings: Mapping[tuple[str, str], str], methods: Mapping[str, str]) -> list[list[str]]:
    """A row per setting and per method that was planned for it, under its name here, of the
    settings that have all.

    Raises:
        NotFinished: the first setting lacks something.
    """
    rows: list[list[str]] = []
    for (study, setting), what in settings.items():
        try:
            results, groups = read(study, setting), groups_of(study, setting)
            planned = Study.read(study).strategies_of(setting)
            here = {name: method for name, method in methods.items() if method in planned}
            rows += [[what, name, *row(results, method, groups)] for name, method in here.items()]
        except NotFinished:
            if not rows:
                raise
    return rows


def row(
    results: Mapping[str, Sequence[Result]], method: str, groups: Mapping[str, Sequence[str]]
) -> list[str]:
    """Clean Dice, corrupted Dice, and the gain in the latter."""
    both = results[method], results["FedAvg"], groups["corrupted"][:1]
    gain = (
        [words(difference(*both), signed=True), by_fold(*both)]
        if method != "FedAvg"
        else ["–", "–"]
    )
    return [
        *(words(group_dice(results[method], groups[group])) for group in ("clean", "corrupted")),
        *gain,
    ]


def group_dice(results: Sequence[Result], sites: Sequence[str]) -> Interval:
    """Dice of a group with its interval. All have the same model and the same tests, so one speaks
    for all.
    """
    pooled = cases(results)
    return interval_of({sites[0]: pooled[sites[0]]})


def groups_of(study: str, setting: str) -> dict[str, list[str]]:
    """``"corrupted"`` and ``"clean"`` clients of a setting."""
    return dict(Study.read(study).settings[setting]["arguments"]["groups"])
