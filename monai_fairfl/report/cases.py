# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Each case's own score, from the folders of sites in one process, where the federation was asked
to share it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from monai_fairfl.report.collect import Run
from monai_fairfl.report.scores import CLOSING
from monai_fairfl.utils.spreadsheets import csv_text, read_csv_text

ROUNDING = 1e-5  # of the six decimals that a site writes


def cases_csv(runs: Sequence[Run], warnings: list[str]) -> str | None:
    """The closing score of every case of the runs whose ``config.json`` has ``share_cases``;
    ``None`` without one.

    Args:
        runs: of the report.
        warnings: gets a line for each score in the ledger whose cases were not found.

    Returns:
        The table, one row for each case and metric: ``test_score:dice``, and ``test_score:CLASS``
        of several classes.
    """
    sharing = [run for run in runs if run.config.get("share_cases") is True and run.end is not None]
    if not sharing:
        return None
    fields = ("run", "strategy", "seed", "fold", "site", "case", "metric", "value")
    rows = [row for run in sharing for row in _rows(run, warnings)]
    return csv_text(fields, rows)


def _rows(run: Run, warnings: list[str]) -> Iterator[dict[str, Any]]:
    for site in run.sites:
        for measurement in CLOSING:
            score = run.final(site, measurement)
            if score is None:
                continue
            cases = _cases_behind(run, site, measurement, score.value)
            if cases is None:
                warnings.append(
                    f"{run.name}: {site} has no table of the cases behind its {measurement}"
                )
                continue
            yield from _long(run, site, measurement, cases)


def _cases_behind(
    run: Run, site: str, measurement: str, mean: float
) -> list[dict[str, str]] | None:
    """The table whose mean is the one in the ledger: an earlier attempt at the end may have left
    others.
    """
    state = run.path / "sites" / site / "state"
    for name in (f"personal_{measurement}", measurement):
        prefix = f"{run.path.resolve().name}-{name}-{len(run.rounds)}-"
        for file in sorted(state.glob("*.csv")):
            if not file.name.startswith(prefix):
                continue
            cases = _read(file)
            scores = [float(case["dice"]) for case in cases]
            known = [value for value in scores if not math.isnan(value)]
            if known and abs(sum(known) / len(known) - mean) < ROUNDING:
                return cases
    return None


def _read(file: Path) -> list[dict[str, str]]:
    return read_csv_text(file.read_bytes().decode())


def _long(
    run: Run, site: str, measurement: str, cases: Sequence[dict[str, str]]
) -> Iterator[dict[str, Any]]:
    """A row for each case and column of the site's table; a structure that a case does not label
    has none.
    """
    about = {
        "run": run.name,
        "strategy": run.method,
        "seed": run.seed,
        "fold": run.fold,
        "site": site,
    }
    for case in cases:
        for column, value in case.items():
            if column == "case" or math.isnan(float(value)):
                continue
            yield {
                **about,
                "case": case["case"],
                "metric": f"{measurement}:{column}",
                "value": float(value),
            }
