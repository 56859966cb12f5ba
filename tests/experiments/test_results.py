# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Tables of the results, computed again by other code; and what they are made with.

The second computation uses nothing of ``experiments`` but its files, and numpy.
"""

from __future__ import annotations

import csv
import doctest
import gzip
import importlib
import itertools
import math
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import reading
import results
from helpers.checkout import CHECKOUT
from study import Study, studies

RESULTS = CHECKOUT / "experiments" / "results"
FILES = {"loss-weighted": "qFedAvg"}
"""A strategy's name in a table -> in the names of cells, where that is another one."""
PAGES = [CHECKOUT / "experiments" / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]


def test_every_result_has_its_place_on_one_page() -> None:
    named: list[str] = []
    for page in PAGES:
        named += re.findall(r"<!-- result (\w+) -->", page.read_text())
    assert sorted(named) == sorted(results.makers())


@cache
def made(name: str) -> str:
    return str(results.block(name))


def tables(name: str) -> list[list[dict[str, str]]]:
    """All tables of a result: rows of column -> cell."""
    found: list[list[dict[str, str]]] = []
    head: list[str] = []
    for line in made(name).splitlines():
        if not line.startswith("| "):
            head = []
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not head:
            head = cells
            found.append([])
        elif set(line) - set("|- "):
            found[-1].append(dict(zip(head, cells, strict=True)))
    return found


@cache
def scores(study: str, column: str) -> dict[str, dict[str, list[float]]]:
    """Cell -> site -> a column of a study's table, without what nobody labelled."""
    packed = RESULTS / f"{study}.csv.gz"
    file = gzip.open(packed, "rt") if packed.exists() else (RESULTS / f"{study}.csv").open()
    found: dict[str, dict[str, list[float]]] = {}
    with file:
        for row in csv.DictReader(file):
            values = row[column].strip("[]").split()
            known = [float(value) for value in values if value != "null"]
            if known:
                found.setdefault(row["cell"], {})[row["site"]] = known
    return found


def by_site(cells: Sequence[tuple[str, str]], column: str = "test/dice/*") -> dict[str, Any]:
    """Site -> the scores of several cells: (study, name)."""
    pooled: dict[str, list[float]] = {}
    for study, name in cells:
        for site, values in scores(study, column)[name].items():
            pooled.setdefault(site, []).extend(values)
    return {site: np.array(values) for site, values in sorted(pooled.items())}


def means(cells: Sequence[tuple[str, str]]) -> dict[str, float]:
    return {site: float(values.mean()) for site, values in by_site(cells).items()}


def mean(cells: Sequence[tuple[str, str]]) -> float:
    return float(np.mean(list(means(cells).values())))


def of_folds(strategy: str, *folds: tuple[str, str, int]) -> list[tuple[str, str]]:
    """The cells of a strategy: (study, setting with a dash, fold)."""
    name = FILES.get(strategy, strategy)
    return [(study, f"{setting}{name}-fold{fold}") for study, setting, fold in folds]


def same(cell: str, value: float, where: str) -> None:
    found = re.search(r"[-+]?\d+(?:\.(\d+))?", cell)
    assert found, cell
    # Half of the last digit, and a little for what rounds to either side.
    allowed = 0.5001 * 10.0 ** -len(found.group(1) or "")
    assert abs(float(found.group()) - value) <= allowed, f"{where}: {cell}, not {value:.6f}"


def check_dice(
    rows: Sequence[dict[str, str]], folds: Sequence[tuple[str, str, int]], *structures: str
) -> None:
    """Check sites, mean, deviation, worst site, gain and folds of every strategy of a table."""
    fedavg = of_folds("FedAvg", *folds)
    for row in rows:
        cells = of_folds(row["strategy"], *folds)
        for structure in structures or ("dice",):
            for site, values in by_site(cells, f"test/{structure}/*").items():
                column = f"{site} ({len(values)})"
                if structures:
                    column = f"{structure}, {column}"
                same(row[column], values.mean(), f"{row['strategy']}, {column}")
        of_sites = means(cells)
        same(row["mean"], mean(cells), f"{row['strategy']}, mean")
        deviation = float(np.std(list(of_sites.values()), ddof=1))
        same(row["std"], deviation, f"{row['strategy']}, std")
        same(row["worst site"], min(of_sites.values()), f"{row['strategy']}, worst site")
        assert f"({min(of_sites, key=of_sites.__getitem__)})" in row["worst site"]
        if row["strategy"] != "FedAvg":
            same(row["gain over FedAvg"], mean(cells) - mean(fedavg), row["strategy"])
            shown = row["fold by fold"].split(", ")
            for cell, one, other in zip(shown, cells, fedavg, strict=True):
                same(cell, mean([one]) - mean([other]), f"{row['strategy']}, a fold")


FIRST = [("prostate", "", 0), ("prostate", "", 1)]
FOUR = [*FIRST, ("prostate_other_folds", "", 2), ("prostate_other_folds", "", 3)]


def test_dice_of_real_volumes_photographs_and_generated_hospitals() -> None:
    four, two = tables("fedce_table1_prostate")
    assert (len(four), len(two)) == (4, 17)
    check_dice(four, FOUR)
    check_dice(two, FIRST)
    assert sum(len(values) for values in by_site(of_folds("FedCE", *FOUR)).values()) == 34
    dice, discs = tables("fedce_table1_fundus")
    folds = [("fundus", "", fold) for fold in range(3)]
    check_dice(dice, folds, "disc", "cup")
    for row in discs:
        found = by_site(of_folds(row["strategy"], *folds), "test/disc/*")
        assert int(row["all"]) == sum((values < 0.5).sum() for values in found.values())
        assert sum(map(len, found.values())) == 165
    generated = [rows for rows in tables("fedce_table1_control") if "mean" in rows[0]]
    places = itertools.product((("six_prostate", 3), ("six_fundus", 5)), ("", "no_augmentation-"))
    for rows, ((study, number), setting) in zip(generated, places, strict=True):
        check_dice(rows, [(study, setting, fold) for fold in range(number)])


def test_the_plan_counts_all_cells_and_what_guards_touched() -> None:
    *rows, together = tables("plan")[0]
    assert [row["study"] for row in rows] == studies()
    hours = touched = client_rounds = 0.0
    for row in rows:
        done, of = row["cells done"].split(" of ")
        # A study may be in training.
        assert int(done) <= int(of) == len(list(Study.read(row["study"]).cells()))
        hours += float(row["hours, measured"])
        of_study = row["client-rounds that guards touched"].replace(",", "").split(" of ")
        touched += int(of_study[0])
        client_rounds += int(of_study[1])
    assert float(together["hours, measured"]) == pytest.approx(hours, abs=2)
    shown = f"{touched:.0f} of {client_rounds:,.0f}"
    assert together["client-rounds that guards touched"] == shown
    for page in ("docs/results.md", "experiments/README.md"):
        assert shown in " ".join((CHECKOUT / page).read_text().split())


def test_an_interval_over_folds_is_that_of_every_draw() -> None:
    for folds in (1, 2, 5):
        values = np.random.default_rng(folds).normal(size=folds).round(1).tolist()
        found = reading.over_folds(values, lambda drawn: round(float(np.mean(drawn)), 9))
        every = [np.mean(drawn).round(9) for drawn in itertools.product(values, repeat=folds)]
        ends = np.quantile(every, [0.025, 0.975], method="inverted_cdf")
        assert [found.low, found.high] == ends.tolist()
    undefined = reading.over_folds([math.nan, 1.0, 2.0], np.mean)
    assert math.isnan(undefined.estimate) and (undefined.low, undefined.high) == (1.0, 2.0)


def test_examples_in_the_docstrings_run() -> None:
    for module in (
        *("reading", "study", "tables", "papers.stronger", "papers.uneven"),
        *("classification.data", "classification.summaries", "simulated.content"),
        *("simulated.labels", "simulated.partition", "simulated.quality"),
    ):
        assert doctest.testmod(importlib.import_module(module)).failed == 0
