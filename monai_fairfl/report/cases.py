# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The file cases.csv: each case's own score, where the federation was asked to share it.

The scores are in the folders of sites that ran in one process with the server.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from monai_fairfl.report.csv_files import RUN_COLUMNS, run_cells
from monai_fairfl.report.run import Run
from monai_fairfl.report.scores import CLOSING
from monai_fairfl.utils.spreadsheets import csv_text, read_csv_text

ROUNDING = 1e-5
"""By how much a mean of scores may differ that a site writes with six decimals."""


def cases_csv(runs: Sequence[Run], warnings: list[str]) -> str | None:
    """The closing score of every case of the runs whose ``config.json`` has ``share_cases``.

    Args:
        runs: of the report.
        warnings: gets a line for each score in the ledger whose cases were not found.

    Returns:
        The table, one row for each case and metric: ``test_score:dice``, and ``test_score:CLASS``
        of several classes. ``None`` where no run shares its cases.
    """
    sharing = [run for run in runs if run.config.get("share_cases") is True and run.finished]
    if not sharing:
        return None
    rows: list[dict[str, Any]] = []
    for run in sharing:
        rows.extend(_rows_of_run(run, warnings))
    return csv_text((*RUN_COLUMNS, "site", "case", "metric", "value"), rows)


def _rows_of_run(run: Run, warnings: list[str]) -> Iterator[dict[str, Any]]:
    for site in run.sites:
        if site in run.withdrawn:
            continue
        for measurement in CLOSING:
            score = run.closing(site, measurement)
            if score is None:
                continue
            cases = _cases_behind(run, site, measurement, score.value)
            if cases is None:
                warnings.append(
                    f"{run.name}: {site} has no table of the cases behind its {measurement}"
                )
                continue
            yield from _rows_of_table(run, site, measurement, cases)


def _cases_behind(
    run: Run, site: str, measurement: str, mean: float
) -> list[dict[str, str]] | None:
    """The site's table whose mean Dice is the score in the ledger.

    An earlier attempt at the end may have left other tables.
    """
    state = run.path / "sites" / site / "state"
    for name in (f"personal_{measurement}", measurement):
        prefix = f"{run.path.resolve().name}-{name}-{len(run.rounds)}-"
        for file in sorted(state.glob("*.csv")):
            if not file.name.startswith(prefix):
                continue
            cases = read_csv_text(file.read_bytes().decode())
            scores = [float(case["dice"]) for case in cases]
            known = [score for score in scores if not math.isnan(score)]
            if known and abs(sum(known) / len(known) - mean) < ROUNDING:
                return cases
    return None


def _rows_of_table(
    run: Run, site: str, measurement: str, cases: Sequence[dict[str, str]]
) -> Iterator[dict[str, Any]]:
    """A row for each case and column of the site's table.

    A structure that a case does not label has none.
    """
    for case in cases:
        for column, value in case.items():
            if column == "case" or math.isnan(float(value)):
                continue
            yield {
                **run_cells(run),
                "site": site,
                "case": case["case"],
                "metric": f"{measurement}:{column}",
                "value": float(value),
            }
