# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The pages: HTML files that work offline, print well, and show names from outside as text.

A hospital's own page has its own numbers only.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from monai_fairfl.errors import ConfigError
from monai_fairfl.report import collect, hospitals, scores
from monai_fairfl.report.collect import Case, Run
from monai_fairfl.report.events import grouped
from monai_fairfl.report.partners import seconds_of_full_run
from monai_fairfl.report.plots import dots, lines, points
from monai_fairfl.utils.files import write_atomically
from monai_fairfl.valuation.free_riders import EVIDENCE

SITE_REPORTS = "site_reports"
"""Folder of the pages that are for one site, each ``SITE.html``."""

BY_ROUND = {
    # The models that a site received: 0 before the first round, the last after all rounds.
    "dice": ("Validation Dice", "rounds finished", "Dice, 0 to 1"),
    "train_loss": ("Training loss", "round", "loss"),
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
    focus = report["decision"]["strategy"]
    shown = [run for run in runs if focus and run.name in report["strategies"][focus]["runs"]]
    run = os.path.relpath(shown[0].path, folder) if shown else ""
    pages = {folder / name: render(report, runs, run)}
    for site in report["sites"]:
        pictures = shown[0].pictures(site) if shown else None
        pages[folder / SITE_REPORTS / page_of(site)] = render_site(report, site, pictures)
    for path, text in pages.items():
        write_atomically(path, text.encode(errors="replace"))
    for path in (folder / SITE_REPORTS).glob("*.html"):
        if path not in pages:
            path.unlink()


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
