# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedISM, Table 1: Dice of clean and of corrupted clients.

10, 20 or 30 % of the clients are corrupted. Ten clients hold even shares, of one real clinic's
photographs (72 are tested) or of all generated hospitals' volumes (54); corrupted ones have the
larger shares: 12.5, 25 and 37.5 % of the volumes, 22 % of the photographs; all are tested with the
same images, clean clients with clean ones, corrupted clients with corrupted ones. Gaussian noise is
of severity 3, as in the paper: added to volumes where the network sees them, to photographs before
the network's view is taken, which averages most of it away. Motion blur is of severity 5.
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
    methods = {shown_name(method): method for method in METHODS}
    return markdown(["images", "method", *HEAD], rows_of(SETTINGS, methods))


def rows_of(settings: Mapping[tuple[str, str], str], methods: Mapping[str, str]) -> list[list[str]]:
    """Make a row per setting and method, of the settings that are complete.

    Args:
        settings: (study, setting) -> its name in the table.
        methods: name in the table -> strategy; those that were not planned for a setting have no
            row.

    Raises:
        NotFinished: the first setting lacks something.
    """
    rows: list[list[str]] = []
    for (study, setting), what in settings.items():
        try:
            rows += _rows_of_setting(study, setting, what, methods)
        except NotFinished:
            if not rows:
                raise
    return rows


def _rows_of_setting(
    study: str, setting: str, what: str, methods: Mapping[str, str]
) -> list[list[str]]:
    results = read(study, setting)
    groups = groups_of(study, setting)
    planned = Study.read(study).strategies_of(setting)
    rows = []
    for name, method in methods.items():
        if method in planned:
            rows.append([what, name, *row(results, method, groups)])
    return rows


def row(
    results: Mapping[str, Sequence[Result]], method: str, groups: Mapping[str, Sequence[str]]
) -> list[str]:
    """Clean Dice, corrupted Dice, and the gain in the latter."""
    cells = [
        words(group_dice(results[method], groups["clean"])),
        words(group_dice(results[method], groups["corrupted"])),
    ]
    if method == "FedAvg":
        return [*cells, "–", "–"]
    compared = results[method], results["FedAvg"], groups["corrupted"][:1]
    return [*cells, words(difference(*compared), signed=True), by_fold(*compared)]


def group_dice(results: Sequence[Result], sites: Sequence[str]) -> Interval:
    """Compute the Dice of a group with its interval.

    All its clients have the same model and the same tests, so one of them is enough.
    """
    pooled = cases(results)
    return interval_of({sites[0]: pooled[sites[0]]})


def groups_of(study: str, setting: str) -> dict[str, list[str]]:
    """Return the ``"corrupted"`` and the ``"clean"`` clients of a setting."""
    return dict(Study.read(study).settings[setting]["arguments"]["groups"])
