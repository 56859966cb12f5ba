# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The tables of a comparison over seeds, for a terminal and for the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from monai_fairfl.report.scores import CASES_OF
from monai_fairfl.report.terminal import hospital_lines
from monai_fairfl.statistics.intervals import Interval

DIGITS = 3

ENOUGH_CASES = 5
"""Of fewer cases of a site, the bootstrap finds too small a spread."""


@dataclass(frozen=True)
class TextTable:
    """A table of texts; the first column is of words, all others are of numbers.

    ``note`` is below it, where it is not empty.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def tables_of(comparison: Mapping[str, Any]) -> Iterator[TextTable]:
    """The tables of each metric: its strategies, their sites, and the pairs.

    Args:
        comparison: what :func:`~monai_fairfl.report.repeated.write_comparison` returned.
    """
    for metric, found in comparison["metrics"].items():
        yield strategies_table(metric, found)
        yield sites_table(metric, found)
        yield pairs_table(metric, found)


def strategies_table(metric: str, found: Mapping[str, Any]) -> TextTable:
    """A row for each strategy: mean and deviation over seeds, worst site and mean rank."""
    rows = []
    for standing in found["strategies"]:
        by_site = standing["by_site"]
        worst = min(by_site, key=lambda site: by_site[site])
        rows.append(
            [
                standing["strategy"],
                mean_words(standing["mean"], standing["std"]),
                f"{by_site[worst]:.{DIGITS}f} ({worst})",
                f"{standing['mean_rank']:.2f}",
            ]
        )
    seeds = ", ".join(str(seed) for seed in found["seeds"])
    title = f"{metric_words(metric)}: mean of sites over seeds {seeds}"
    if len(found["seeds"]) == 1:
        title = f"{metric_words(metric)}: mean of sites, seed {seeds}"
    return TextTable(title, ["", "Mean ± SD", "Worst site", "Mean rank"], rows)


def sites_table(metric: str, found: Mapping[str, Any]) -> TextTable:
    """A row for each site: its cases, and the mean over seeds of each strategy."""
    names = [standing["strategy"] for standing in found["strategies"]]
    rows = []
    for site, cases in found["cases"].items():
        values = [f"{standing['by_site'][site]:.{DIGITS}f}" for standing in found["strategies"]]
        rows.append([site, str(cases), *values])
    return TextTable(f"{metric_words(metric)} of each site", ["", "Cases", *names], rows)


def pairs_table(metric: str, found: Mapping[str, Any]) -> TextTable:
    """A row for each pair: the difference with its interval, and the p-values."""
    rows = []
    for pair in found["pairs"]:
        difference = Interval.read(pair["difference"])
        rows.append(
            [
                f"{pair['strategy']} less {pair['reference']}",
                difference.words(DIGITS),
                p_words(pair["p_value"]),
                p_words(pair["p_holm"]),
            ]
        )
    level = f"{100 * found['level']:g} %"
    header = ["", f"Difference ({level} interval)", "p", "p (Holm)"]
    title = f"{metric_words(metric)}: differences on the same seeds and cases"
    return TextTable(title, header, rows, _which_to_believe(found))


def _which_to_believe(found: Mapping[str, Any]) -> str:
    """How to read an interval and a p-value that disagree."""
    few = []
    if len(found["seeds"]) > 1:
        few = [site for site, cases in found["cases"].items() if cases < ENOUGH_CASES]
    note = (
        "The interval covers seeds and cases, and gives each hospital the same weight. p gives "
        "each case the same weight and does not cover other seeds. If the two disagree, trust the "
        "interval, unless hospitals have few cases: then test more."
    )
    if few:
        note += (
            f" {', '.join(few)} tested fewer than {ENOUGH_CASES} cases, so the interval is too "
            "narrow."
        )
    return note


def metric_words(metric: str) -> str:
    """A metric of ``cases.csv`` in words.

    >>> metric_words("test_score:dice"), metric_words("test_score:cup")
    ('Test Dice', 'Test Dice of cup')
    """
    measurement, _, structure = metric.partition(":")
    words = f"{CASES_OF[measurement].capitalize()} Dice"
    if structure == "dice":
        return words
    return f"{words} of {structure}"


def mean_words(mean: float, std: float | None) -> str:
    """A mean with its standard deviation, where that is known.

    >>> mean_words(0.8125, 0.01), mean_words(0.8125, None)
    ('0.812 ± 0.010', '0.812')
    """
    if std is None:
        return f"{mean:.{DIGITS}f}"
    return f"{mean:.{DIGITS}f} ± {std:.{DIGITS}f}"


def p_words(p_value: float) -> str:
    """A p-value to three digits.

    >>> p_words(0.0001), p_words(0.0312), p_words(1.0)
    ('<0.001', '0.031', '1.000')
    """
    if p_value < 0.001:
        return "<0.001"
    return f"{p_value:.3f}"


def remarks_of(comparison: Mapping[str, Any]) -> list[str]:
    """What the numbers cannot show, what does not count, and what failed; a sentence each."""
    remarks = list(comparison["notes"])
    for metric, found in comparison["metrics"].items():
        for text in [*found["notes"], *found["left_out"]]:
            remarks.append(f"{metric_words(metric)}: {text}.")
    remarks += [f"{warning}." for warning in comparison["warnings"]]
    for name, reason in comparison["failed"].items():
        remarks.append(f"{name} failed: {reason}")
    return remarks


def comparison_text(comparison: Mapping[str, Any]) -> str:
    """The tables, a line for each hospital and the remarks of a comparison, for a terminal.

    A comparison of first looks says so first.

    Args:
        comparison: what :func:`~monai_fairfl.report.repeated.write_comparison` returned.
    """
    console = Console(highlight=False)
    with console.capture() as captured:
        for table in tables_of(comparison):
            shown = Table(title=Text(table.title), title_justify="left")
            for number, name in enumerate(table.header):
                shown.add_column(Text(name), justify="left" if number == 0 else "right")
            for row in table.rows:
                shown.add_row(*[Text(cell) for cell in row])
            console.print(shown)
    lines = list(comparison.get("first_look", []))
    lines += [line.rstrip() for line in captured.get().splitlines()]
    if "decision" in comparison:
        lines += hospital_lines(comparison["decision"])
    return "\n".join([*lines, *remarks_of(comparison)])
