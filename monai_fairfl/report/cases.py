# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The scores of single cases, which lie in the folders of sites that ran beside the server.

The file cases.csv holds them where the federation was asked to share them. Paired differences are
made of them in any case: these show a mean and its error, and no case.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from monai_fairfl.errors import in_words
from monai_fairfl.report.csv_files import RUN_COLUMNS, run_cells
from monai_fairfl.report.run import Run
from monai_fairfl.report.scores import CLOSING
from monai_fairfl.utils.spreadsheets import csv_text, read_csv_text

ROUNDING = 1e-5
"""By how much a mean of scores may differ that a site writes with six decimals."""


def cases_csv(runs: Sequence[Run], warnings: list[str]) -> str | None:
    """The closing score of every case of the runs whose ``settings.json`` has ``share_cases``.

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


def paired_differences(run: Run, other: Run, measurement: str) -> dict[str, list[float]]:
    """site -> its Dice in ``run`` less that in ``other``, case by case.

    Only of sites whose tables lie in the folders of both runs and name the same cases.

    Args:
        run: whose scores count positive.
        other: whose scores are subtracted.
        measurement: a closing one, such as ``"test_score"``.
    """
    found = {}
    for site in run.sites:
        scores = _scores_by_case(run, site, measurement)
        others = _scores_by_case(other, site, measurement)
        if scores and scores.keys() == others.keys():
            found[site] = [scores[case] - others[case] for case in sorted(scores)]
    return found


def _scores_by_case(run: Run, site: str, measurement: str) -> dict[str, float]:
    """Case -> its Dice; empty where no whole table of cases with names is there."""
    score = run.closing(site, measurement)
    if score is None:
        return {}
    try:
        table = _cases_behind(run, site, measurement, score.value) or []
        scores = {case["case"]: float(case["dice"]) for case in table}
    except (OSError, ValueError, KeyError):  # a damaged table
        return {}
    # Cases without names are numbered in the loader's order, which may differ from run to run.
    numbers = [str(number) for number in range(len(table))]
    if len(scores) < len(table) or list(scores) == numbers:
        return {}
    return {case: value for case, value in scores.items() if not math.isnan(value)}


def _rows_of_run(run: Run, warnings: list[str]) -> Iterator[dict[str, Any]]:
    for site in run.sites:
        for measurement in CLOSING:
            score = run.closing(site, measurement)
            if score is None:
                continue
            try:
                cases = _cases_behind(run, site, measurement, score.value)
                rows = list(_rows_of_table(run, site, measurement, cases or []))
            except (OSError, ValueError, KeyError) as error:
                warnings.append(
                    f"{run.name}: the table of the cases behind {measurement} of {site} is damaged "
                    f"({in_words(error)}); cases.csv leaves it out"
                )
                continue
            if cases is None:
                warnings.append(
                    f"{run.name}: {site} has no table of the cases behind its {measurement}"
                )
            yield from rows


def _cases_behind(
    run: Run, site: str, measurement: str, mean: float
) -> list[dict[str, str]] | None:
    """The site's table whose mean Dice is the score in the ledger.

    An earlier attempt at the end may have left other tables.
    """
    state = run.path / "sites" / site / "state"
    # As the run was begun: its folder may be renamed.
    run_name = run.start.get("run", run.path.resolve().name)
    for name in (f"personal_{measurement}", measurement):
        prefix = f"{run_name}-{name}-{len(run.rounds)}-"
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
        name = _name_over_folds(run, site, case["case"])
        for column, value in case.items():
            if column == "case" or math.isnan(float(value)):
                continue
            yield {
                **run_cells(run),
                "site": site,
                "case": name,
                "metric": f"{measurement}:{column}",
                "value": float(value),
            }


def _name_over_folds(run: Run, site: str, case: str) -> str:
    """The name of a case, with its fold where a case of another fold may have the same name.

    A site's table names a case by as much of its file's path as the cases of one fold take. In a
    fold of one case, that is ``t2.nii.gz`` for every patient with a folder of his own. A loader
    that names no file numbers its cases, in each fold from 0.
    """
    if run.fold is None:
        return case
    files_so_called = 0
    for images in run.split.get(site, {}).values():
        for image in images:
            # Of several files, one per channel, the first is named in the table.
            first, _, _ = image.partition("\n")
            files_so_called += f"/{first}".endswith(f"/{case}")
    is_number = case.isdecimal() and files_so_called == 0
    if files_so_called > 1 or is_number:
        return f"fold {run.fold}/{case}"
    return case
