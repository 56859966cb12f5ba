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
from dataclasses import asdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.messages import to_json
from monai_fairfl.report.collect import Number, Run, load_runs
from monai_fairfl.report.partners import CLOSING
from monai_fairfl.report.scores import CASES_OF, Entry
from monai_fairfl.report.summary import find_references, summarise
from monai_fairfl.report.write import CASE_COLUMNS, case_rows, write_files
from monai_fairfl.statistics.paired import CaseScore, compare_paired
from monai_fairfl.utils.files import write_atomically
from monai_fairfl.utils.spreadsheets import csv_text

ENOUGH_SEEDS = 5

NOTES = (
    "p-values are over the cases of these trainings: a small p-value does not show that another "
    "seed would give the same difference. The interval is over seeds and cases, and gives each "
    "hospital the same weight. If the two disagree, trust the interval, unless hospitals have few "
    "cases: then test more.",
    "Fewer than five seeds give too narrow an interval or none: the bootstrap underestimates the "
    "spread of few values. Use five seeds or more.",
)

ENOUGH_CASES = 5
"""Of fewer cases of a site, the bootstrap finds too small a spread."""

COLUMNS = (
    *("metric", "quantity", "strategy", "reference", "site", "seed"),
    *("value", "low", "high", "p_value", "p_holm"),
)
"""Of ``comparison.csv``, one number a row; see :func:`comparison_csv`."""


def write_comparison(
    out: Path,
    plan: Mapping[str, Any],
    runs: Sequence[Path],
    failed: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Write ``cases.csv``, ``comparison.json``, ``.csv`` and ``.html`` of finished runs.

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
    trainings = load_runs(runs)
    warnings: list[str] = []
    rows = case_rows(trainings, warnings) or []
    write_atomically(out / "cases.csv", csv_text(CASE_COLUMNS, rows).encode(errors="replace"))

    scores = _scores_by_metric(rows)
    compared = _compared(scores, list(plan["strategies"]), trainings)
    main = compared["main"]
    measurement = main.partition(":")[0]
    methods = [standing["strategy"] for standing in compared["metrics"][main]["strategies"]]
    entries = _entries(trainings, methods, scores[main], measurement)
    comparison = {
        "plan": {name: value for name, value in plan.items() if name != "data"},
        **compared,
        **summarise([entries], measurement, warnings, methods),
        "failed": dict(failed or {}),
    }
    tables = {"comparison": comparison_csv(comparison)}
    write_files(out, comparison, "comparison", trainings, tables)
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
        entry = Entry(name, of_method, measurement, len(of_method[0].rounds), numbers, cases)
        entry.comparable = set(numbers) == set(entry.run.sites)
        entries.append(entry)
    for entry in entries:
        find_references(entry, entries)
    return entries


def _compared(
    scores: Mapping[str, Sequence[CaseScore]], strategies: Sequence[str], runs: Sequence[Run]
) -> dict[str, Any]:
    """Compare the strategies for each metric of the test cases.

    Where a site has scores of validation cases only, validation cases of all sites are compared.

    Args:
        scores: of each metric.
        strategies: those to compare, in the order of the tables.
        runs: the trainings.

    Returns:
        ``main``, ``metrics`` and ``notes`` of :func:`write_comparison`.

    Raises:
        ConfigError: when no two strategies have the main metric of the same cases.
    """
    sites_of = {n: {score.site for score in scores.get(f"{n}:dice", ())} for n in CLOSING}
    everyone = set().union(*sites_of.values())
    if not everyone:
        raise ConfigError(f"no case has a score ({', '.join(CLOSING)}): the runs must share cases")
    scored = [name for name in CLOSING if sites_of[name]]
    measurement = min(scored, key=lambda name: sites_of[name] != everyone)
    main = f"{measurement}:dice"
    metrics: dict[str, Any] = {main: _plain(scores[main], strategies)}
    for site in sorted({site for run in runs for site in run.sites} - sites_of[measurement]):
        words = f"site {site} is left out: it has no score of a {CASES_OF[measurement]} case"
        metrics[main]["left_out"].append(words)
    seeds = metrics[main]["seeds"]
    notes = list(NOTES if len(seeds) < ENOUGH_SEEDS else NOTES[:1])
    few = [site for site, n in metrics[main]["cases"].items() if n < ENOUGH_CASES]
    if few and len(seeds) > 1:
        notes.append(
            f"{', '.join(few)} tested fewer than {ENOUGH_CASES} cases: the interval is too narrow."
        )
    if measurement != CLOSING[0]:
        untested = ", ".join(sorted(everyone - sites_of[CLOSING[0]]))
        notes.append(
            f"No test case of {untested} was scored: these are validation cases of all "
            "hospitals, on which models were chosen."
        )
    for metric in sorted(scores):
        if metric not in metrics and metric.startswith(f"{measurement}:"):
            try:
                metrics[metric] = _plain(scores[metric], strategies)
            except ConfigError as error:  # a structure that few cases label
                notes.append(f"{metric} is not compared: {error}")
    return {"main": main, "metrics": metrics, "notes": notes}


def _plain(scores: Sequence[CaseScore], strategies: Sequence[str]) -> dict[str, Any]:
    """A comparison as JSON has it: ``null`` for what is not known."""
    compared = compare_paired(scores, strategies)
    pairs = [asdict(pair) | {"difference": pair.difference._asdict()} for pair in compared.pairs]
    # JSON's keys are texts.
    plain: dict[str, Any] = json.loads(json.dumps(to_json(asdict(compared) | {"pairs": pairs})))
    return plain


def _scores_by_metric(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[CaseScore]]:
    """Metric -> the scores of its cases.

    A case is tested in one fold, and may validate in several: then it counts with the mean over the
    folds in which every training that scored it has it, so that the models of all strategies were
    trained on the same cases.
    """
    scores: dict[str, list[CaseScore]] = {}
    for row in rows:
        about = [row[name] for name in ("strategy", "seed", "fold", "site", "case", "value")]
        scores.setdefault(row["metric"], []).append(CaseScore(*about))
    for metric, of_metric in scores.items():
        if metric.startswith(f"{CLOSING[0]}:"):
            continue
        by_fold: dict[tuple[str, int, str, str], dict[int | None, float]] = {}
        common: dict[tuple[str, str], set[int | None]] = {}
        for score in of_metric:
            key = (score.strategy, score.seed, score.site, score.case)
            by_fold.setdefault(key, {})[score.fold] = score.value
        for (*_, site, case), folds in by_fold.items():
            common.setdefault((site, case), set(folds)).intersection_update(folds)
        scores[metric] = []
        for (strategy, seed, site, case), folds in by_fold.items():
            counted = [value for fold, value in folds.items() if fold in common[site, case]]
            if counted:
                scores[metric].append(CaseScore(strategy, seed, None, site, case, mean(counted)))
    return scores


def comparison_csv(comparison: Mapping[str, Any]) -> str:
    """The numbers of a comparison, one in each row.

    ``quantity`` is ``mean`` (over seeds of the mean of sites), ``std`` (over seeds), ``rank``,
    ``mean_of_seed``, ``mean_of_site`` or ``difference`` (of ``strategy`` less ``reference``, with
    the ends of its interval and its p-values). What is not known is an empty cell.

    Args:
        comparison: what :func:`write_comparison` returned.
    """
    rows: list[dict[str, Any]] = []
    for metric, found in comparison["metrics"].items():
        for standing in found["strategies"]:
            numbers = [("mean", {"value": standing["mean"]}), ("std", {"value": standing["std"]})]
            numbers.append(("rank", {"value": standing["mean_rank"]}))
            for key in ("seed", "site"):
                for name, value in standing[f"by_{key}"].items():
                    numbers.append((f"mean_of_{key}", {key: name, "value": value}))
            about = {"metric": metric, "strategy": standing["strategy"]}
            rows += [{**about, "quantity": quantity, **number} for quantity, number in numbers]
        for pair in found["pairs"]:
            value = pair["difference"]["estimate"]
            row = {"metric": metric, "quantity": "difference", "value": value}
            rows.append({**pair, **pair["difference"], **row})
    return csv_text(COLUMNS, rows)
