# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a run's records hold over the rounds, per site, and whatever went wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from monai_fairfl.report.collect import Number, Run, entries
from monai_fairfl.run_folder.ledger import number_in
from monai_fairfl.valuation.free_riders import free_rider_history

FACTOR, ROUNDS = 5.0, 3
SUSPICIOUS = f"above {FACTOR:g} times the median of the other sites' in {ROUNDS} consecutive rounds"
FREE_RIDER_RULE = (
    f"A site is flagged when its score is {SUSPICIOUS}. The threshold was fixed beforehand. Honest sites whose images "
    "are unlike the others' score high too, in experiments with most of the flags: a reason to ask, not a proof."
)

Series = dict[str, list[dict[str, Any]]]
"""site -> points ``{"round", "value", ...}``; rounds in which the site was absent are left out."""


def dice_series(run: Run) -> Series:
    """Validation Dice after 0, 1, ... rounds of the model that the site would use: see
    :meth:`Run.dice`.
    """
    found: Series = {}
    for site in run.sites:
        points = run.dice(site)
        last = run.final(site, "score")
        if last is not None:
            points[len(run.rounds)] = last
        found[site] = [
            {"round": number, **asdict(point)} for number, point in sorted(points.items())
        ]
    return found


def contribution_series(run: Run) -> Series:
    """Contribution of each site in each round it took part in, with its standard error where the
    method has one.
    """
    found: Series = {site: [] for site in run.sites}
    for record in run.rounds:
        for site, value in record["contributions"].items():
            if number_in(value) is not None:
                found.setdefault(site, []).append(
                    {"round": record["round"], **asdict(Number.read(value))}
                )
    return found


def weight_series(run: Run) -> tuple[Series, int | None]:
    """Aggregation weight of each site in each round, and the number of layers it is a plain mean
    of, or ``None``.
    """
    found: Series = {site: [] for site in run.sites}
    layers = None
    for record in run.rounds:
        weights = record["aggregation"]
        if any(isinstance(value, Mapping) for value in weights.values()):
            layers = len(weights)
            weights = mean_over_layers(weights)
        for site, value in weights.items():
            if value is not None:
                found.setdefault(site, []).append({"round": record["round"], "value": float(value)})
    return found, layers


def free_rider_series(run: Run) -> tuple[Series, dict[str, int]]:
    """Free-rider score of each site by round, and site -> round of its first flag; see
    :data:`FREE_RIDER_RULE`.

    Of the rounds that averaged and measured ``global_score`` and ``local_score``.
    """
    history = free_rider_history(run.rounds, factor=FACTOR, rounds=ROUNDS)
    series = {
        site: [
            {"round": number, "value": value}
            for number, value in zip(history.rounds, values)
            if value is not None
        ]
        for site, values in history.scores.items()
    }
    return series, history.flagged


def mean_over_layers(weights: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Layer -> client -> weight, as client -> plain mean over the layers.

    >>> mean_over_layers({"conv": {"A": 0.2, "B": 0.8}, "fc": {"A": 0.4, "B": 0.6}})["A"].__round__(3)
    0.3
    """
    sites = sorted({site for layer in weights.values() for site in layer})
    return {
        site: sum(layer.get(site, 0.0) for layer in weights.values()) / len(weights)
        for site in sites
    }


def events(run: Run) -> Iterator[dict[str, Any]]:
    """Who was missing, what guards found, what was filled in: one row each, in order."""
    kinds = (
        ("missing", "missing"),
        ("guards", "guard"),
        ("notes", "note"),
        ("not_finite", "not finite"),
    )
    for record in [*run.rounds, *([run.end] if run.end else [])]:
        for key, kind in kinds:
            for site, text in sorted((record.get(key) or {}).items()):
                if kind == "not finite":
                    text = "dropped measurements: " + ", ".join(text)
                where = record.get("round", "end")
                yield {
                    "strategy": run.name,
                    "round": where,
                    "site": site,
                    "kind": kind,
                    "text": str(text),
                }


def measurement_rows(run: Run) -> Iterator[dict[str, Any]]:
    """Every measurement of the run, one row per class.

    ``round`` counts the rounds finished before: ``global_*`` of round r is of the model after r
    rounds, ``train_*`` and ``local_*`` are of the training done in round r. Closing measurements
    carry the model's name: ``own:test_score``.
    """
    measured = [
        (record["round"], site, found)
        for record in run.rounds
        for site, found in record["measurements"].items()
    ]
    for site, models in ((run.end or {}).get("scores") or {}).items():
        for model, found in models.items():
            measured.append(
                (len(run.rounds), site, {f"{model}:{name}": value for name, value in found.items()})
            )
    about = {"run": run.name, "strategy": run.method, "seed": run.seed, "fold": run.fold}
    for number, site, found in measured:
        for name, value in sorted(found.items()):
            for label, entry in entries(value):
                row = {"site": site, "round": number, "measurement": name, "class": label}
                yield {**about, **row, **asdict(entry)}
