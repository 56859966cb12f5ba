# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The page: one HTML file that works offline, prints well, and shows names from outside as text.

First comes what the person who decides needs, one row for each hospital. What engineers need
follows, and on paper it begins a new page.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.report import captions
from monai_fairfl.report.changes import changes_of
from monai_fairfl.report.columns import (
    NO_VALUE,
    collaboration_columns,
    comparable,
    fairness_columns,
    gain_columns,
    judged_groups,
    site_columns,
)
from monai_fairfl.report.comparison import difference_words, signed
from monai_fairfl.report.contribution import range_words
from monai_fairfl.report.events import grouped
from monai_fairfl.report.figures import interval_mark
from monai_fairfl.report.first_look import first_look_lines
from monai_fairfl.report.last_mile import MODEL_WORDS, gain_words, has_last_mile
from monai_fairfl.report.own_contributions import WEIGHT_BY
from monai_fairfl.report.plots import plots
from monai_fairfl.report.scores import dice_words
from monai_fairfl.report.templates import filled
from monai_fairfl.report.valuations import title_of, trust_of
from monai_fairfl.report.verdicts import VERDICTS
from monai_fairfl.utils.words import count_words

TEMPLATE = "template.html.jinja"
MANY = 12
"""More sites than these are rows of the tables, not columns."""

LEAST_NAME = 5
MOST_NAME = 17
"""Letters of a name that a table makes room for, at least and at most."""

LEAST_REACH = 0.05
"""The axis of the differences goes at least so far to both sides."""


def render(report: Mapping[str, Any]) -> str:
    """The report as one HTML file.

    Style and drawings are inside, and the file's own policy forbids loading more.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returns.

    Raises:
        ConfigError: when jinja2 is not installed.
    """
    if not has_jinja():
        raise ConfigError(
            "report.html needs jinja2; report.json and the CSV files are written without it: "
            'pip install "monai_fairfl[report]"'
        )
    decision = report["decision"]
    changes = changes_of(report)
    values = {
        "report": report,
        "decision": decision,
        "first_look": first_look_lines(report),
        "changes": changes,
        "captions": _captions(report, changes),
        "settings": _settings(report),
        "events": grouped(report["events"]),
        "free_riding": grouped(report["free_riding"]),
        **_tables(report),
        **plots(report),
    }
    functions: dict[str, Any] = {
        **functions_of_rows(decision["hospitals"].values(), changes),
        "model_words": MODEL_WORDS,
        "rounds_words": rounds_words,
        "title_of": title_of,
        "gain_words": gain_words,
        "trust_of": trust_of,
    }
    return filled(TEMPLATE, {**values, **functions})


def has_jinja() -> bool:
    """Whether pages can be written."""
    try:
        import jinja2  # noqa: F401
    except ImportError:
        return False
    return True


def functions_of_rows(
    hospitals: Iterable[Mapping[str, Any]], changes: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What the rows of the hospitals call.

    Args:
        hospitals: rows of the page, whose differences share one axis,
        changes: with what changed against FedAvg, if the page shows that.
    """
    differences = list(changes["rows"]) if changes else []
    for hospital in hospitals:
        if hospital["difference"] is not None:
            differences.append(hospital["difference"])
    reach = LEAST_REACH
    for difference in differences:
        for end in ("value", "low", "high"):
            reach = max(reach, abs(difference[end] or 0.0))
    mark: Callable[..., str] = partial(interval_mark, reach=reach)
    return {
        "verdicts": VERDICTS,
        "dice": dice_text,
        "mark": mark,
        "difference_words": difference_words,
        "signed": signed,
        "range_words": range_words,
        "contribution_title": contribution_title,
        "name_width": name_width,
    }


def contribution_title(found: Mapping[str, Any]) -> str:
    """How the column of the contributions is called; a weight is not called a contribution.

    Args:
        found: :class:`~monai_fairfl.report.contribution.Contributions`, as ``report.json`` has it.
    """
    source = found["source"] or ""
    return source if source.startswith(WEIGHT_BY) else "Contribution"


def name_width(names: Iterable[str]) -> int:
    """Letters that the longest of these names has, as far as a table makes room for them.

    >>> name_width(["elm", "hemlock"]), name_width([])
    (8, 5)
    """
    longest = max((len(name) for name in names), default=0)
    return min(max(longest + 1, LEAST_NAME), MOST_NAME)


def dice_text(value: float | None) -> str:
    """A Dice as a table shows it.

    >>> dice_text(0.81234), dice_text(None)
    ('0.812', '–')
    """
    return NO_VALUE if value is None else f"{value:.3f}"


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
        "adapted": sorted(
            (name for name, found in report["strategies"].items() if has_last_mile(found)),
            key=lambda name: name != report["focus"],
        ),
    }


def _captions(report: Mapping[str, Any], changes: Mapping[str, Any] | None) -> dict[str, str]:
    """The paragraphs that depend on the runs, and those that do not."""
    return {
        "hospitals": captions.hospitals_caption(report),
        "changes": captions.changes_caption(report, changes) if changes else "",
        "dice": captions.dice_caption(report, bool(judged_groups(report))),
        "fairness": captions.FAIRNESS,
        "gain": captions.gain_caption(report),
        "dice_by_round": captions.DICE_BY_ROUND,
        "weights": captions.WEIGHTS,
        "contributions": captions.CONTRIBUTIONS,
        "free_riders": f"{captions.FREE_RIDERS} {report['free_rider_rule']}",
        "credit": captions.CREDIT,
        "similarity": captions.SIMILARITY,
        "last_mile": captions.LAST_MILE,
        "valued": captions.VALUED,
        "rules": captions.RULES,
        "free_riding": captions.FREE_RIDING,
        "provenance": captions.PROVENANCE,
    }


def _settings(report: Mapping[str, Any]) -> list[dict[str, str]]:
    """The recorded settings, runs with the same ones together."""
    names: dict[str, list[str]] = {}
    for name, found in report["strategies"].items():
        words = []
        for key, value in found["settings"].items():
            words.append(f"{key} {value if isinstance(value, str) else json.dumps(value)}")
        if words:
            names.setdefault(", ".join(words), []).append(name)
    return [{"runs": ", ".join(of_text), "text": text} for text, of_text in names.items()]


def _sites_are_rows(report: Mapping[str, Any]) -> bool:
    return len(report["sites"]) > MANY


def _notes(report: Mapping[str, Any]) -> dict[str, str]:
    """Strategy -> why its scores are not compared."""
    compared = comparable(report)
    notes = {}
    for name, found in report["strategies"].items():
        if found["measurement"] != report["measurement"]:
            rounds = count_words(found["after_rounds"], "round")
            notes[name] = f"{dice_words(found['measurement'])} after {rounds}, not compared"
        elif name not in compared:
            notes[name] = "not compared: fewer sites or rounds"
    return notes


def rounds_words(strategy: Mapping[str, Any]) -> str:
    """How far a strategy's run went.

    Args:
        strategy: one of ``report["strategies"]``.

    >>> rounds_words({"finished": False, "rounds": 1, "planned_rounds": 4})
    'unfinished, 1 of 4 rounds'
    """
    done = strategy["rounds"]
    rounds = count_words(done, "round")
    if strategy["finished"]:
        return rounds
    if strategy["planned_rounds"]:
        return f"unfinished, {done} of {strategy['planned_rounds']} rounds"
    return f"unfinished, {rounds}"
