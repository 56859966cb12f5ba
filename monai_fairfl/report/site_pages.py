# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A page for each hospital, with its own numbers only, to be sent to it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.report import captions
from monai_fairfl.report.columns import NO_VALUE
from monai_fairfl.report.comparison import difference_words
from monai_fairfl.report.events import grouped
from monai_fairfl.report.figures import Figure, small_multiples
from monai_fairfl.report.judging import MEAN_DICE
from monai_fairfl.report.last_mile import MODEL_WORDS, gain_words
from monai_fairfl.report.page import dice_text, functions_of_rows
from monai_fairfl.report.plots import BY_ROUND
from monai_fairfl.report.scores import dice_words
from monai_fairfl.report.templates import filled
from monai_fairfl.utils.files import safe_name, write_atomically
from monai_fairfl.utils.words import count_words

TEMPLATE = "site.html.jinja"

SITE_REPORTS = "site_reports"
"""Folder of the report's pages that are for one site, each ``SITE.html``."""


def write_site_pages(report: Mapping[str, Any], folder: Path) -> None:
    """Write ``folder/site_reports/NAME.html`` for each site; those of others are deleted.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returns.
        folder: of the report.
    """
    pages = folder / SITE_REPORTS
    names = file_names(report)
    for site, name in names.items():
        write_atomically(pages / name, render_site(report, site).encode(errors="replace"))
    for file in pages.glob("*.html"):
        if file.name not in names.values():
            file.unlink()


def file_names(report: Mapping[str, Any]) -> dict[str, str]:
    """Site -> the name of its page; a name that cannot be a file's gets a number instead.

    >>> file_names({"sites": {"elm": {}, "../oak": {}}})
    {'elm': 'elm.html', '../oak': 'site-2.html'}
    """
    names: dict[str, str] = {}
    for number, site in enumerate(report["sites"], 1):
        try:
            name = safe_name(site)
        except ConfigError:
            name = f"site-{number}"
        while f"{name}.html" in names.values():
            name += "_"
        names[site] = f"{name}.html"
    return names


def render_site(report: Mapping[str, Any], site: str) -> str:
    """The page of one site: no number and no name of another site is in it.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returns.
        site: its name.
    """
    decision = report["decision"]
    hospital = decision["hospitals"][site]
    mine = {}
    for name, found in report["strategies"].items():
        if site in found["sites"]:
            mine[name] = found
    values = {
        "site": site,
        "strategy": decision["strategy"],
        "hospital": hospital,
        "contributions": decision["contributions"]["meaning"],
        "source": decision["contributions"],
        "not_judged": _not_judged(report),
        "dice_rows": [_dice_row(name, found, site) for name, found in mine.items()],
        "last_mile": _last_mile_rows(mine, site),
        "figure": _by_round(mine, site),
        "data": _data_words(report["sites"][site]),
        "events": _events(report, site),
        "version": report["version"],
        "heads": _heads(mine),
        "captions": {
            "hospitals": captions.hospitals_caption(report),
            "dice": f"Mean {dice_words(report['measurement'])} over its cases.",
            "last_mile": captions.LAST_MILE,
        },
    }
    return filled(TEMPLATE, {**values, **functions_of_rows([hospital])})


def _not_judged(report: Mapping[str, Any]) -> dict[str, str]:
    """The strategy of the report, where it is not judged."""
    name = report["focus"]
    if name is None or report["strategies"][name]["judged"]:
        return {}
    why = report["strategies"][name]["not_judged"]
    if why.startswith(MEAN_DICE):
        # The mean is over the hospitals: no number of theirs is on this page.
        why = "the hospitals' mean Dice is too low to judge anything"
    return {name: why}


def _dice_row(name: str, strategy: Mapping[str, Any], site: str) -> list[str]:
    result = strategy["sites"][site]
    score = result["score"] or {"value": None, "stderr": None, "n": None}
    gain = NO_VALUE
    if result["gain"] is not None:
        gain = difference_words(result["gain"])
    cases = NO_VALUE if score["n"] is None else str(score["n"])
    return [name, dice_text(score["value"]), dice_text(score["stderr"]), cases, gain]


def _last_mile_rows(strategies: Mapping[str, Any], site: str) -> list[list[str]]:
    rows = []
    for name, found in strategies.items():
        mile = found["sites"][site]["last_mile"]
        if mile is None:
            continue
        for candidate, reached in mile["candidates"].items():
            dice = None if reached["score"] is None else reached["score"]["value"]
            taken = "yes" if candidate == mile["taken"] else "no"
            words = MODEL_WORDS[candidate]
            rows.append([name, words, dice_text(dice), gain_words(reached), taken])
    return rows


def _by_round(strategies: Mapping[str, Any], site: str) -> Figure | None:
    """One panel for each quantity, one line for each strategy."""
    figures = []
    for key, (title, x) in BY_ROUND.items():
        by_strategy = {}
        for name, found in strategies.items():
            if key != "contributions" or found["estimates_contributions"]:
                by_strategy[name] = found["series"][key].get(site) or []
        drawn = small_multiples({title: by_strategy}, list(strategies), y=title, x=x)
        if drawn is not None:
            figures.append(drawn)
    if not figures:
        return None
    panels = [panel for drawn in figures for panel in drawn.panels]
    legend = {}
    for drawn in figures:
        legend.update(drawn.legend)
    return Figure(panels, legend)


def _data_words(data: Mapping[str, Any]) -> str:
    """What the site brought, as far as its runs agree on it."""
    words = []
    if data["cases"] is not None:
        words.append(count_words(data["cases"], "training case"))
    if data["images"] is not None:
        words.append(f"{count_words(data['images'], 'image')} per epoch")
    if data["scored"] is not None:
        words.append(f"{count_words(data['scored'], 'case')} behind its Dice")
    if not words:
        return "What it brought is not recorded, or differs from run to run."
    return f"{', '.join(words)}."


def _events(report: Mapping[str, Any], site: str) -> list[list[str]]:
    """What happened, without the reasons: these may name other sites and their numbers."""
    rows = []
    for event in grouped([*report["events"], *report["free_riding"]]):
        if event["site"] == site:
            rows.append([event["strategy"], event["rounds"], event["kind"]])
    return rows


def _heads(strategies: Mapping[str, Any]) -> str:
    """The heads of the ledgers, which the site can compare with its receipts."""
    heads = [f"{name} {found['ledger_head']}" for name, found in strategies.items()]
    return f"Heads of the ledgers: {', '.join(heads)}."
