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
import json
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


def means(cells: Sequence[tuple[str, str]], column: str = "test/dice/*") -> dict[str, float]:
    return {site: float(values.mean()) for site, values in by_site(cells, column).items()}


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
    changed = [{**two[3], "std": "0.034"}]
    with pytest.raises(AssertionError, match="FedCE-sum, std: 0.034, not 0.032"):
        check_dice(changed, FIRST)


def test_what_another_seed_and_uniform_weights_move() -> None:
    number = {"six_prostate": 3, "six_fundus": 5, "prostate": 2, "fundus": 3}
    for row in tables("fedce_table1_seed")[0]:
        folds = range(number[row["study"]])
        first, again = (
            of_folds(row["strategy"], *((row["study"], setting, fold) for fold in folds))
            for setting in ("", "another_seed-")
        )
        same(row["difference"], mean(again) - mean(first), f"{row['study']}, {row['strategy']}")
    for row in tables("control_uniform")[0]:
        folds = range(number[row["study"]])
        if row["fold"] != "all":
            folds = range(int(row["fold"]), int(row["fold"]) + 1)
        again, even = (
            of_folds(name, *((row["study"], "uniform-", fold) for fold in folds))
            for name in ("FedAvg", "FedAvg-uniform")
        )
        column = "uniform weights less FedAvg, trained again"
        same(row[column], mean(even) - mean(again), f"{row['study']}, {row['fold']}")
        same(row["worst site, uniform"], min(means(even).values()), row["study"])


def test_dice_of_dealt_photographs_of_poor_images_and_of_seeds() -> None:
    for row in tables("cgsv_partitions")[0]:
        study = "rewards_volumes" if "volumes" in row["partition"] else "rewards"
        folds = [(study, f"{row['partition']}-", fold) for fold in range(3)]
        found = means(of_folds(row["method"], *folds))
        same(row["best client"], max(found.values()), row["method"])
        same(row["mean Dice"], float(np.mean(list(found.values()))), row["method"])
    for row in tables("fedism_table1")[0]:
        share = re.fullmatch(r"volumes, noise, (\d+) %", row["images"])
        if share:
            folds = [("quality_volumes", f"noise{share.group(1)}-", fold) for fold in range(3)]
            # All clean clients have the same tests and the same model, and so have all others.
            shown = {round(each, 3) for each in means(of_folds(row["method"], *folds)).values()}
            assert shown == {float(row[kind].split()[0]) for kind in ("clean", "corrupted")}
    received, used = (tables("strong_prostate")[place] for place in (0, 1))
    for rows, column in ((received, "test/dice/*"), (used, "test_used/dice/*")):
        for row in rows:
            pairs = itertools.product(range(4), range(3))
            cells = [
                ("strong_prostate", f"{row['method']}-fold{fold}-seed{seed}")
                for fold, seed in pairs
            ]
            found = means(cells, column)
            same(row["mean"], float(np.mean(list(found.values()))), row["method"])
            same(row["worst site"], min(found.values()), row["method"])
            same(row["BIDMC"], found["BIDMC"], row["method"])


def test_controls_by_numpys_mean_and_correlation() -> None:
    runs = json.loads((RESULTS / "controls_cgsv.json").read_text())["runs"]
    ten, twenty, predicate = tables("controls_cgsv")
    for agents, rows in ((10, ten), (20, twenty)):
        for row in rows:
            wanted = (agents, row["dealt"], row["method"])
            found = [run for run in runs if _of(run) == wanted]
            accuracies = 100 * np.array([run["received"] for run in found])
            same(row["mean of agents"], accuracies.mean(), str(wanted))
            same(row["worst agent"], accuracies.min(axis=1).mean(), str(wanted))
    for row in predicate:
        if row["model"] != "received":
            continue
        fairness = []
        for seed in range(3):
            pair = []
            for method in ("alone", "CGSV, beta 1"):
                wanted = (int(row["agents"]), row["partition"], method)
                [run] = [run for run in runs if _of(run) == wanted and run["seed"] == seed]
                pair.append(np.array(run["received"]))
            if np.ptp(pair[1]) > 0:
                fairness.append(100 * np.corrcoef(*pair)[0, 1])
        shown = row["fairness of seeds"].split(", ")
        assert [value for value in shown if value != "not defined"] == [
            f"{value:.0f}" for value in fairness
        ]
        holds = len(fairness) == 3 and min(fairness) >= 70
        assert row["at least 70, and 20 above"].startswith("yes" if holds else "no")


def _of(run: dict[str, Any]) -> tuple[int, str, str]:
    return run["agents"], run["partition"], run["method"]


def test_which_estimate_of_a_shapley_value_is_nearer() -> None:
    found = json.loads((RESULTS / "cgsv_figure1.json").read_text())

    def nearer(updates: str, over: str) -> list[int]:
        """The numbers for which sampling is nearer to the exact value than psi."""
        points = found[f"{updates}, over {over}"]
        return [int(n) for n, at in points.items() if at["sampling"]["l1"] < at["psi"]["l1"]]

    # As in docs/results/cgsv.md.
    assert nearer("as in the paper", "clients") == []
    assert nearer("as in the paper", "parameters") == [16, 64, 256]
    assert nearer("related", "clients") == [12, 14, 16]
    for at in found["related, over clients"].values():
        assert at["exact"]["seconds"] < at["sampling"]["seconds"]


def test_predictions_of_uneven_volumes_by_numpy() -> None:
    [rows] = tables("uneven_predictions")
    for row, others in ((rows[1], ("FedAvg", "FedAvg-uniform")), (rows[2], ("FedAvg-uniform",))):
        for column, of_model in (("models received", "test"), ("models used", "test_used")):
            numbers = re.findall(r"([\w-]+) (\d\.\d+), std (\d\.\d+)", row[column])
            assert len(numbers) == 3 * (1 + len(others)) * (1 if len(others) == 2 else 2)
            for place, (method, worst, std) in enumerate(numbers):
                seed = place // (1 + len(others)) % 3
                cell = [("uneven_prostate", f"{method}-fold{seed}")]
                found = list(means(cell, f"{of_model}/dice/*").values())
                assert (worst, std) == (f"{min(found):.3f}", f"{np.std(found, ddof=1):.3f}")


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


def test_a_study_that_is_not_complete_leaves_out_its_strategies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = Study.results

    def without(self: Study) -> dict[Any, Any]:
        found = whole(self)
        return {cell: found[cell] for cell in found if cell.name != "FedCE-fold1"}

    monkeypatch.setattr(Study, "results", without)
    assert "FedCE" not in reading.read("prostate") and "FedAvg" in reading.read("prostate")
    assert results.block("fedce_table1_seed") == "*Not finished. Missing: runs of FedCE.*"


def result(seed: int = 0, **scores_of: list[float]) -> dict[str, Any]:
    names = {site: [f"{site}{n}" for n in range(len(of))] for site, of in scores_of.items()}
    return {"strategy": "FedAvg", "seed": seed, "test": {"cases": names, "dice": scores_of}}


def test_means_are_over_cases_and_gains_are_case_by_case() -> None:
    one, other = [result(A=[0.5, 0.7], B=[0.9])], [result(A=[0.4, 0.6], B=[0.6])]
    assert reading.site_means(reading.cases(one)) == pytest.approx({"A": 0.6, "B": 0.9})
    assert reading.difference(one, other).estimate == pytest.approx((0.1 + 0.3) / 2)
    with pytest.raises(ValueError, match="FedAvg: A tested A0 twice"):
        reading.cases(one + one)
    assert list(reading.by_seed([*one, result(seed=1, A=[0.1])])) == [0, 1]
    common = {"cases": {"all": ["c1", "c2"]}, "dice": {"A": [0.5, 0.7], "B": [None, None]}}
    used = {"dice": {"A": [0.6, 0.8]}}
    found = [{"strategy": "FedAvg", "test": common, "test_used": used}]
    assert reading.cases(found) == {"A": {"c1": 0.5, "c2": 0.7}}
    assert reading.cases(found, model="test_used") == {"A": {"c1": 0.6, "c2": 0.8}}


def test_shares_are_of_the_last_ten_rounds_and_never_negative() -> None:
    series = {"A": [9.0] * 5 + [0.2] * 10, "B": [0.6] * 15, "C": [-1.0] * 15, "D": [None] * 15}
    expected = pytest.approx({"A": 0.25, "B": 0.75, "C": 0.0})
    assert reading.shares({"contributions": series}) == expected
    assert reading.shares({"contributions": None, "aggregation": series}) == expected


def test_an_interval_over_folds_is_that_of_every_draw() -> None:
    for folds in (1, 2, 5):
        values = np.random.default_rng(folds).normal(size=folds).round(1).tolist()
        found = reading.over_folds(values, lambda drawn: round(float(np.mean(drawn)), 9))
        every = [np.mean(drawn).round(9) for drawn in itertools.product(values, repeat=folds)]
        ends = np.quantile(every, [0.025, 0.975], method="inverted_cdf")
        assert [found.low, found.high] == ends.tolist()
    undefined = reading.over_folds([math.nan, 1.0, 2.0], np.mean)
    assert math.isnan(undefined.estimate) and (undefined.low, undefined.high) == (1.0, 2.0)


def test_both_methods_are_drawn_with_the_same_seeds_and_cases() -> None:
    rng = np.random.default_rng(0)
    one: dict[int, Any] = {}
    other: dict[int, Any] = {}
    for seed in range(3):
        one[seed] = {site: {f"c{n}": float(rng.random()) for n in range(4)} for site in "AB"}
        other[seed] = {
            site: {case: score - 0.25 for case, score in of.items()}
            for site, of in one[seed].items()
        }
    for over_sites in (np.mean, np.min):
        found = reading.hierarchical_difference(one, other, over_sites)
        assert found == pytest.approx((0.25, 0.25, 0.25))
    with pytest.raises(ValueError, match="the same seeds, sites and cases"):
        reading.hierarchical_difference(one, {0: one[0]})
    assert np.isnan(reading.hierarchical_interval({0: {"A": {"c1": 0.5}}}).low)
    with pytest.raises(reading.NotFinished):
        reading.hierarchical_interval({0: {"A": {}}})


def test_the_rule_as_it_is_takes_what_the_sites_took() -> None:
    from papers import stronger

    found = reading.read("strong_fundus")
    taken = stronger.losses_of(found["FedAvg"], found)
    [rule] = [rule for title, rule in stronger.RULES.items() if title.startswith("**")]
    again = stronger.losses_of(found["FedAvg"], found, stronger.taken_by(rule))
    for seed, of_sites in taken.items():
        for site, folds in of_sites.items():
            # The tables have the Dice of cases to four digits.
            assert again[seed][site] == pytest.approx(folds, abs=1e-4)


def test_examples_in_the_docstrings_run() -> None:
    for module in (
        *("reading", "study", "tables", "papers.stronger", "papers.uneven"),
        *("classification.data", "classification.summaries", "simulated.content"),
        *("simulated.labels", "simulated.partition", "simulated.quality"),
    ):
        assert doctest.testmod(importlib.import_module(module)).failed == 0
