# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The last mile on the real images: what the sites use against what they had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from reading import CANDIDATES, NOTHING, NotFinished, cases, hierarchical_interval, markdown
from reading import site_means as means_of
from reading import words
from seeds import Cells, Scores, finished
from study import Study

STUDIES = ("strong_prostate",)
IMAGES = {
    "uneven_prostate": "volumes (BIDMC trains on one volume)",
    "strong_prostate": "volumes",
    "strong_fundus": "photographs",
}
"""Study with a last mile -> its images."""
RUINED = 0.02
"""A site that loses more Dice than this is counted as one that lost."""
MOST_LOSERS = 0.1
LEAST_BOUND = -0.005
STAYED = "kept"
Used = Callable[[dict[str, Any]], dict[str, float]]
"""Result of a cell -> site -> mean Dice of the model that it uses."""


def table() -> str:
    """Write what every strategy's sites use on the real prostate volumes."""
    return table_of("strong_prostate")


def table_of(name: str) -> str:
    """Write what every strategy's sites use; below, the candidates and what validation said.

    Args:
        name: of a study with a last mile.
    """
    study = Study.read(name)
    found = finished(study)
    for needed in ("Standalone", "FedAvg"):
        if needed not in found:
            raise NotFinished(f"runs of {needed}")
    baseline, alone = found["FedAvg"], found["Standalone"]
    strategies = {name: cells for name, cells in found.items() if name != "Standalone"}
    local_norm = finished(study, "local_norm").get("FedAvg")
    if local_norm:
        strategies["FedAvg, local norm"] = local_norm
    rows = []
    candidates = []
    for strategy, cells in strategies.items():
        complete = with_baselines(cells, baseline, alone)
        if not complete:
            continue
        rows.append(_row(strategy, complete, baseline, alone))
        candidates += _candidates(strategy, list(complete.values()))
    if not rows:
        raise NotFinished("a seed and fold of FedAvg, training alone and a last mile")
    head = [
        "strategy",
        "site × fold × seed",
        "used − received",
        "used − the better of alone and FedAvg",
        f"loses more than {RUINED}",
        "most lost",
        "taken",
    ]
    of_candidates = [
        "strategy",
        "candidate",
        "site × fold × seed that had it",
        "gain on validation",
        "gain on test",
        "taken by",
        "gain on validation where taken",
        "gain on test where taken",
    ]
    return "\n\n".join(
        [
            markdown(head, rows),
            "Candidates, against the model that the site would use without a last mile:",
            markdown(of_candidates, candidates),
        ]
    )


def as_taken(result: dict[str, Any]) -> dict[str, float]:
    """Return every site's mean Dice with the model that it took."""
    return means_of(cases([result], model="test_used"))


def gains_of(cells: Cells) -> Scores:
    """Subtract the mean Dice of the received model from that of the used model.

    Returns:
        seed -> site -> fold -> difference: one number of each site in each training.
    """
    found: Scores = {}
    for (seed, fold), result in cells.items():
        used = as_taken(result)
        for site, received in means_of(cases([result])).items():
            of_site = found.setdefault(seed, {}).setdefault(site, {})
            of_site[f"fold{fold}"] = used[site] - received
    return found


def losses_of(cells: Cells, baseline: Cells, alone: Cells, used: Used = as_taken) -> Scores:
    """Subtract the better of FedAvg's and the own model's mean Dice from that of the used model.

    Args:
        cells: of a strategy.
        baseline: FedAvg's.
        alone: those of training alone.
        used: a cell's result -> site -> mean Dice of the model that the site uses.

    Returns:
        seed -> site -> fold -> difference: one number of each site in each training.
    """
    found: Scores = {}
    for (seed, fold), result in cells.items():
        received = means_of(cases([baseline[seed, fold]]))
        by_itself = means_of(cases([alone[seed, fold]]))
        for site, mean in used(result).items():
            better = max(received[site], by_itself[site])
            found.setdefault(seed, {}).setdefault(site, {})[f"fold{fold}"] = mean - better
    return found


def number_of_losers(differences: Scores) -> tuple[int, int]:
    """Return how many sites, folds and seeds lose more than ``RUINED``, and of how many."""
    # Without the last bits: a loss of 0.88 - 0.86 is not more than 0.02.
    values = np.round(_flat(differences), 9)
    return int(np.sum(values < -RUINED)), values.size


def share_of_losers(differences: Scores) -> float:
    """Return the share of sites, folds and seeds that lose more than ``RUINED``."""
    losers, number = number_of_losers(differences)
    return losers / number


def predicted(fedavg: Cells, alone: Cells, complete: bool) -> list[list[str]]:
    """Write what was predicted of the models that sites use under FedAvg, and what came out.

    Args:
        fedavg: its cells.
        alone: those of training alone, of the same seeds and folds.
        complete: whether the study is finished.
    """
    losses = losses_of(fedavg, fedavg, alone)
    mean = hierarchical_interval(losses)
    share = share_of_losers(losses)
    bound = mean.low
    if np.isnan(bound):
        bound = mean.estimate
    return [
        [
            "FedAvg: used − the better of FedAvg and alone, lower bound at least " f"{LEAST_BOUND}",
            words(mean, signed=True),
            came_out(bound >= LEAST_BOUND, complete),
        ],
        [
            f"the same: lower by more than {RUINED} in at most one in ten",
            f"{share:.0%}",
            came_out(share <= MOST_LOSERS, complete),
        ],
    ]


def came_out(holds: bool, complete: bool) -> str:
    """Write whether a prediction was met; where cells are missing, only so far."""
    word = "missed"
    if holds:
        word = "met"
    if complete:
        return word
    return f"{word} so far"


def with_baselines(cells: Cells, baseline: Cells, alone: Cells) -> Cells:
    """Return the cells of which FedAvg and training alone are finished too."""
    return {key: cells[key] for key in sorted(cells) if key in baseline and key in alone}


def _row(strategy: str, cells: Cells, baseline: Cells, alone: Cells) -> list[Any]:
    differences = losses_of(cells, baseline, alone)
    values = _flat(differences)
    taken: Counter[str] = Counter()
    asked = {STAYED}
    for result in cells.values():
        for mile in result["last_mile"].values():
            taken[mile["taken"] or STAYED] += 1
            asked.update(mile["gains"])
    shown = [f"{name} {taken[name]}" for name in (*CANDIDATES, STAYED) if name in asked]
    return [
        strategy,
        len(values),
        words(hierarchical_interval(gains_of(cells)), signed=True),
        words(hierarchical_interval(differences), signed=True),
        f"{share_of_losers(differences):.0%}",
        f"{min(values):+.3f}",
        ", ".join(shown),
    ]


def _candidates(strategy: str, results: Sequence[dict[str, Any]]) -> list[list[Any]]:
    """Write a row for each candidate: its gains over all sites that had it, and where taken."""
    rows = []
    for name in CANDIDATES:
        on_validation = []
        on_test = []
        is_taken = []
        for result in results:
            received = means_of(cases([result]))
            for site, mile in result["last_mile"].items():
                if name not in mile["gains"]:
                    continue
                test_score = result["closing"][site][name]["test_score"]
                on_validation.append(mile["gains"][name][0])
                on_test.append(test_score - received[site])
                is_taken.append(mile["taken"] == name)
        if not is_taken:
            continue
        chosen = np.array(is_taken)
        rows.append(
            [
                strategy,
                name,
                len(is_taken),
                _mean(np.array(on_validation)),
                _mean(np.array(on_test)),
                int(chosen.sum()),
                _mean(np.array(on_validation)[chosen]),
                _mean(np.array(on_test)[chosen]),
            ]
        )
    return rows


def _mean(values: np.ndarray) -> str:
    if not values.size:
        return NOTHING
    return f"{values.mean():+.3f}"


def _flat(differences: Scores) -> list[float]:
    values = []
    for sites in differences.values():
        for of_folds in sites.values():
            values += list(of_folds.values())
    return values
