# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The consortium's report: one offline page, and the numbers behind it."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from monai_fairfl.errors import FairFLError
from monai_fairfl.report.collect import Run, load_runs
from monai_fairfl.report.pages import write_pages
from monai_fairfl.report.partners import CLOSING
from monai_fairfl.report.summary import summarise_runs
from monai_fairfl.utils.files import write_atomically
from monai_fairfl.utils.spreadsheets import csv_text

logger = logging.getLogger(__name__)


def write_report(
    run_dirs: Sequence[str | Path],
    out: str | Path | None = None,
    failed: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Write the report of one run, or of several strategies side by side.

    First the chain of every ledger is verified. An unfinished run is reported as far as it went,
    and marked as unfinished. Equal runs give equal numbers; the page also shows the time of rounds.

    Args:
        run_dirs: folders with a ``ledger.jsonl``, or parents of such folders.
        out: folder for ``report.html``, ``report.json`` and ``metrics.csv``,
            for ``cases.csv`` if a run's ``share_cases`` allows it, and for ``site_reports/``, which
            has a page for each site with its own numbers only. ``None``: the given folder, or the
            folder that contains all of the given ones.
        failed: name of a strategy of the same comparison whose run failed -> the reason.

    Returns:
        The content of ``report.json``, see :func:`~monai_fairfl.report.summary.summarise`, and
        ``failed``.

    Raises:
        FederationError: if a ledger's chain is broken.
        ConfigError: if a folder contains no run; or, after all files but the pages are written, if
            jinja2 or matplotlib is missing.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from monai_fairfl.run.ledger import Ledger
    >>> with TemporaryDirectory() as folder:
    ...     opening = {"kind": "start", "strategy": "FedAvg", "clients": ["A"], "seed": 0}
    ...     Ledger(folder + "/ledger.jsonl").append(opening)
    ...     report = write_report([folder])
    ...     sorted(path.name for path in Path(folder).rglob("*.html"))
    ['A.html', 'report.html']
    >>> report["strategies"]["FedAvg"]["finished"]
    False
    """
    runs = load_runs(run_dirs)
    folder = Path(os.path.commonpath([Path(path).absolute() for path in run_dirs]))
    report = {**summarise_runs(runs), "failed": dict(failed or {})}
    # The scores of cases go first: what is wrong with them is a warning in the report.
    cases = case_rows(runs, report["warnings"])
    tables = {"metrics": metrics_csv(runs)}
    if cases is not None:
        tables["cases"] = csv_text(CASE_COLUMNS, cases)
    write_files(Path(out or folder), report, "report", runs, tables)
    return report


def write_files(
    folder: Path,
    report: Mapping[str, Any],
    name: str,
    runs: Sequence[Run],
    tables: Mapping[str, str],
) -> None:
    """Write the tables, ``NAME.json`` and the pages, which go last: they may lack jinja2."""
    files = {f"{table}.csv": text for table, text in tables.items()}
    files[f"{name}.json"] = json.dumps(report, indent=2, allow_nan=False) + "\n"
    for file, text in files.items():
        write_atomically(folder / file, text.encode(errors="replace"))
    write_pages(report, folder, f"{name}.html", runs)


def write_report_if_possible(
    run_dirs: Sequence[str | Path], out: str | Path, failed: Mapping[str, str] | None = None
) -> dict[str, Any] | None:
    """:func:`write_report` at the end of a run; an error is logged, and ``None`` is returned.

    The run is done whether or not a page of it can be written.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as no_run:
    ...     report = write_report_if_possible([no_run], out=no_run)
    >>> report is None
    True
    """
    try:
        return write_report(run_dirs, out, failed)
    except (
        Exception
    ) as error:  # whatever is wrong with a page, the run is done and its ledger whole
        known = isinstance(error, FairFLError)
        logger.warning("no report.html: %s", error, exc_info=not known)
        return None


# ---- the tables metrics.csv and cases.csv

RUN_COLUMNS = ("run", "strategy", "seed", "fold")
"""The columns of each table that name the run of a row; ``run`` is its name in the report."""

CASE_COLUMNS = (*RUN_COLUMNS, "site", "case", "metric", "value")
METRIC_COLUMNS = ("site", "round", "measurement", "class", "value", "stderr", "n", "of_round")


def metrics_csv(runs: Sequence[Run]) -> str:
    """Every number of every run, one row for each class.

    ``round`` is the round in which a site measured; of a closing measurement the number of rounds.
    ``of_round`` is the round whose resulting model it measured: -1 is the initial model, and
    ``global_score`` of round 3 is of the result of round 2. A loss during training is of the
    training that begins with this model. Closing measurements carry the model's name:
    ``own:test_score``. ``weight`` and ``contribution`` are the strategy's.
    """
    rows = []
    for run in runs:
        for row in run.table:
            about = {**run.cells, **row._asdict(), **row.number._asdict()}
            rows.append({**about, "class": row.label})
    return csv_text((*RUN_COLUMNS, *METRIC_COLUMNS), rows)


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
                found = run.cases(site, measurement)
                for case in found[1] if found is not None else ():
                    # Cases of another fold may have the same name, or number.
                    name = case["case"] if run.fold is None else f"fold {run.fold}/{case['case']}"
                    for column, value in case.items():
                        if column != "case" and not math.isnan(float(value)):
                            about = {**run.cells, "site": site, "case": name}
                            metric = f"{measurement}:{column}"
                            rows.append({**about, "metric": metric, "value": float(value)})
                if found is None and run.closing(site, measurement) is not None:
                    what = f"{measurement} of {site}"
                    warnings.append(f"{run.name}: there is no table of the cases behind {what}")
    return rows if sharing else None
