# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The consortium's report: one offline page, and the numbers behind it.

A comparison over seeds and folds is the report of one run with more seeds, and its tables. Its
``cases.csv`` holds every score; all other numbers are made of these cases, by
:mod:`monai_fairfl.statistics.paired`.

The pages are HTML files that work offline, print well, and show names from outside as text. A
hospital's own page has its own numbers only.
"""

from __future__ import annotations

import base64
import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any
from urllib.parse import quote

from monai_fairfl.errors import ConfigError, FairFLError, FederationError
from monai_fairfl.messages import to_json
from monai_fairfl.report import collect, hospitals, scores
from monai_fairfl.report.collect import Case, Number, Run, load_runs
from monai_fairfl.report.events import grouped
from monai_fairfl.report.partners import CLOSING, seconds_of_full_run
from monai_fairfl.report.plots import dots, lines, points
from monai_fairfl.report.scores import Entry
from monai_fairfl.report.summary import find_references, summarise, summarise_runs
from monai_fairfl.run.resuming import DATA, recorded_config
from monai_fairfl.statistics import CaseScore, compare_paired
from monai_fairfl.utils.files import write_atomically
from monai_fairfl.utils.spreadsheets import csv_text
from monai_fairfl.valuation.free_riders import EVIDENCE

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
    """Write the tables, ``NAME.json`` and the pages, which go last: they may lack jinja2.

    The pages are the consortium's, and ``site_reports/SITE.html`` for each site; pages of other
    sites are deleted.

    Args:
        folder: of the report.
        report: what ``report.json`` or ``comparison.json`` has.
        name: of both files.
        runs: of the report, whose folders have the time of rounds and pictures of cases.
        tables: name -> text, as CSV.

    Raises:
        ConfigError: when jinja2 or matplotlib is not installed.
    """
    files = {folder / f"{table}.csv": text for table, text in tables.items()}
    files[folder / f"{name}.json"] = json.dumps(report, indent=2, allow_nan=False) + "\n"
    for file, text in files.items():
        write_atomically(file, text.encode(errors="replace"))
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"{name}.html needs jinja2 and matplotlib ({error}); all other files are written "
            'without them: pip install "monai_fairfl[report]"'
        ) from error
    focus = report["decision"]["strategy"]
    shown = [run for run in runs if focus and run.name in report["strategies"][focus]["runs"]]
    run = os.path.relpath(shown[0].path, folder) if shown else ""
    pages = {folder / f"{name}.html": render(report, runs, run)}
    for site in report["sites"]:
        pictures = shown[0].pictures(site) if shown else None
        pages[folder / SITE_REPORTS / page_of(site)] = render_site(report, site, pictures)
    for path, text in pages.items():
        write_atomically(path, text.encode(errors="replace"))
    for path in (folder / SITE_REPORTS).glob("*.html"):
        if path not in pages:
            path.unlink()


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
                    warnings.append(
                        f"{run.name}: there is no table of the cases behind {measurement} of {site}"
                    )
    return rows if sharing else None


# ---- a comparison of several seeds or folds


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
    trainings = load_runs(runs)
    for run in trainings:
        run.data = data
    warnings: list[str] = []
    rows = case_rows(trainings, warnings) or []
    write_atomically(out / "cases.csv", csv_text(CASE_COLUMNS, rows).encode(errors="replace"))

    compared, scores = _compared(rows, list(plan["strategies"]))
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
    rows: Sequence[Mapping[str, Any]], strategies: Sequence[str]
) -> tuple[dict[str, Any], list[CaseScore]]:
    """Compare the strategies for each metric of the test cases, or else of the validation cases.

    Args:
        rows: of ``cases.csv``.
        strategies: those to compare, in the order of the tables.

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


# ---- the pages


SITE_REPORTS = "site_reports"
"""Folder of the pages that are for one site, each ``SITE.html``."""

BY_ROUND = {
    # The models that a site received: 0 before the first round, the last after all rounds.
    "dice": ("Validation Dice", "rounds finished", "Dice, 0 to 1"),
    "train_loss": ("Training loss", "round", "loss"),
}
"""Series of a strategy -> title of its drawing, and the names of its axes."""


def page_of(site: str) -> str:
    """The name of a site's page, which is in its folder whatever the site's name.

    >>> page_of("elm"), page_of("../oak")
    ('elm.html', '..%2Foak.html')
    """
    return f"{quote(site, safe=' ', errors='replace')}.html"


def render(report: Mapping[str, Any], runs: Sequence[Run], run: str) -> str:
    """The consortium's page; ``run`` is the folder that is to be valued, seen from the page's."""
    order = list(scores.VERDICTS)
    rows = report["decision"]["hospitals"]
    by_trouble = sorted(rows, key=lambda site: order.index(rows[site]["verdict"]))
    dice: dict[str, dict[str, Any]] = {site: {} for site in by_trouble}
    for name in report["decision"]["shown"]:
        for site in by_trouble:
            dice[site][name] = report["strategies"][name]["sites"].get(site, {}).get("score")
    chart = ""
    if any(score for of_site in dice.values() for score in of_site.values()):
        chart = dots(dice, f"{scores.CASES_OF[report['measurement']].capitalize()} Dice")
    return _filled(
        "report.html.jinja",
        report,
        run=run,
        sites=by_trouble,
        dice=dice,
        page_of=page_of,
        chart=chart,
        figures=_figures(report, runs),
        full_time=timedelta(seconds=round(sum(map(seconds_of_full_run, runs)))),
        events=sorted(grouped(report["events"]), key=lambda event: event["kind"] not in EVIDENCE),
    )


def _figures(report: Mapping[str, Any], runs: Sequence[Run]) -> dict[str, list[str]]:
    """Title -> drawings, one for each strategy that has points."""
    figures: dict[str, list[str]] = {}

    def draw(title: str, name: str, series: Mapping[str, Any], x: str, y: str) -> None:
        drawn = lines(series, f"{title}, {name}" if name else title, x, y)
        if drawn is not None:
            figures.setdefault(title, []).append(drawn)

    for name, found in report["strategies"].items():
        for key, (title, x, y) in BY_ROUND.items():
            series = found["series"][key]
            draw(title, name, {site: series.get(site, []) for site in report["sites"]}, x, y)
    seconds = {}
    for run in runs:
        took = sorted(run.schedule.seconds.items())
        seconds[run.name] = [{"round": number, "value": value} for number, value in took]
    draw("Time of a round", "", seconds, "round", "seconds")
    return figures


def render_site(
    report: Mapping[str, Any], site: str, pictures: tuple[bytes, Sequence[Case]] | None = None
) -> str:
    """The page of one site: no number and no name of another site is in it.

    Args:
        report: what ``report.json`` or ``comparison.json`` has.
        site: its name.
        pictures: of :meth:`~monai_fairfl.report.collect.Run.pictures`.
    """
    mine = {n: found for n, found in report["strategies"].items() if site in found["sites"]}
    series = {name: found["series"]["dice"].get(site, []) for name, found in mine.items()}
    return _filled(
        "site.html.jinja",
        report,
        site=site,
        mine=mine,
        hospital=report["decision"]["hospitals"][site],
        drawing=lines(series, *BY_ROUND["dice"]),
        picture=base64.b64encode(pictures[0]).decode() if pictures else None,
        sizes=points(pictures[1]) if pictures else None,
        # The reasons of events may name other sites and their numbers.
        events=[event for event in grouped(report["events"]) if event["site"] == site],
    )


def _filled(template: str, report: Mapping[str, Any], **values: Any) -> str:
    """A template with its values, all of them escaped but drawings."""
    about = {"metrics": report.get("metrics", {}), "notes": report.get("notes", [])}
    about |= {"report": report, "decision": report["decision"]}
    return str(_environment().get_template(template).render(**about, **values))


@cache
def _environment() -> Any:
    """What compiles the templates, each once."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, ""),
        autoescape=True,
        extensions=["jinja2.ext.do"],
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"scores": scores, "hospitals": hospitals, "collect": collect}
    return environment
