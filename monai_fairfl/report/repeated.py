# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a comparison over seeds and folds found: its cases, numbers and tables.

``cases.csv`` holds every score. All other numbers are made of that file alone, by
:mod:`monai_fairfl.statistics.paired`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean
from typing import Any

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.protocol.values import to_json
from monai_fairfl.report.cases import cases_csv
from monai_fairfl.report.cautions import sites_with_empty_labels, sites_without_test_scores
from monai_fairfl.report.changes import changes_of
from monai_fairfl.report.collect import load_runs
from monai_fairfl.report.first_look import first_look_lines
from monai_fairfl.report.hospitals import decision_of
from monai_fairfl.report.plots import series_by_round
from monai_fairfl.report.repeated_hospitals import report_over_seeds
from monai_fairfl.report.repeated_sites import why_no_score
from monai_fairfl.report.repeated_validation import Validation, validation_over_seeds
from monai_fairfl.report.run import Run
from monai_fairfl.report.scores import CLOSING, TESTED
from monai_fairfl.report.summary import summarise
from monai_fairfl.statistics.paired import CaseScore, PairedComparison, compare_paired
from monai_fairfl.utils.files import write_atomically
from monai_fairfl.utils.spreadsheets import csv_text, read_csv_text
from monai_fairfl.utils.words import count_words

MEAN_DICE = "dice"
"""The column of a site's table that is the mean over the structures."""

ONE_TRAINING = (
    "p-values are over the cases of these trainings: a small p-value does not show that another "
    "seed would give the same difference. The interval is over seeds and cases."
)

ENOUGH_SEEDS = 5

FEW_SEEDS = (
    "Two to four seeds give too narrow an interval: the bootstrap underestimates the spread of few "
    "values. Use five seeds or more."
)

COLUMNS = (
    "metric",
    "quantity",
    "strategy",
    "reference",
    "site",
    "seed",
    "value",
    "low",
    "high",
    "p_value",
    "p_holm",
)
"""Of ``comparison.csv``, one number a row; see :func:`comparison_csv`."""


def write_comparison(
    out: Path,
    plan: Mapping[str, Any],
    runs: Sequence[Path],
    failed: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Write ``cases.csv``, ``comparison.json``, ``.csv`` and ``.html`` of finished runs.

    Equal runs give equal files.

    Args:
        out: folder of the files.
        plan: what was trained, plain JSON, with ``strategies``, ``seeds`` and ``folds``.
        runs: folders of finished runs that share their cases.
        failed: run -> why, of those that did not finish.

    Returns:
        What ``comparison.json`` holds: ``plan``, ``main`` (the metric that is compared first),
        ``metrics`` (name -> a :class:`~monai_fairfl.statistics.paired.PairedComparison`),
        ``notes``, ``warnings`` and ``failed``, and what :func:`first_screen` made.

    Raises:
        FederationError: when no run finished, or a ledger is broken.
        ConfigError: when no two strategies can be compared, after ``cases.csv`` is written; when
            jinja2 is missing, after all but the page is written.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:  # doctest: +ELLIPSIS
    ...     write_comparison(Path(folder), {"strategies": {}}, [], {"FedAvg, seed 0": "no disk"})
    Traceback (most recent call last):
    ...
    monai_fairfl.errors.FederationError: nothing can be compared, ... FedAvg, seed 0: no disk
    """
    reasons = dict(failed or {})
    if not runs:
        words = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise FederationError(f"nothing can be compared, because no training finished: {words}")
    trainings = load_runs(runs)
    warnings = [*sites_without_test_scores(trainings), *sites_with_empty_labels(trainings)]
    cases = cases_csv(trainings, warnings) or ""
    write_atomically(out / "cases.csv", cases.encode())

    compared = compared_cases(cases, list(plan["strategies"]), trainings)
    report = summarise(trainings, together=True)
    methods = _methods_of(compared)
    validation = validation_over_seeds(trainings, methods, report["doubted"])
    comparison = {
        "plan": {name: value for name, value in plan.items() if name != "data"},
        **compared,
        **first_screen(report, cases, compared, validation),
        "warnings": warnings,
        "failed": reasons,
    }
    files = {
        "comparison.json": json.dumps(comparison, indent=2, allow_nan=False) + "\n",
        "comparison.csv": comparison_csv(comparison),
    }
    for name, text in files.items():
        write_atomically(out / name, text.encode(errors="replace"))

    # The page goes last: the numbers are written where jinja2 is missing.
    from monai_fairfl.report.repeated_page import render_comparison

    page = render_comparison(comparison)
    write_atomically(out / "comparison.html", page.encode(errors="replace"))
    return comparison


def first_screen(
    report: Mapping[str, Any], cases: str, compared: Mapping[str, Any], validation: Validation
) -> dict[str, Any]:
    """The rows of the hospitals, what changed against FedAvg, and the means by round.

    Args:
        report: of all trainings, what :func:`~monai_fairfl.report.summary.summarise` returned.
        cases: the text of ``cases.csv``.
        compared: what :func:`compared_cases` made of it.
        validation: by which the strategy of the rows is chosen.

    Returns:
        ``decision`` and ``changes`` as ``report.json`` has them, ``series`` (quantity -> strategy
        -> site -> points with ``value``, ``least`` and ``most``), and ``first_look``, lines.
    """
    main = compared["main"]
    scores = _scores_by_metric(cases)[main]
    measurement, _, _ = main.partition(":")
    of_methods = report_over_seeds(report, scores, _methods_of(compared), validation.means)
    shown = {**of_methods, "measurement": measurement}
    for strategy in shown["strategies"].values():
        strategy["measurement"] = measurement
    decision = decision_of(shown, shown["focus"])
    federated = [run for run in shown["strategies"].values() if run["strategy"] != "Standalone"]
    # Of a single federation, nothing was chosen.
    if validation.left_out and len(federated) > 1:
        decision = replace(decision, why=f"{decision.why} {validation.left_out}")
    return {
        "decision": to_json(asdict(decision)),
        "changes": changes_of(shown),
        "series": series_by_round(report),
        "first_look": first_look_lines({**shown, "first_look": _first_looks_by_method(report)}),
    }


def _methods_of(compared: Mapping[str, Any]) -> list[str]:
    """The strategies that are compared in the main metric, in their order."""
    main = compared["metrics"][compared["main"]]
    return [standing["strategy"] for standing in main["strategies"]]


def _first_looks_by_method(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The first looks of all trainings, which name strategies with their number of trainings."""
    entries = []
    for entry in report["first_look"]:
        counts: dict[str, int] = {}
        for name in sorted(entry["strategies"]):
            method = report["strategies"][name]["method"]
            counts[method] = counts.get(method, 0) + 1
        words = [f"{method} ({count_words(n, 'training')})" for method, n in counts.items()]
        entries.append({**entry, "strategies": words})
    return entries


def compared_cases(
    cases: str, strategies: Sequence[str], runs: Sequence[Run] = ()
) -> dict[str, Any]:
    """Compare the strategies in the text of a ``cases.csv``, for each metric of the test cases.

    Where a site has scores of validation cases only, validation cases of all sites are compared.

    Args:
        cases: the text of the file.
        strategies: those to compare, in the order of the tables.
        runs: the trainings, which tell why a site of theirs has no score.

    Returns:
        ``main``, ``metrics`` and ``notes`` of :func:`write_comparison`.

    Raises:
        ConfigError: when no two strategies have the main metric of the same cases.
    """
    scores = _scores_by_metric(cases)
    measurement = _measurement(scores)
    main = f"{measurement}:{MEAN_DICE}"
    metrics = {main: _plain(compare_paired(scores[main], strategies))}
    methods = [standing["strategy"] for standing in metrics[main]["strategies"]]
    metrics[main]["left_out"] += _sites_left_out(scores[main], methods, measurement, runs)

    notes = [ONE_TRAINING]
    # One seed has no interval, and a note of its own.
    if 1 < len(metrics[main]["seeds"]) < ENOUGH_SEEDS:
        notes.append(FEW_SEEDS)
    if measurement != TESTED:
        notes.append(_why_validation(scores))
    for metric in sorted(scores):
        if metric in metrics or not metric.startswith(f"{measurement}:"):
            continue
        try:
            metrics[metric] = _plain(compare_paired(scores[metric], strategies))
        except ConfigError as error:  # a structure that few cases label
            notes.append(f"{metric} is not compared: {error}")
    return {"main": main, "metrics": metrics, "notes": notes}


def _measurement(scores: Mapping[str, Sequence[CaseScore]]) -> str:
    """The closing measurement that is compared: of test cases, unless a site has none of these.

    As in a report, a measurement of all sites goes before one of some sites.
    """
    sites_of = {name: _sites_with(scores, name) for name in CLOSING}
    everyone = set().union(*sites_of.values())
    of_all_sites = [name for name in CLOSING if sites_of[name] == everyone]
    of_some_sites = [name for name in CLOSING if sites_of[name]]
    if not of_some_sites:
        raise ConfigError(
            f"cases.csv has no score of a case ({', '.join(CLOSING)}): the runs must share their "
            "cases, and close with one of these measurements"
        )
    candidates = [*of_all_sites, *of_some_sites]
    return candidates[0]


def _sites_with(scores: Mapping[str, Sequence[CaseScore]], measurement: str) -> set[str]:
    """The sites that have a score of any case in any training."""
    return {score.site for score in scores.get(f"{measurement}:{MEAN_DICE}", ())}


def _why_validation(scores: Mapping[str, Sequence[CaseScore]]) -> str:
    """That validation cases are compared, and the sites for which they are."""
    tested = _sites_with(scores, TESTED)
    if not tested:
        return "No test cases were scored: these are validation cases, on which models were chosen."
    untested = sorted(_sites_with(scores, "score") - tested)
    return (
        f"No test case of {', '.join(untested)} was scored: these are validation cases of all "
        "hospitals, on which models were chosen."
    )


def _sites_left_out(
    scores: Sequence[CaseScore], methods: Sequence[str], measurement: str, runs: Sequence[Run]
) -> list[str]:
    """A line for each site of the runs that no case of the main metric is of.

    Args:
        scores: of the main metric.
        methods: the strategies that are compared in it.
        measurement: of which the metric is.
        runs: the trainings.
    """
    scored = {score.site for score in scores if score.strategy in methods}
    compared = [run for run in runs if run.method in methods]
    sites: set[str] = set()
    for run in runs:
        sites.update(run.sites)
    lines = []
    for site in sorted(sites - scored):
        why = why_no_score(compared, site, measurement)
        lines.append(f"site {site} is left out: {why}")
    return lines


def _scores_by_metric(cases: str) -> dict[str, list[CaseScore]]:
    """Metric -> the scores in the text of a ``cases.csv``."""
    scores: dict[str, list[CaseScore]] = {}
    for row in read_csv_text(cases):
        scores.setdefault(row["metric"], []).append(_case_score(row))
    for metric, of_metric in scores.items():
        # A case is tested in one fold, and may validate in several.
        if not metric.startswith(f"{TESTED}:"):
            scores[metric] = _means_over_folds(of_metric)
    return scores


def _means_over_folds(scores: Sequence[CaseScore]) -> list[CaseScore]:
    """One score for each case of a strategy and seed: the mean over the folds.

    Only folds count in which every training that scored the case has it, so that the models of all
    strategies were trained on the same cases.
    """
    values: dict[tuple[str, int, str, str], dict[int | None, float]] = {}
    for score in scores:
        key = (score.strategy, score.seed, score.site, score.case)
        by_fold = values.setdefault(key, {})
        if score.fold in by_fold:
            # Given twice, which the comparison refuses by its name.
            return list(scores)
        by_fold[score.fold] = score.value

    folds_of_case: dict[tuple[str, str], set[int | None]] = {}
    for (_, _, site, case), by_fold in values.items():
        folds_of_case.setdefault((site, case), set(by_fold)).intersection_update(by_fold)

    means = []
    for (strategy, seed, site, case), by_fold in values.items():
        counted = [value for fold, value in by_fold.items() if fold in folds_of_case[site, case]]
        if counted:
            means.append(CaseScore(strategy, seed, None, site, case, mean(counted)))
    return means


def _case_score(row: Mapping[str, str]) -> CaseScore:
    fold = None
    if row["fold"] != "":
        fold = int(row["fold"])
    return CaseScore(
        strategy=row["strategy"],
        seed=int(row["seed"]),
        fold=fold,
        site=row["site"],
        case=row["case"],
        value=float(row["value"]),
    )


def _plain(comparison: PairedComparison) -> dict[str, Any]:
    """A comparison as JSON has it: ``null`` for what is not known."""
    found = asdict(comparison)
    for pair in found["pairs"]:
        # asdict leaves a named tuple as it is.
        pair["difference"] = pair["difference"]._asdict()
    plain: dict[str, Any] = _without_nan(found)
    return plain


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    return value


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
            about = {"metric": metric, "strategy": standing["strategy"]}
            rows.append({**about, "quantity": "mean", "value": standing["mean"]})
            rows.append({**about, "quantity": "std", "value": standing["std"]})
            rows.append({**about, "quantity": "rank", "value": standing["mean_rank"]})
            for seed, value in standing["by_seed"].items():
                rows.append({**about, "quantity": "mean_of_seed", "seed": seed, "value": value})
            for site, value in standing["by_site"].items():
                rows.append({**about, "quantity": "mean_of_site", "site": site, "value": value})
        for pair in found["pairs"]:
            rows.append(
                {
                    "metric": metric,
                    "quantity": "difference",
                    "strategy": pair["strategy"],
                    "reference": pair["reference"],
                    "value": pair["difference"]["estimate"],
                    "low": pair["difference"]["low"],
                    "high": pair["difference"]["high"],
                    "p_value": pair["p_value"],
                    "p_holm": pair["p_holm"],
                }
            )
    return csv_text(COLUMNS, rows)
