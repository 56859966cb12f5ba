# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The page: one HTML file that works offline, prints well, and shows every name from outside as
text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.report.details import Drawn, heat_maps, label_of, line_plots
from monai_fairfl.report.judging import first_look_lines
from monai_fairfl.report.sentences import dice_words, rounds_words
from monai_fairfl.report.tables import (
    collaboration_columns,
    columns,
    comparable,
    gain_columns,
    judged_groups,
)
from monai_fairfl.report.valuations import bars_of, title_of, trust_of

TEMPLATE = "template.html.jinja"
MANY = 12
"""More sites than these are rows of the tables, not columns."""


def render(report: Mapping[str, Any]) -> str:
    """The report as one HTML file: style, plotly.js and data are inside, and its own policy forbids
    loading more.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returns.

    Raises:
        ConfigError: when jinja2 or plotly is not installed.
    """
    try:
        import jinja2
        from plotly.offline import get_plotlyjs

        from monai_fairfl.report import figures
    except ImportError as error:
        raise ConfigError(
            f"report.html needs {error.name}; report.json and the CSV files are written without it: "
            'pip install "monai_fairfl[report]"'
        ) from error
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals |= {"rounds_words": rounds_words, "dice_words": dice_words}
    environment.globals |= {"title_of": title_of, "trust_of": trust_of}
    template = environment.from_string(
        resources.files(__package__).joinpath(TEMPLATE).read_text(encoding="utf-8")
    )
    sites, shown = list(report["sites"]), columns(report)

    def series(key: str) -> dict[str, Any]:
        return {name: found["series"][key] for name, found in report["strategies"].items()}

    extra = len(collaboration_columns(report))
    return template.render(
        report=report,
        site_columns=[column for column in shown if column.site],
        fairness_columns=[column for column in shown[: len(shown) - extra] if not column.site],
        collaboration_columns=shown[len(shown) - extra :],
        gain_columns=gain_columns(report),
        federated=[
            name
            for name, found in report["strategies"].items()
            if found["strategy"] != "Standalone"
        ],
        tall=len(sites) > MANY,
        judged=judged_groups(report),
        first_look=first_look_lines(report),
        notes=_notes(report),
        gain_notes={
            name: found["no_standalone"]
            for name, found in report["strategies"].items()
            if found["no_standalone"]
        },
        figures={
            "dice": figures.small_multiples(
                series("dice"), sites, "Validation Dice", "rounds finished"
            ),
            "weights": figures.small_multiples(series("weights"), sites, "Aggregation weight"),
            "contributions": figures.small_multiples(
                series("contributions"), sites, "Contribution", bands=True
            ),
            "free-riders": figures.small_multiples(
                series("free_rider_scores"), sites, "Free-rider score"
            ),
        },
        line_plots=[
            (shown, figures.small_multiples(shown.found, sites, shown.quantity.axis))
            for shown in line_plots(report)
        ],
        heat_maps=[
            (
                strategy,
                shown,
                found["round"],
                figures.heat_map(found["sites"], _labels(shown, found["keys"])),
            )
            for shown in heat_maps(report)
            for strategy, found in shown.found.items()
        ],
        valued={
            name: figures.bars(bars_of(found), found["sites"], "Share")
            for name, found in report["strategies"].items()
            if found["valuations"]
        },
        credited={
            name: found["estimates"]
            for name, found in report["strategies"].items()
            if found["estimates"]
        },
        weights_shown=[
            name
            for name, found in report["strategies"].items()
            if not found["estimates_contributions"]
            and any(found["series"]["contributions"].values())
        ],
        plotlyjs=get_plotlyjs(),
    )


def _labels(shown: Drawn, keys: Sequence[str]) -> dict[str, str]:
    return {key: label_of(key, shown.quantity) for key in keys}


def _notes(report: Mapping[str, Any]) -> dict[str, str]:
    """Of strategies whose scores are not compared: why."""
    notes = dict.fromkeys(
        report["strategies"].keys() - set(comparable(report)), "not compared: fewer sites or rounds"
    )
    for name, found in report["strategies"].items():
        if found["measurement"] != report["measurement"]:
            rounds = f"{found['after_rounds']} round{'' if found['after_rounds'] == 1 else 's'}"
            notes[name] = f"{dice_words(found['measurement'])} after {rounds}, not compared"
    return notes
