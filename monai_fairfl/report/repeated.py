# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A comparison over seeds and folds: the report of one run with more seeds, and its tables.

``cases.csv`` holds every score. All other numbers are made of these cases, by
:mod:`monai_fairfl.statistics.paired`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.messages import to_json
from monai_fairfl.report.collect import Number, Run, load_runs
from monai_fairfl.report.partners import CLOSING
from monai_fairfl.report.scores import Entry
from monai_fairfl.report.summary import find_references, summarise
from monai_fairfl.report.write import CASE_COLUMNS, case_rows, write_files
from monai_fairfl.run.resuming import DATA, recorded_config
from monai_fairfl.statistics.paired import CaseScore, compare_paired
from monai_fairfl.utils.files import write_atomically
from monai_fairfl.utils.spreadsheets import csv_text


def write_comparison(
    out: Path,
    plan: Mapping[str, Any],
    runs: Sequence[Path],
    failed: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Write ``cases.csv``, ``comparison.json`` and ``comparison.html`` of finished runs.

    Equal runs give equal numbers.

    Args:
        out: folder of the files.
        plan: what was trained, plain JSON, with ``strategies``, ``seeds`` and ``folds``.
        runs: folders of finished runs that share their cases.
        failed: run -> why, of those that did not finish.

    Returns:
        What ``comparison.json`` holds: that of a ``report.json`` with one entry for each strategy,
        and ``plan``, ``main`` (the metric that is compared first), ``metrics`` (name -> a
        :class:`~monai_fairfl.statistics.paired.PairedComparison`) and ``notes``.

    Raises:
        FederationError: when no run finished, or a ledger is broken.
        ConfigError: when no two strategies can be compared, after ``cases.csv`` is written; when
            jinja2 or matplotlib is missing, after all but the page is written.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:  # doctest: +ELLIPSIS
    ...     write_comparison(Path(folder), {"strategies": {}}, [], {"FedAvg, seed 0": "no disk"})
    Traceback (most recent call last):
    ...
    monai_fairfl.errors.FederationError: nothing can be compared, ... FedAvg, seed 0: no disk
    """
    if not runs:
        words = "; ".join(f"{name}: {reason}" for name, reason in (failed or {}).items())
        raise FederationError(f"nothing can be compared, because no training finished: {words}")
    data = recorded_config(out, DATA)
    trainings = [replace(run, data=data) for run in load_runs(runs)]
    warnings: list[str] = []
    rows = case_rows(trainings, warnings) or []
    write_atomically(out / "cases.csv", csv_text(CASE_COLUMNS, rows).encode(errors="replace"))

    compared, scores = _compared(rows, list(plan["strategies"]), trainings)
    measurement = compared["main"].partition(":")[0]
    standings = compared["metrics"][compared["main"]]["strategies"]
    methods = [standing["strategy"] for standing in standings]
    entries = _entries(trainings, methods, scores, measurement)
    comparison = {
        "plan": {name: value for name, value in plan.items() if name != "data"},
        **compared,
        **summarise(entries, [entries], measurement, warnings),
        "failed": dict(failed or {}),
    }
    write_files(out, comparison, "comparison", trainings, {})
    return comparison


def _entries(
    runs: Sequence[Run], methods: Sequence[str], scores: Sequence[CaseScore], measurement: str
) -> list[Entry]:
    """One entry for each strategy, with the cases that every strategy tested with every seed."""
    tested: dict[tuple[str, str], dict[tuple[str, int], float]] = {}
    for score in scores:
        if score.strategy in methods:
            of_case = tested.setdefault((score.site, score.case), {})
            of_case[score.strategy, score.seed] = score.value
    seeds = sorted({seed for of_case in tested.values() for _, seed in of_case})
    entries = []
    for name in methods:
        cases: dict[str, dict[str, list[float]]] = {}
        for (site, case), of_case in sorted(tested.items()):
            if len(of_case) == len(methods) * len(seeds):
                cases.setdefault(site, {})[case] = [of_case[name, seed] for seed in seeds]
        numbers = {}
        for site, by_case in cases.items():
            means = [mean(of_seeds) for of_seeds in by_case.values()]
            stderr = stdev(means) / math.sqrt(len(means)) if len(means) > 1 else None
            numbers[site] = Number(mean(means), stderr, len(means))
        of_method = [run for run in runs if run.method == name]
        entry = Entry(name, of_method, measurement, numbers, cases)
        entry.comparable = set(numbers) == set(entry.run.sites)
        entries.append(entry)
    for entry in entries:
        find_references(entry, entries)
    return entries


def _compared(
    rows: Sequence[Mapping[str, Any]], strategies: Sequence[str], runs: Sequence[Run]
) -> tuple[dict[str, Any], list[CaseScore]]:
    """Compare the strategies for each metric of the test cases, or else of the validation cases.

    Args:
        rows: of ``cases.csv``.
        strategies: those to compare, in the order of the tables.
        runs: the trainings.

    Returns:
        ``main``, ``metrics`` and ``notes`` of :func:`write_comparison`; and the main scores.

    Raises:
        ConfigError: when no two strategies have the main metric of the same cases.
    """
    scores: dict[str, list[CaseScore]] = {}
    for row in rows:
        about = [row[name] for name in ("strategy", "seed", "fold", "site", "case", "value")]
        scores.setdefault(row["metric"], []).append(CaseScore(*about))
    mains = [f"{name}:dice" for name in CLOSING if f"{name}:dice" in scores]
    if not mains:
        raise ConfigError(f"no case has a score ({', '.join(CLOSING)}): the runs must share cases")
    main, measurement = mains[0], mains[0].partition(":")[0]
    metrics: dict[str, Any] = {main: _plain(scores[main], strategies)}
    notes = []
    for metric in sorted(scores.keys() - metrics.keys()):
        if metric.startswith(f"{measurement}:"):
            try:
                metrics[metric] = _plain(scores[metric], strategies)
            except ConfigError as error:  # a structure that few cases label
                notes.append(f"{metric} is not compared: {error}")
    return {"main": main, "metrics": metrics, "notes": notes}, scores[main]


def _plain(scores: Sequence[CaseScore], strategies: Sequence[str]) -> dict[str, Any]:
    """A comparison as JSON has it: ``null`` for what is not known."""
    compared = compare_paired(scores, strategies)
    pairs = [asdict(pair) | {"difference": pair.difference._asdict()} for pair in compared.pairs]
    # JSON's keys are texts.
    plain: dict[str, Any] = json.loads(json.dumps(to_json(asdict(compared) | {"pairs": pairs})))
    return plain
