# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Numbers of the main tables, computed again from the JSON files by other code.

Nothing of ``experiments`` is used here: only the files, and numpy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from helpers.checkout import CHECKOUT

RESULTS = CHECKOUT / "experiments" / "results"
DOCS = CHECKOUT / "docs"
FILES = {"loss-weighted": "qFedAvg"}
"""A strategy's name in a table -> in the names of files, where that is another one."""


def tables(page: str, block: str) -> list[list[dict[str, str]]]:
    """All tables of a block: rows of column -> cell."""
    text = (DOCS / page).read_text()
    inside = text.partition(f"<!-- begin {block} -->")[2].partition(f"<!-- end {block} -->")[0]
    found: list[list[dict[str, str]]] = []
    head: list[str] = []
    for line in inside.splitlines():
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


def trained(study: str, name: str, folds: Iterable[int]) -> list[Any]:
    files = [RESULTS / study / f"{name}-fold{fold}.json" for fold in folds]
    return [json.loads(file.read_text()) for file in files]


def by_site(
    results: Sequence[Any], column: str = "dice", model: str = "test"
) -> dict[str, np.ndarray]:
    """Site -> the scores of all folds, without structures that nobody labelled."""
    pooled: dict[str, list[float]] = {}
    for result in results:
        for site, scores in result[model][column].items():
            pooled.setdefault(site, []).extend(np.nan if x is None else x for x in scores)
    arrays = {}
    for site in sorted(pooled):
        scores = np.array(pooled[site])
        if np.isfinite(scores).any():
            arrays[site] = scores[np.isfinite(scores)]
    return arrays


def means(results: Sequence[Any], column: str = "dice", model: str = "test") -> dict[str, float]:
    return {site: float(scores.mean()) for site, scores in by_site(results, column, model).items()}


def number(cell: str) -> float:
    """The first number of a cell."""
    found = re.search(r"[-+]?\d+(\.\d+)?", cell)
    assert found, cell
    return float(found.group())


def digits(cell: str) -> int:
    """The digits after the point of a cell's first number."""
    found = re.search(r"\d+\.(\d+)", cell)
    return len(found.group(1)) if found else 0


def same(cell: str, value: float, where: str) -> None:
    # Half of the last digit, and a little for what rounds to either side.
    allowed = 0.5001 * 10.0 ** -digits(cell)
    assert abs(number(cell) - value) <= allowed, f"{where}: the page has {cell}, not {value:.6f}"


def check_dice(
    rows: Sequence[dict[str, str]],
    runs: dict[str, list[Any]],
    structures: Sequence[str] = (),
) -> int:
    """Check sites, mean, deviation, worst site, gain and folds of every strategy of a table."""
    checked = 0
    baseline = runs["FedAvg"]
    for row in rows:
        strategy = row["strategy"]
        results = runs[strategy]
        for column in structures or ("dice",):
            for site, scores in by_site(results, column).items():
                head = (
                    f"{column}, {site} ({len(scores)})" if structures else f"{site} ({len(scores)})"
                )
                same(row[head], scores.mean(), f"{strategy}, {head}")
                checked += 1
        of_sites = means(results)
        values = np.array(list(of_sites.values()))
        same(row["mean"], values.mean(), f"{strategy}, mean")
        same(row["std"], values.std(ddof=1), f"{strategy}, std")
        same(row["worst site"], values.min(), f"{strategy}, worst site")
        assert f"({min(of_sites, key=of_sites.__getitem__)})" in row["worst site"]
        checked += 3
        if strategy == "FedAvg":
            continue
        gain = values.mean() - np.mean(list(means(baseline).values()))
        same(row["gain over FedAvg"], float(gain), f"{strategy}, gain")
        folds = row["fold by fold"].split(", ")
        for cell, one, other in zip(folds, results, baseline, strict=True):
            of_fold = np.mean(list(means([one]).values())) - np.mean(list(means([other]).values()))
            same(cell, float(of_fold), f"{strategy}, a fold")
        checked += 1 + len(folds)
    return checked


def runs_of(rows: Sequence[dict[str, str]], *folds: tuple[str, int]) -> dict[str, list[Any]]:
    """Strategy -> its results, of (study with a setting's prefix, fold)."""
    found: dict[str, list[Any]] = {}
    for row in rows:
        name = FILES.get(row["strategy"], row["strategy"])
        found[row["strategy"]] = []
        for study, fold in folds:
            folder, _, prefix = study.partition("/")
            found[row["strategy"]] += trained(folder, prefix + name, [fold])
    return found


def test_dice_of_the_real_volumes() -> None:
    four, two = tables("results/fedce.md", "fedce_table1_prostate")
    first = [("prostate", 0), ("prostate", 1)]
    others = [("prostate_other_folds", 2), ("prostate_other_folds", 3)]
    assert check_dice(four, runs_of(four, *first, *others)) == 4 * 7 + 3 * 5
    assert check_dice(two, runs_of(two, *first)) == 17 * 7 + 16 * 3


def test_dice_of_the_real_photographs() -> None:
    rows, discs = tables("results/fedce.md", "fedce_table1_fundus")
    runs = runs_of(rows, *(("fundus", fold) for fold in range(3)))
    assert check_dice(rows, runs, ("disc", "cup")) == 17 * 7 + 16 * 4
    for row in discs:
        missed = {
            site: int((x < 0.5).sum()) for site, x in by_site(runs[row["strategy"]], "disc").items()
        }
        assert int(row["all"]) == sum(missed.values()), row["strategy"]


def test_dice_of_the_generated_hospitals() -> None:
    found = tables("results/fedce.md", "fedce_table1_control")
    dice = [rows for rows in found if "mean" in rows[0]]
    places = (
        ("six_prostate", 3),
        ("six_prostate/no_augmentation-", 3),
        ("six_fundus", 5),
        ("six_fundus/no_augmentation-", 5),
    )
    assert len(dice) == len(places)
    for rows, (study, folds) in zip(dice, places, strict=True):
        runs = runs_of(rows, *((study, fold) for fold in range(folds)))
        assert check_dice(rows, runs) > 10


def test_what_another_seed_and_uniform_weights_move() -> None:
    seeds, of_sites = tables("results/chance.md", "fedce_table1_seed")
    folds = {"six_prostate": 3, "six_fundus": 5, "prostate": 2, "fundus": 3}
    for row in seeds:
        number_of_folds = range(folds[row["study"]])
        first = means(trained(row["study"], row["strategy"], number_of_folds))
        other = trained(row["study"], f"another_seed-{row['strategy']}", number_of_folds)
        change = np.mean(list(means(other).values())) - np.mean(list(first.values()))
        same(row["difference"], float(change), f"{row['study']}, {row['strategy']}")
    of_seed: dict[str, dict[str, float]] = {}
    for row in of_sites:
        prefix = {"first": "", "another": "another_seed-"}[row["seed"]]
        for strategy in ("FedAvg", "FedCE"):
            of_seed[strategy] = means(trained("prostate", prefix + strategy, range(2)))
        for site in of_seed["FedAvg"]:
            value = of_seed["FedCE"][site] - of_seed["FedAvg"][site]
            if row["strategy"] in of_seed:
                value = of_seed[row["strategy"]][site]
            same(row[site], value, f"{row['seed']} seed, {row['strategy']}, {site}")
    assert len(of_sites) == 6
    uniform = tables("results/chance.md", "control_uniform")[0]
    for row in uniform:
        of_study = range(folds[row["study"]])
        if row["fold"] != "all":
            of_study = range(int(row["fold"]), int(row["fold"]) + 1)
        again = means(trained(row["study"], "uniform-FedAvg", of_study))
        even = means(trained(row["study"], "uniform-FedAvg-uniform", of_study))
        gain = np.mean(list(even.values())) - np.mean(list(again.values()))
        where = f"{row['study']}, fold {row['fold']}"
        same(row["uniform weights less FedAvg, trained again"], float(gain), where)
        same(row["worst site, uniform"], min(even.values()), where)
        same(row["std, uniform"], float(np.std(list(even.values()), ddof=1)), where)


def test_dice_of_dealt_photographs_and_of_poor_images() -> None:
    [partitions] = tables("results/cgsv.md", "cgsv_partitions")
    for row in partitions:
        study = "rewards_volumes" if "volumes" in row["partition"] else "rewards"
        name = f"{row['partition']}-{FILES.get(row['method'], row['method'])}"
        found = means(trained(study, name, range(3)))
        same(row["best client"], max(found.values()), name)
        same(row["worst client"], min(found.values()), name)
        same(row["mean Dice"], float(np.mean(list(found.values()))), name)
    settings = {
        "photographs, noise, 20 %": "quality/noise20",
        "volumes, noise, 10 %": "quality_volumes/noise10",
        "volumes, noise, 20 %": "quality_volumes/noise20",
        "volumes, noise, 30 %": "quality_volumes/noise30",
    }
    checked = 0
    for row in tables("results/fedism.md", "fedism_table1")[0]:
        if row["images"] not in settings:
            continue
        study, setting = settings[row["images"]].split("/")
        found = means(
            trained(study, f"{setting}-{FILES.get(row['method'], row['method'])}", range(3))
        )
        # All clean clients have the same tests and the same model, and so have all corrupted ones.
        shown = {round(mean, 3) for mean in found.values()}
        assert shown == {number(row["clean"]), number(row["corrupted"])}, row
        checked += 2
    assert checked == 4 * 7 * 2


def of_seeds(runs: Iterable[Any], **wanted: Any) -> list[Any]:
    return [run for run in runs if all(run[name] == value for name, value in wanted.items())]


def test_accuracies_of_the_controls() -> None:
    runs = json.loads((RESULTS / "controls_cgsv.json").read_text())["runs"]
    for agents, rows in zip((10, 20), tables("controls.md", "controls_cgsv"), strict=False):
        for row in rows:
            found = of_seeds(runs, agents=agents, partition=row["dealt"], method=row["method"])
            accuracies = 100 * np.array([run["received"] for run in found])
            where = f"{agents} agents, {row['dealt']}, {row['method']}"
            same(row["mean of agents"], accuracies.mean(), where)
            same(row["worst agent"], accuracies.min(axis=1).mean(), where)
    runs = json.loads((RESULTS / "controls_fedism.json").read_text())["runs"]
    for row in tables("controls.md", "controls_fedism")[0]:
        found = of_seeds(runs, deal=row["dealt"], method=row["parts"])
        for group in ("clean", "corrupted"):
            mean = float(np.mean([run[group] for run in found]))
            same(row[f"{group} clients"], mean, f"{row['dealt']}, {row['parts']}")


def test_the_predicate_of_cgsv_by_numpys_correlation() -> None:
    [rows] = tables("results.md", "predicates")
    [row] = [row for row in rows if row["predicate"].startswith("CGSV")]
    runs = json.loads((RESULTS / "controls_cgsv.json").read_text())["runs"]
    asked = {}
    for answer in ("yes", "no"):
        for cell in row[answer].split("<br>"):
            if not cell.startswith("uneven volumes"):
                asked[cell.partition(":")[0]] = (answer, cell)
    assert len(asked) == 6
    for federation, (answer, cell) in asked.items():
        agents, partition = federation.split(" agents, ")
        where: dict[str, Any] = {"agents": int(agents), "partition": partition}
        fairness = []
        for seed in range(3):
            [alone] = of_seeds(runs, method="alone", seed=seed, **where)
            [ours] = of_seeds(runs, method="CGSV, beta 1", seed=seed, **where)
            received = np.array(ours["received"])
            if np.ptp(received) > 0:
                fairness.append(100 * np.corrcoef(alone["received"], received)[0, 1])
        for value in fairness:
            assert f"{value:.0f}" in cell, federation
        assert (answer == "yes") == (len(fairness) == 3 and min(fairness) >= 70), federation


def test_the_predicates_of_uneven_volumes_by_numpy() -> None:
    [rows] = tables("results.md", "predicates")
    checked = 0
    for row in rows:
        for answer in ("yes", "no"):
            for cell in row[answer].split("<br>"):
                found = re.match(r"uneven volumes, (\w+), `([\w-]+)`.*?: (seed 0 .*)", cell)
                if not found:
                    continue
                model = {"received": "test", "used": "test_used"}[found.group(1)]
                method = found.group(2)
                others = ["FedAvg", "FedAvg-uniform"]
                if method in ("paper", "released"):
                    method, others = f"FedLWR-{method}", ["FedAvg-uniform"]
                holds = 0
                for seed, text in enumerate(found.group(3).split("; ")):
                    stds, worst = [], []
                    for name in (method, *others):
                        run = trained("uneven_prostate", name, [seed])
                        dice = np.array(list(means(run, model=model).values()))
                        stds.append(dice.std(ddof=1))
                        worst.append(dice.min())
                    numbers = [*stds, *worst] if "std" in text else worst
                    assert re.findall(r"\d\.\d+", text) == [f"{each:.3f}" for each in numbers]
                    lower = "std" not in text or stds[0] < min(stds[1:])
                    holds += lower and worst[0] > max(worst[1:])
                assert (answer == "yes") == (holds >= 2), cell
                checked += 1
    # FedCE's product and sum, Fed-LWR's two variants; received and used.
    assert checked == 8


def test_a_changed_number_is_noticed() -> None:
    rows = tables("results/fedce.md", "fedce_table1_prostate")[1]
    runs = runs_of(rows, ("prostate", 0), ("prostate", 1))
    changed = [{**row} for row in rows]
    changed[3]["std"] = f"{number(changed[3]['std']) + 0.001:.3f}"
    with pytest.raises(AssertionError, match="FedCE-sum, std: the page has"):
        check_dice(changed, runs)
