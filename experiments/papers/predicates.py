# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The five predicates that were fixed beforehand: does each method do what its paper claims?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from classification.summaries import SEEDS, chosen, each
from papers import controls_cgsv, controls_fedism, controls_shapfed_figure3, controls_shapfed_table1
from reading import NOTHING, Result, cases, markdown, measurement, site_means
from seeds import Cells, finished
from study import ROOT, Study, studies

from monai_fairfl.statistics.fairness import Performance, performance

UNEVEN, CORRUPTED = "uneven_prostate", "uneven_corrupted"
STUDIES = tuple(name for name in (UNEVEN, CORRUPTED) if name in studies())
MEASUREMENTS = (
    "controls_cgsv",
    "controls_shapfed_figure3",
    "controls_shapfed_table1",
    "controls_fedism",
)
YES, NO, NOT_FINISHED = "yes", "no", "not finished"


class Asked(NamedTuple):
    """A predicate asked of one federation: its numbers for each seed, and where it holds."""

    federation: str
    numbers: str
    holds: Sequence[bool]


def table() -> str:
    """Write a row for each predicate: the federations where it holds, and the others."""
    rows = [
        _row(
            "FedCE: deviation lower and worst site higher than FedAvg and uniform, in two of three "
            "seeds",
            _fedce(),
            {"results/uneven.md": "uniform weights"},
            needed=2,
        ),
        _row(
            "CGSV: fairness at least 70, and 20 above its null",
            _cgsv(),
            {
                "controls.md#tables-1-and-2-accuracy-and-fairness-beside-its-null": (
                    "beta 1e7; rewards dealt to the wrong agents"
                )
            },
        ),
        _row(
            "Fed-LWR: worst site above uniform, in two of three seeds",
            _fedlwr(),
            {"results/uneven.md": "uniform weights"},
            needed=2,
        ),
        _row(
            "ShapFed: own class values at least five times the largest other",
            _class_values(),
            {"controls.md#fig-3-class-values-of-own-and-of-other-classes": "the paper's plane"},
        ),
        _row(
            "ShapFed: Pearson with training alone at least 0.85",
            _personal_models(),
            {
                "controls.md#table-1-personal-models-beside-their-null": (
                    "1/N of the average for everybody"
                )
            },
        ),
        _row(
            "FedISM: corrupted clients above FedAvg, clean ones not lower by more than 0.01",
            [*_fedism_on_volumes(), *_fedism_on_digits()],
            {"controls.md#premise-and-table-2": "half of the weight to the corrupted"},
        ),
    ]
    return markdown(["predicate", YES, NO, NOT_FINISHED, "controlled run"], rows)


def _row(
    predicate: str,
    asked: Sequence[Asked],
    controls: Mapping[str, str],
    needed: int = len(SEEDS),
) -> list[str]:
    """Write a predicate's row.

    Args:
        predicate: in words.
        asked: of these federations.
        controls: page -> the controlled run on it; a link where the page exists.
        needed: seeds in which it must hold.
    """
    by_answer: dict[str, list[str]] = {YES: [], NO: [], NOT_FINISHED: []}
    for federation, numbers, holds in asked:
        shown = federation
        if numbers:
            shown = f"{federation}: {numbers}"
        by_answer[answer_of(holds, needed)].append(shown)
    cells = ["<br>".join(found) or NOTHING for found in by_answer.values()]
    return [predicate, *cells, _links(controls)]


def answer_of(holds: Sequence[bool], needed: int) -> str:
    """Say whether a predicate holds in as many seeds as are needed.

    >>> answer_of([True, True, False], 2), answer_of([True, True, False], 3), answer_of([True], 1)
    ('yes', 'no', 'not finished')
    """
    if len(holds) < len(SEEDS):
        return NOT_FINISHED
    if sum(holds) >= needed:
        return YES
    return NO


def _links(pages: Mapping[str, str]) -> str:
    shown = []
    for page, control in pages.items():
        if (ROOT / "docs" / page.partition("#")[0]).exists():
            shown.append(f"[{control}]({page})")
        else:
            shown.append(control)
    return "; ".join(shown)


def _fedce() -> list[Asked]:
    asked = []
    for method in ("FedCE", "FedCE-sum"):
        compared = (method, "FedAvg", "FedAvg-uniform")
        asked.append(_of_uneven(f"`{method}`", compared, _more_even, _std_and_worst))
    return asked


def _more_even(fair: Performance, fedavg: Performance, uniform: Performance) -> bool:
    lower = fair.std < min(fedavg.std, uniform.std)
    return lower and fair.worst > max(fedavg.worst, uniform.worst)


def _std_and_worst(fair: Performance, fedavg: Performance, uniform: Performance) -> str:
    return (
        f"std {fair.std:.3f} ({fedavg.std:.3f}, {uniform.std:.3f}), "
        f"worst {fair.worst:.3f} ({fedavg.worst:.3f}, {uniform.worst:.3f})"
    )


def _fedlwr() -> list[Asked]:
    asked = []
    for variant in ("paper", "released"):
        compared = (f"FedLWR-{variant}", "FedAvg-uniform")
        asked.append(_of_uneven(f"`{variant}`", compared, _worst_above, _worst))
    return asked


def _worst_above(fair: Performance, uniform: Performance) -> bool:
    return fair.worst > uniform.worst


def _worst(fair: Performance, uniform: Performance) -> str:
    return f"worst {fair.worst:.3f} ({uniform.worst:.3f})"


def _of_uneven(
    name: str,
    strategies: Sequence[str],
    holds: Callable[..., bool],
    shown: Callable[..., str],
) -> Asked:
    """Compare strategies of the uneven hospitals in every seed that all of them have finished.

    Args:
        name: of the method.
        strategies: names, in the order in which the functions take them.
        holds: of the strategies' means, deviations and worst sites: does the predicate hold?
        shown: of the same: the numbers for the table.
    """
    federation = f"uneven volumes, {name}"
    if UNEVEN not in studies():
        return Asked(federation, "", [])
    study = Study.read(UNEVEN)
    found = finished(study)
    texts = []
    answers = []
    for seed, folds in _folds_of_seeds(study).items():
        compared = []
        for strategy in strategies:
            results = _of_seed(found.get(strategy, {}), seed)
            if len(results) == len(folds):
                compared.append(performance(site_means(cases(results))))
        if len(compared) == len(strategies):
            texts.append(shown(*compared))
            answers.append(holds(*compared))
    return Asked(federation, "; ".join(texts), answers)


def _folds_of_seeds(study: Study) -> dict[int, set[int]]:
    """Return the folds that the study trains with every seed, in its plain setting."""
    folds: dict[int, set[int]] = {}
    for cell in study.cells():
        if not cell.setting:
            folds.setdefault(study.seed_of(cell), set()).add(cell.fold)
    return folds


def _of_seed(cells: Cells, seed: int) -> list[dict[str, Any]]:
    return [result for (of_cell, _), result in sorted(cells.items()) if of_cell == seed]


def _cgsv() -> list[Asked]:
    runs = measurement("controls_cgsv")["runs"]
    asked = []
    for agents in controls_cgsv.AGENTS:
        for partition in controls_cgsv.PARTITIONS:
            values, nulls, holds = controls_cgsv.beside_null(runs, agents, partition, "received")
            null = each(nulls, 0)
            if np.isnan(nulls).all():
                null = "not defined"
            numbers = f"{each(values, 0)} (null: {null})"
            if np.isnan(values).all():
                numbers = f"not defined (null: {null})"
            asked.append(Asked(f"{agents} agents, {partition}", numbers, holds))
    return asked


def _class_values() -> list[Asked]:
    runs = measurement("controls_shapfed_figure3")["runs"]
    asked = []
    for design in controls_shapfed_figure3.DESIGNS:
        ratios = []
        for run in chosen(runs, design=design.name):
            own, other = controls_shapfed_figure3.blocks(run, design.owned())
            ratios.append(float(own.min() / np.abs(other).max()))
        holds = [ratio >= controls_shapfed_figure3.LEAST_RATIO for ratio in ratios]
        asked.append(Asked(design.name, each(ratios, 1), holds))
    return asked


def _personal_models() -> list[Asked]:
    runs = measurement("controls_shapfed_table1")["runs"]
    asked = []
    for epochs in controls_shapfed_table1.EPOCHS:
        noun = "epochs"
        if epochs == 1:
            noun = "epoch"
        for split in controls_shapfed_table1.SPLITS:
            of_split = chosen(runs, epochs=epochs, split=split)
            alone = chosen(of_split, method="alone")
            released = chosen(of_split, method="ShapFed, released")
            found = controls_shapfed_table1.correlations(released, alone, "received")
            holds = [value >= controls_shapfed_table1.LEAST_PEARSON for value in found]
            asked.append(Asked(f"digits, {split}, {epochs} {noun} a round", each(found), holds))
    return asked


def _fedism_on_digits() -> list[Asked]:
    runs = measurement("controls_fedism")["runs"]
    asked = []
    for deal, method in (("Dirichlet", "both (FedISM)"), ("even", "SAGA only")):
        found = chosen(runs, deal=deal, method=method)
        baseline = chosen(runs, deal=deal, method="neither (FedAvg)")
        of_corrupted, of_clean, holds = controls_fedism.over_baseline(found, baseline)
        asked.append(Asked(f"digits, {deal}, {method}", _both(of_corrupted, of_clean), holds))
    return asked


def _fedism_on_volumes() -> list[Asked]:
    """Compare FedISM with FedAvg on volumes with noise, in every seed that both have finished."""
    federation = "volumes, cross-entropy"
    if CORRUPTED not in studies():
        return [Asked(federation, "", [])]
    study = Study.read(CORRUPTED)
    found = finished(study)
    groups = study.arguments["groups"]
    ours = []
    baseline = []
    for seed, folds in _folds_of_seeds(study).items():
        of_fedism = _of_seed(found.get("FedISM", {}), seed)
        of_fedavg = _of_seed(found.get("FedAvg", {}), seed)
        if len(of_fedism) == len(of_fedavg) == len(folds):
            ours.append(_of_groups(of_fedism, groups))
            baseline.append(_of_groups(of_fedavg, groups))
    of_corrupted, of_clean, holds = controls_fedism.over_baseline(ours, baseline)
    if not holds:
        return [Asked(federation, "", [])]
    return [Asked(federation, _both(of_corrupted, of_clean), holds)]


def _of_groups(results: Sequence[Result], groups: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Average Dice over the clients of every group."""
    means = site_means(cases(results))
    averages = {}
    for group, clients in groups.items():
        averages[group] = float(np.mean([means[client] for client in clients]))
    return averages


def _both(of_corrupted: Sequence[float], of_clean: Sequence[float]) -> str:
    corrupted = ", ".join(f"{gain:+.3f}" for gain in of_corrupted)
    clean = ", ".join(f"{gain:+.3f}" for gain in of_clean)
    return f"corrupted {corrupted}; clean {clean}"
