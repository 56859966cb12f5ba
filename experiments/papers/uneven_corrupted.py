# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Two of ten clients have noisy volumes, and all train by cross-entropy, as FedISM's authors do.

All clients are tested with the same volumes, corrupted clients with noise in them. A group's value
of a case is the mean over its clients, so that a case counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import uneven
from reading import (
    NOTHING,
    BySeed,
    Result,
    closing,
    hierarchical_difference,
    markdown,
    shown_name,
    words,
)
from study import Study

STUDIES = ("uneven_corrupted",)
GROUPS = ("corrupted", "clean")


def table() -> str:
    """A row per method, after the rounds that were planned."""
    return table_of(STUDIES[0])


def table_of(study: str) -> str:
    """A row per method: Dice of both groups, gains over FedAvg, and who is sharper.

    Args:
        study: name of one with corrupted clients.
    """
    found = uneven.complete(study)
    clients = Study.read(study).arguments["groups"]
    values = {name: of_groups(results, clients) for name, results in found.items()}
    baseline = values.get("FedAvg")
    rows = []
    for name, of_method in values.items():
        row = [shown_name(name)]
        for group in GROUPS:
            scores = uneven.pooled(of_method)[group]
            row.append(f"{np.mean(list(scores.values())):.3f}")
        for group in GROUPS:
            row.append(_gain(of_method, baseline, group, is_baseline=name == "FedAvg"))
        row.append(_ratios(found[name], clients))
        rows.append(row)
    head = [
        "method",
        "corrupted clients",
        "clean clients",
        "corrupted above FedAvg",
        "clean above FedAvg",
        "sharpness, corrupted / clean, each seed",
    ]
    return markdown(head, rows)


def of_groups(
    results: Iterable[Result], clients: Mapping[str, Sequence[str]]
) -> dict[Any, dict[str, dict[str, float]]]:
    """Seed -> group -> test case -> mean Dice over the group's clients."""
    found: dict[Any, dict[str, dict[str, float]]] = {}
    for seed, of_sites in uneven.by_seed(results).items():
        found[seed] = {}
        for group in GROUPS:
            scores: dict[str, list[float]] = {}
            for client in clients[group]:
                for case, score in of_sites[client].items():
                    scores.setdefault(case, []).append(score)
            found[seed][group] = {case: float(np.mean(of)) for case, of in scores.items()}
    return found


def _gain(values: BySeed, baseline: BySeed | None, group: str, is_baseline: bool) -> str:
    if baseline is None or is_baseline:
        return NOTHING
    one = uneven.only(values, group)
    return words(hierarchical_difference(one, uneven.only(baseline, group)), signed=True)


def _ratios(results: Iterable[Result], clients: Mapping[str, Sequence[str]]) -> str:
    """Write how many times sharper corrupted clients are at the end, seed by seed.

    Ditto's personal models were not measured.
    """
    ratios = []
    for result in results:
        measured = result["closing"]
        if any("sharpness" not in measured[client]["own"] for client in measured):
            return NOTHING
        sharpness = closing(result, "sharpness")
        means = {}
        for group in GROUPS:
            means[group] = float(np.mean([sharpness[client] for client in clients[group]]))
        ratios.append(f"{means['corrupted'] / means['clean']:.1f}")
    return ", ".join(ratios)
