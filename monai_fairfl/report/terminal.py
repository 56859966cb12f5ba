# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The report as text: tables that fit the terminal, and the sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from monai_fairfl.messages import to_json
from monai_fairfl.report.columns import columns, comparable, judged_groups
from monai_fairfl.report.comparison import difference_words
from monai_fairfl.report.contribution import range_words
from monai_fairfl.report.first_look import first_look_lines
from monai_fairfl.report.hospitals import decision_of
from monai_fairfl.report.last_mile import MODEL_WORDS, has_last_mile
from monai_fairfl.report.scores import CASES_OF
from monai_fairfl.report.verdicts import VERDICTS, overview

NOT_COMPARED = "* not compared: unfinished (validation Dice so far), or of fewer sites"
CELL = 3
"""Characters of a cell besides its text: a space on each side and a line."""


def as_text(report: Mapping[str, Any]) -> str:
    """The same verdicts as on the page: what is not judged and why, and a line for each hospital.

    Then the comparison of all strategies, and what failed.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returned.

    >>> from tempfile import TemporaryDirectory
    >>> from monai_fairfl.report import collect, summary
    >>> from monai_fairfl.run import Ledger
    >>> scores = {"elm": {"own": {"test_score": 0.8}}, "oak": {"own": {"test_score": 0.6}}}
    >>> with TemporaryDirectory() as folder:
    ...     ledger = Ledger(f"{folder}/ledger.jsonl")
    ...     ledger.append({"kind": "start", "strategy": "FedAvg", "clients": [*scores], "seed": 0})
    ...     ledger.append({"kind": "end", "scores": scores})
    ...     report = summary.summarise(collect.load_runs([folder]))
    >>> next(line for line in as_text(report).splitlines() if line.startswith("elm:"))
    'elm: Not judged yet; Dice 0.800. Read in the first lines of report.html why nothing is judged.'
    """
    console = Console()
    with console.capture() as tables:
        for names in blocks(report, console.width):
            console.print(summary_table(report, names))

    lines = first_look_lines(report)
    for warning in report["warnings"]:
        lines.append(f"Note: {warning}.")
    lines.append(tables.get().rstrip())
    lines.append(overview(report))
    decision = to_json(asdict(decision_of(report, report["focus"])))
    lines.extend(hospital_lines(decision))
    if report["focus"] is not None:
        lines.append(last_mile_line(report["strategies"][report["focus"]]["sites"]))
    for name, why in report.get("failed", {}).items():
        lines.append(f"{name} failed and is not in this report: {why}")
    return "\n".join(line for line in lines if line)


def hospital_lines(decision: Mapping[str, Any]) -> Iterator[str]:
    """Which strategy the verdicts are about, a line for each hospital, and who contributed what.

    Args:
        decision: of ``report.json`` or ``comparison.json``.
    """
    found = decision["contributions"]
    of_another = found["strategy"] if found["strategy"] != decision["strategy"] else None
    yield decision["why"]
    for site, hospital in decision["hospitals"].items():
        title = VERDICTS[hospital["verdict"]].title
        if hospital["reason"]:
            title += f", {hospital['reason']}"
        words = [title, dice_of(hospital)]
        if hospital["contribution"] is not None:
            words.append(contribution_of(hospital["contribution"], of_another))
        known = "; ".join(word for word in words if word)
        advice = "".join(f" {sentence}." for sentence in hospital["advice"])
        yield f"{site}: {known}.{advice}"
    yield f"Who contributed what: {found['meaning']}"


def contribution_of(contribution: Mapping[str, Any], of_another: str | None) -> str:
    """What a hospital contributed, in words, or as a number where these say no share.

    Args:
        contribution: of a hospital, as ``report.json`` has it.
        of_another: the strategy that it is of, where the verdicts are about another one.

    >>> contribution_of({"words": "carries half its share of the images"}, None)
    'carries half its share of the images'
    >>> ends = {"least": 0.91, "most": 0.95, "range_of": "rounds", "interval": False}
    >>> contribution_of({"words": "", "value": 0.93, "share": None, **ends}, "ShapFed")
    'with ShapFed: contribution 0.9300; over rounds 0.9100 to 0.9500'
    """
    words: str = contribution["words"]
    if words or contribution["value"] is None:
        return words
    number = f"contribution {range_words(contribution)}"
    return f"with {of_another}: {number}" if of_another else number


def last_mile_line(sites: Mapping[str, Any]) -> str:
    """Which hospitals take another model after their last mile; empty where there was none.

    Args:
        sites: hospital -> its results, as ``report.json`` has them for a strategy.

    >>> another, same = {"last_mile": {"taken": "adapted"}}, {"last_mile": {"taken": None}}
    >>> last_mile_line({"elm": another, "fir": another, "oak": same})
    'The last mile: the model trained further at elm, fir; no other model at oak.'
    >>> last_mile_line({"elm": {"last_mile": None}})
    ''
    """
    sites_by_model: dict[str, list[str]] = {}
    for site, result in sites.items():
        mile = result["last_mile"]
        if mile is None:
            continue
        model = "no other model"
        if mile["taken"] is not None:
            model = f"the model {MODEL_WORDS[mile['taken']]}"
        sites_by_model.setdefault(model, []).append(site)
    if not sites_by_model:
        return ""
    words = [f"{model} at {', '.join(names)}" for model, names in sites_by_model.items()]
    return f"The last mile: {'; '.join(words)}."


def dice_of(hospital: Mapping[str, Any]) -> str:
    """The Dice of a hospital in a line, with the difference from training alone and its interval.

    >>> gain = {"value": 0.02, "low": -0.01, "high": 0.05}
    >>> dice_of({"federation": 0.82, "alone": 0.8, "difference": gain})
    'Dice 0.820, alone 0.800, difference +0.020 (-0.010 to +0.050)'
    >>> dice_of({"federation": 0.82, "alone": None, "difference": None})
    'Dice 0.820'
    """
    parts = []
    if hospital["federation"] is not None:
        parts.append(f"Dice {hospital['federation']:.3f}")
    if hospital["alone"] is not None:
        parts.append(f"alone {hospital['alone']:.3f}")
    if hospital["difference"] is not None:
        parts.append(f"difference {difference_words(hospital['difference'])}")
    return ", ".join(parts)


def summary_table(report: Mapping[str, Any], names: Sequence[str] | None = None) -> Table:
    """The comparison: a column per strategy, the best of each row bold where they may be judged.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returned.
        names: the strategies to show; ``None``: all. The best is still the best of all.

    >>> from tempfile import TemporaryDirectory
    >>> from monai_fairfl.report import collect, summary
    >>> from monai_fairfl.run import Ledger
    >>> scores = {"elm": {"own": {"test_score": 0.8}}, "oak": {"own": {"test_score": 0.6}}}
    >>> with TemporaryDirectory() as folder:
    ...     ledger = Ledger(f"{folder}/ledger.jsonl")
    ...     ledger.append({"kind": "start", "strategy": "FedAvg", "clients": [*scores], "seed": 0})
    ...     ledger.append({"kind": "end", "scores": scores})
    ...     report = summary.summarise(collect.load_runs([folder]))
    >>> for column in summary_table(report).columns:
    ...     print(*column.cells)
    elm oak Mean Std Worst Gap Jain index
    0.800 0.600 0.700 0.141 0.600 0.200 0.9800
    """
    if names is None:
        names = list(report["strategies"])
    cases = CASES_OF[report["measurement"]]
    title = f"Dice on {cases} cases of the model each site would use"
    if any(has_last_mile(strategy) for strategy in report["strategies"].values()):
        title += ", before the last mile"
    table = Table("", title=title)

    compared = comparable(report)
    for name in names:
        if name in compared:
            table.add_column(Text(name), justify="right")
        else:
            table.add_column(Text(f"{name} *"), justify="right")
            table.caption = NOT_COMPARED

    rows = columns(report)
    judged = judged_groups(report)
    last_site = max((number for number, row in enumerate(rows) if row.site), default=None)
    for number, row in enumerate(rows):
        winners = row.winners(judged)
        cells = []
        for name in names:
            style = "bold green" if name in winners else ""
            cells.append(Text(row.text(name), style=style))
        table.add_row(Text(row.title), *cells, end_section=number == last_site)
    return table


def blocks(report: Mapping[str, Any], width: int) -> Iterator[list[str]]:
    """The strategies in groups whose columns of :func:`summary_table` fit side by side.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returned.
        width: of the terminal, in characters.
    """
    longest_title = max(len(column.title) for column in columns(report))
    first_column = longest_title + CELL + 1
    block: list[str] = []
    used = first_column
    for name in report["strategies"]:
        # A star may follow the name, and a number has six characters.
        needed = max(len(name) + 2, 6) + CELL
        if block and used + needed > width:
            yield block
            block = []
            used = first_column
        block.append(name)
        used += needed
    yield block
