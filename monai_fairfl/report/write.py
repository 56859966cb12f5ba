# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The consortium's report: one offline page, and the numbers behind it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from monai_fairfl.errors import FairFLError
from monai_fairfl.report.collect import load_runs
from monai_fairfl.report.csv_files import CASE_COLUMNS, case_rows, contributions_csv, metrics_csv
from monai_fairfl.report.pages import write_pages
from monai_fairfl.report.summary import summarise_runs
from monai_fairfl.utils.files import write_atomically
from monai_fairfl.utils.plain_values import object_of_json
from monai_fairfl.utils.spreadsheets import csv_text

logger = logging.getLogger(__name__)


def write_report(
    run_dirs: Sequence[str | Path],
    out: str | Path | None = None,
    failed: Mapping[str, str] | None = None,
    names: Mapping[str | Path, str] | None = None,
) -> dict[str, Any]:
    """Write the report of one run, or of several strategies side by side.

    First the chain of every ledger is verified. An unfinished run is reported as far as it went,
    and marked as unfinished. Equal runs give equal numbers; the page also shows the time of rounds.

    Args:
        run_dirs: folders with a ``ledger.jsonl``, or parents of such folders.
        out: folder for ``report.html``, ``report.json``, ``metrics.csv`` and ``contributions.csv``,
            for ``cases.csv`` if a run's ``share_cases`` allows it, and for ``site_reports/``, which
            has a page for each site with its own numbers only. ``None``: the given folder, or the
            folder that contains all of the given ones.
        failed: name of a strategy of the same comparison whose run failed -> the reason.
        names: folder of a run -> its name in the report. By default, it has its strategy's name.

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
    runs = load_runs(run_dirs, names)
    folder = Path(os.path.commonpath([Path(path).absolute() for path in run_dirs]))
    if out is not None:
        folder = Path(out)

    report = summarise_runs(runs)
    report["failed"] = dict(failed or {})
    # The scores of cases go first: what is wrong with them is a warning in the report.
    cases = case_rows(runs, report["warnings"])
    files = {"metrics.csv": metrics_csv(runs), "contributions.csv": contributions_csv(runs, report)}
    if cases is not None:
        files["cases.csv"] = csv_text(CASE_COLUMNS, cases)
    files["report.json"] = json.dumps(report, indent=2, allow_nan=False) + "\n"
    for name, text in files.items():
        write_atomically(folder / name, text.encode(errors="replace"))
    # The pages go last: the numbers are written where jinja2 is missing.
    write_pages(report, folder, "report.html", runs)
    return report


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
    except FairFLError as error:
        logger.warning("no report.html: %s", error)
    except Exception:  # whatever is wrong with a page, the run is done and its ledger whole
        logger.exception("no report.html")
    return None


def failures_of(folder: str | Path) -> dict[str, str]:
    """Name -> why, of the strategies that failed by the report of a folder; empty without one.

    Who writes that report again must hand them on: a strategy that failed may have left no run.

    Args:
        folder: of the report.

    >>> failures_of("no/such/folder")
    {}
    """
    try:
        report = object_of_json((Path(folder) / "report.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return dict(report.get("failed") or {})
