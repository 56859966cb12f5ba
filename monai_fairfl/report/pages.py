# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The pages: HTML files that work offline, print well, and show names from outside as text.

A hospital's own page has its own numbers only.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.report.collect import Case, Run
from monai_fairfl.report.events import FACTOR, ROUNDS, grouped
from monai_fairfl.report.hospitals import (
    LAST_MILE,
    first_look_lines,
    headline,
    interval_words,
    shown_strategies,
)
from monai_fairfl.report.plots import dots, lines, points
from monai_fairfl.report.scores import CASES_OF, FLOOR, MARGIN, VERDICTS
from monai_fairfl.utils.files import safe_name, write_atomically

SITE_REPORTS = "site_reports"
"""Folder of the pages that are for one site, each ``SITE.html``."""

BY_ROUND = {
    # The models that a site received: 0 before the first round, the last after all rounds.
    "dice": ("Validation Dice", "rounds finished", "Dice, 0 to 1"),
    "train_loss": ("Training loss", "round", "loss"),
    "weights": ("Weight", "round", "share of the average"),
    "contributions": ("The method's own contributions", "round", "as the method has it"),
    "free_rider_scores": ("Free-rider score", "round", "score"),
}
"""Series of a strategy -> title of its drawing, and the names of its axes."""


def write_pages(report: Mapping[str, Any], folder: Path, name: str, runs: Sequence[Run]) -> None:
    """Write the consortium's page, and ``site_reports/SITE.html`` for each site.

    Pages of other sites are deleted.

    Args:
        report: what ``report.json`` or ``comparison.json`` has.
        folder: of the report.
        name: of the page.
        runs: of the report, whose folders have the time of rounds and pictures of cases.

    Raises:
        ConfigError: when jinja2 or matplotlib is not installed.
    """
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"{name} needs jinja2 and matplotlib ({error}); all other files are written without "
            'them: pip install "monai_fairfl[report]"'
        ) from error
    pages = {folder / name: render(report, runs)}
    focus = report["decision"]["strategy"]
    shown = [run for run in runs if focus and run.name in report["strategies"][focus]["runs"]]
    for site, file in file_names(report["sites"]).items():
        pictures = shown[0].pictures(site) if shown else None
        pages[folder / SITE_REPORTS / file] = render_site(report, site, pictures)
    for path, text in pages.items():
        write_atomically(path, text.encode(errors="replace"))
    for path in (folder / SITE_REPORTS).glob("*.html"):
        if path not in pages:
            path.unlink()


def file_names(sites: Sequence[str] | Mapping[str, Any]) -> dict[str, str]:
    """Site -> the name of its page; a name that cannot be a file's gets a number instead.

    >>> file_names(["elm", "../oak"])
    {'elm': 'elm.html', '../oak': 'site-2.html'}
    """
    names: dict[str, str] = {}
    for number, site in enumerate(sites, 1):
        try:
            name = safe_name(site)
        except ConfigError:
            name = f"site-{number}"
        while f"{name}.html" in names.values():
            name += "_"
        names[site] = f"{name}.html"
    return names


def render(report: Mapping[str, Any], runs: Sequence[Run]) -> str:
    """The consortium's page."""
    order = list(VERDICTS)
    hospitals = report["decision"]["hospitals"]
    by_trouble = sorted(hospitals, key=lambda site: order.index(hospitals[site]["verdict"]))
    shown = shown_strategies(report)
    scores: dict[str, dict[str, Any]] = {}
    for site in by_trouble:
        results = {name: report["strategies"][name]["sites"].get(site, {}) for name in shown}
        scores[site] = {name: result.get("score") for name, result in results.items()}
    chart = ""
    if any(score for of_site in scores.values() for score in of_site.values()):
        chart = dots(scores, f"{CASES_OF[report['measurement']].capitalize()} Dice")
    return _filled(
        "report.html.jinja",
        report,
        sites=by_trouble,
        shown=shown,
        scores=scores,
        headline=headline(report),
        first_look=first_look_lines(report),
        files=file_names(report["sites"]),
        chart=chart,
        figures=_figures(report, runs),
        events=grouped(report["events"]),
        free_riding=grouped(report["free_riding"]),
    )


def _figures(report: Mapping[str, Any], runs: Sequence[Run]) -> dict[str, list[str]]:
    """Title -> drawings, one for each strategy that has points."""
    figures: dict[str, list[str]] = {}

    def draw(title: str, name: str, series: Mapping[str, Any], x: str, y: str) -> None:
        drawn = lines(series, f"{title}, {name}" if name else title, x, y)
        if drawn is not None:
            figures.setdefault(title, []).append(drawn)

    for name, found in report["strategies"].items():
        all_series = [(*BY_ROUND[key], found["series"][key]) for key in BY_ROUND]
        if not found["estimates_contributions"] or found["own_is_weight"]:
            del all_series[list(BY_ROUND).index("contributions")]
        for title, series in found["details"].items():
            all_series.append((f"The method's own: {title}", "round", title, series))
        for title, x, y, series in all_series:
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
    events = grouped([*report["events"], *report["free_riding"]])
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
        events=[event for event in events if event["site"] == site],
    )


def dice_words(value: float | None) -> str:
    """A Dice as a table shows it.

    >>> dice_words(0.81234), dice_words(None)
    ('0.812', '–')
    """
    return "–" if value is None else f"{value:.3f}"


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
    environment.globals.update(
        verdicts=VERDICTS,
        floor=FLOOR,
        margin=MARGIN,
        factor=FACTOR,
        rounds_in_row=ROUNDS,
        cases_of=CASES_OF,
        last_mile=LAST_MILE,
        interval=interval_words,
        dice=dice_words,
    )
    return environment
