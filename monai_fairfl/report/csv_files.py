# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The tables ``metrics.csv``, ``contributions.csv`` and ``cases.csv``, of the runs' numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from monai_fairfl.errors import in_words
from monai_fairfl.report.collect import Run
from monai_fairfl.report.contributions import estimates_contributions
from monai_fairfl.report.partners import CLOSING
from monai_fairfl.utils.spreadsheets import csv_text

RUN_COLUMNS = ("run", "strategy", "seed", "fold")
"""The columns of each table that name the run of a row; ``run`` is its name in the report."""

CASE_COLUMNS = (*RUN_COLUMNS, "site", "case", "metric", "value")
METRIC_COLUMNS = ("site", "round", "measurement", "class", "value", "stderr", "n", "of_round")
CONTRIBUTION_COLUMNS = (
    "round",
    "site",
    "contribution",
    "stderr",
    "aggregation_weight",
    "weight_is",
)


def metrics_csv(runs: Sequence[Run]) -> str:
    """Every measurement of every run, one row for each class.

    ``round`` is the round in which a site measured; of a closing measurement the number of rounds.
    ``of_round`` is the round whose resulting model it measured: -1 is the initial model, and
    ``global_score`` of round 3 is of the result of round 2. A loss during training is of the
    training that begins with this model. Closing measurements carry the model's name:
    ``own:test_score``.
    """
    rows = []
    for run in runs:
        for row in run.table:
            if row.of_round is not None:
                rows.append({**run.cells, **row._asdict(), "class": row.label})
    return csv_text((*RUN_COLUMNS, *METRIC_COLUMNS), rows)


def contributions_csv(runs: Sequence[Run], report: Mapping[str, Any]) -> str:
    """Contributions and aggregation weights by round.

    ``weight_is`` distinguishes a weight of the whole model from a mean over layers. Where a
    strategy estimates none, its contributions are its weights, which have their column.
    """
    rows: list[dict[str, Any]] = []
    for run in runs:
        layers = report["strategies"][run.name]["layers_averaged"]
        weight_is = "of the whole model" if layers is None else f"mean over {layers} layers"
        found: dict[tuple[int, str], dict[str, Any]] = {}
        for row in run.table:
            of_round = {"round": row.round, "site": row.site}
            if row.measurement == "weight":
                about = {"aggregation_weight": row.value, "weight_is": weight_is}
            elif row.measurement == "contribution" and estimates_contributions(run):
                about = {"contribution": row.value, "stderr": row.stderr}
            else:
                continue
            found.setdefault((row.round, row.site), {**run.cells, **of_round}).update(about)
        rows += [found[key] for key in sorted(found)]
    return csv_text((*RUN_COLUMNS, *CONTRIBUTION_COLUMNS), rows)


def case_rows(runs: Sequence[Run], warnings: list[str]) -> list[dict[str, Any]] | None:
    """The closing score of every case of the runs whose ``settings.json`` has ``share_cases``.

    The tables lie in the folders of sites that ran beside the server.

    Args:
        runs: of the report.
        warnings: gets a line for each score in the ledger whose cases were not found.

    Returns:
        A row for each case and metric: ``test_score:dice``, and ``test_score:CLASS`` of several
        classes. ``None`` where no run shares its cases.
    """
    sharing = [run for run in runs if run.config.get("share_cases") is True and run.end is not None]
    rows: list[dict[str, Any]] = []
    for run in sharing:
        for site in run.sites:
            for measurement in CLOSING:
                score = run.closing(site, measurement)
                if score is None:
                    continue
                what = f"{measurement} of {site}"
                try:
                    cases = run.cases_behind(site, measurement, score.value)
                    rows += _rows_of_table(run, site, measurement, cases or [])
                except (OSError, ValueError, KeyError) as error:
                    why = f"the table of the cases behind {what} is damaged ({in_words(error)})"
                    warnings.append(f"{run.name}: {why}; cases.csv leaves it out")
                    continue
                if cases is None:
                    warnings.append(f"{run.name}: there is no table of the cases behind {what}")
    return rows if sharing else None


def _rows_of_table(
    run: Run, site: str, measurement: str, cases: Sequence[Mapping[str, str]]
) -> Iterator[dict[str, Any]]:
    """A row for each case and column of the site's table, but structures that it does not label.

    A site's table names a case by as much of its file's path as the cases of one fold take. In a
    fold of one case, that is ``t2.nii.gz`` for every patient with a folder of his own. A loader
    that names no file numbers its cases, in each fold from 0. Such a case is named with its fold.
    """
    images = [image for part in run.split.get(site, {}).values() for image in part]
    for case in cases:
        name = case["case"]
        # Of several files, one per channel, the first is named in the table.
        files = sum(f"/{image.splitlines()[0]}".endswith(f"/{name}") for image in images)
        if run.fold is not None and (files > 1 or (files == 0 and name.isdecimal())):
            name = f"fold {run.fold}/{name}"
        for column, value in case.items():
            if column != "case" and not math.isnan(float(value)):
                about = {**run.cells, "site": site, "case": name}
                yield {**about, "metric": f"{measurement}:{column}", "value": float(value)}
