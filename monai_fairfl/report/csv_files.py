# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The files metrics.csv and contributions.csv; :mod:`~monai_fairfl.report.cases` has the third."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from monai_fairfl.report.numbers import numbers_by_class
from monai_fairfl.report.run import Run
from monai_fairfl.utils.spreadsheets import csv_text

RUN_COLUMNS = ("run", "strategy", "seed", "fold")
"""The columns of each CSV file that name the run of a row; ``run`` is its name in the report."""


def run_cells(run: Run) -> dict[str, Any]:
    """The cells of :data:`RUN_COLUMNS`."""
    return {"run": run.name, "strategy": run.method, "seed": run.seed, "fold": run.fold}


def metrics_csv(runs: Sequence[Run]) -> str:
    """Every measurement of every run, one row per class; see :func:`measurement_rows`."""
    columns = (
        *RUN_COLUMNS,
        "site",
        "round",
        "measurement",
        "class",
        "value",
        "stderr",
        "n",
        "of_round",
    )
    return csv_text(columns, (row for run in runs for row in measurement_rows(run)))


def measurement_rows(run: Run) -> Iterator[dict[str, Any]]:
    """The rows of metrics.csv for one run: round by round, then the closing measurements.

    ``round`` is the round in which a site measured; of a closing measurement the number of rounds.
    ``of_round`` is the round whose resulting model it measured: -1 is the initial model, and
    ``global_score`` of round 3 is of the result of round 2. A loss during training is of the
    training that begins with this model. Closing measurements carry the model's name:
    ``own:test_score``.
    """
    for record in run.rounds:
        of_round = record["of_round"]
        for site, measured in record["measurements"].items():
            for name, value in sorted(measured.items()):
                about = {"site": site, "round": record["round"], "measurement": name}
                yield from _rows_by_class(run, {**about, "of_round": of_round[name]}, value)

    if run.end is None:
        return
    for site, models in run.closing_scores.items():
        for model, measured in models.items():
            for name, value in sorted(measured.items()):
                about = {"site": site, "round": len(run.rounds), "measurement": f"{model}:{name}"}
                yield from _rows_by_class(run, {**about, "of_round": run.last_round}, value)


def _rows_by_class(run: Run, about: Mapping[str, Any], value: Any) -> Iterator[dict[str, Any]]:
    """A row for each class of one measurement."""
    for label, number in numbers_by_class(value).items():
        yield {**run_cells(run), **about, "class": label, **asdict(number)}


def contributions_csv(report: Mapping[str, Any]) -> str:
    """Contributions and aggregation weights by round.

    ``weight_is`` distinguishes a weight of the whole model from a mean over layers.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returned.
    """
    columns = (
        *RUN_COLUMNS,
        "round",
        "site",
        "contribution",
        "stderr",
        "aggregation_weight",
        "weight_is",
    )
    rows: list[dict[str, Any]] = []
    for name, found in report["strategies"].items():
        rows.extend(_contribution_rows(name, found))
    return csv_text(columns, rows)


def _contribution_rows(name: str, strategy: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each round and site with a contribution or a weight, in this order."""
    about = {
        "run": name,
        "strategy": strategy["method"],
        "seed": strategy["seed"],
        "fold": strategy["fold"],
    }
    layers = strategy["layers_averaged"]
    weight_is = "of the whole model" if layers is None else f"mean over {layers} layers"

    rows: dict[tuple[int, str], dict[str, Any]] = {}
    # Where a strategy estimates none, its contributions are its weights, which have their column.
    contributions = strategy["series"]["contributions"]
    if not strategy["estimates_contributions"]:
        contributions = {}
    for site, points in contributions.items():
        for point in points:
            row = rows.setdefault((point["round"], site), {})
            row["contribution"] = point["value"]
            row["stderr"] = point["stderr"]
    for site, points in strategy["series"]["weights"].items():
        for point in points:
            row = rows.setdefault((point["round"], site), {})
            row["aggregation_weight"] = point["value"]
            row["weight_is"] = weight_is
    for (number, site), row in sorted(rows.items()):
        yield {**about, "round": number, "site": site, **row}
