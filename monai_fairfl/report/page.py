# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The page: one HTML file that works offline, prints well, and shows names from outside as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.report import captions
from monai_fairfl.report.columns import (
    collaboration_columns,
    comparable,
    fairness_columns,
    gain_columns,
    judged_groups,
    site_columns,
)
from monai_fairfl.report.credit import judged_words
from monai_fairfl.report.judging import first_look_lines
from monai_fairfl.report.last_mile import MODEL_WORDS, gain_words
from monai_fairfl.report.sentences import dice_words, rounds_words
from monai_fairfl.report.templates import filled
from monai_fairfl.report.valuations import title_of, trust_of

TEMPLATE = "template.html.jinja"
MANY = 12
"""More sites than these are rows of the tables, not columns."""


def render(report: Mapping[str, Any]) -> str:
    """The report as one HTML file.

    Style, plotly.js and data are inside, and the file's own policy forbids loading more.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returns.

    Raises:
        ConfigError: when jinja2 or plotly is not installed.
    """
    try:
        import jinja2  # noqa: F401
        from plotly.offline import get_plotlyjs

        from monai_fairfl.report.plots import plots
    except ImportError as error:
        raise ConfigError(
            f"report.html needs {error.name}; report.json and the CSV files are written without "
            'it: pip install "monai_fairfl[report]"'
        ) from error

    values = {
        "report": report,
        "first_look": first_look_lines(report),
        "captions": _captions(report),
        "plotlyjs": get_plotlyjs(),
        **_tables(report),
        **plots(report),
    }
    functions = {
        "rounds_words": rounds_words,
        "title_of": title_of,
        "judged_words": judged_words,
        "gain_words": gain_words,
        "trust_of": trust_of,
    }
    return filled(TEMPLATE, values, functions)


def _tables(report: Mapping[str, Any]) -> dict[str, Any]:
    """What the template shows as tables, and the notes beside them."""
    federated = []
    gain_notes = {}
    for name, found in report["strategies"].items():
        if found["strategy"] != "Standalone":
            federated.append(name)
        if found["no_standalone"]:
            gain_notes[name] = found["no_standalone"]
    return {
        "site_columns": site_columns(report),
        "fairness_columns": fairness_columns(report),
        "gain_columns": gain_columns(report),
        "collaboration_columns": collaboration_columns(report),
        "tall": _sites_are_rows(report),
        "judged": judged_groups(report),
        "notes": _notes(report),
        "federated": federated,
        "credited": [name for name in federated if len(report["strategies"][name]["credit"]) > 2],
        "gain_notes": gain_notes,
        "model_words": MODEL_WORDS,
        "adapted": [name for name in report["strategies"] if _has_last_mile(report, name)],
    }


def _has_last_mile(report: Mapping[str, Any], name: str) -> bool:
    """Whether any site of a run had a last mile."""
    sites = report["strategies"][name]["sites"].values()
    return any(site["last_mile"] is not None for site in sites)


def _captions(report: Mapping[str, Any]) -> dict[str, str]:
    """The paragraphs that depend on the runs."""
    return {
        "hospitals": captions.hospitals_caption(report),
        "dice": captions.dice_caption(report),
        "best": captions.best_caption(report, _sites_are_rows(report)),
        "gain": captions.gain_caption(report),
        "dice_by_round": captions.dice_by_round_caption(report),
        "weights": captions.weights_caption(report),
        "contributions": captions.contributions_caption(report),
        "free_riders": captions.free_riders_caption(report),
    }


def _sites_are_rows(report: Mapping[str, Any]) -> bool:
    return len(report["sites"]) > MANY


def _notes(report: Mapping[str, Any]) -> dict[str, str]:
    """Strategy -> why its scores are not compared."""
    compared = comparable(report)
    notes = {}
    for name, found in report["strategies"].items():
        if found["measurement"] != report["measurement"]:
            count = found["after_rounds"]
            rounds = "1 round" if count == 1 else f"{count} rounds"
            notes[name] = f"{dice_words(found['measurement'])} after {rounds}, not compared"
        elif name not in compared:
            notes[name] = "not compared: fewer sites or rounds"
    return notes
