# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The predicates that were fixed beforehand: does each method do what its paper claims?

Uneven volumes are asked twice: of the models that the sites receive, as was predicted, and of those
that they use after a last mile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import uneven
from classification.summaries import SEEDS, chosen, each
from papers import (
    controls_cgsv,
    controls_fedism,
    controls_shapfed_figure3,
    controls_shapfed_table1,
    uneven_predictions,
)
from reading import NOTHING, NotFinished, Result, cases, markdown, measurement, site_means
from seeds import Cells, finished
from study import ROOT, Study, studies

from monai_fairfl.statistics.fairness import Performance, performance

UNEVEN = "uneven_prostate"
CORRUPTED = {
    "uneven_corrupted": "volumes, cross-entropy",
    "uneven_corrupted_longer": "volumes, cross-entropy, 80 rounds in place of 20",
}
"""Study with noisy clients -> what it is called in a row."""
STUDIES = tuple(name for name in (UNEVEN, *CORRUPTED) if name in studies())
MEASUREMENTS = (
    "controls_cgsv",
    "controls_shapfed_figure3",
    "controls_shapfed_table1",
    "controls_fedism",
)
YES, NO, NOT_FINISHED = "yes", "no", "not finished"
LEAST_SEEDS = 2
"""Of three seeds, in which a predicate of the uneven hospitals must hold."""


class Asked(NamedTuple):
    """A predicate asked of one federation: its numbers, and the answer."""

    federation: str
    numbers: str
    answer: str


def table() -> str:
    """Write a row for each predicate: the federations where it holds, and the others."""
    rows = [
        _row(
            "FedCE: worst site at least 0.05 above FedAvg's, interval above zero, mean not lower",
            _of_all_seeds(uneven_predictions.fedce_gains, f"`{uneven_predictions.NAMED_MODE}`"),
            {"results/uneven.md#what-was-predicted": "uniform weights"},
        ),
        _row(
            "FedCE: deviation lower and worst site higher than FedAvg and uniform, in two of three "
            "seeds",
            _fedce(),
            {"results/uneven.md": "uniform weights"},
        ),
        _row(
            "CGSV: fairness at least 70, and 20 above its null",
            [*_of_all_seeds(uneven_predictions.cgsv_rewards, "`CGSV`"), *_cgsv()],
            {
                "controls.md#tables-1-and-2-accuracy-and-fairness-beside-its-null": (
                    "CGSV with beta 1e7 (the null), and CGSV with the rewards given to the wrong "
                    "agents"
                )
            },
        ),
        _row(
            "Fed-LWR: worst site above uniform, in two of three seeds",
            _fedlwr(),
            {"results/uneven.md": "uniform weights"},
        ),
        _row(
            "ShapFed: own class values at least five times the largest other",
            _class_values(),
            {"controls.md#fig-3-class-values-of-own-and-of-other-classes": "the paper's plane"},
        ),
        _row(
            "ShapFed: Pearson with training alone at least 0.85",
            [*_of_all_seeds(uneven_predictions.shapfed_follows, "`ShapFed`"), *_personal_models()],
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
) -> list[str]:
    """Write a predicate's row.

    Args:
        predicate: in words.
        asked: of these federations.
        controls: page -> the controlled run on it; a link where the page exists.
    """
    by_answer: dict[str, list[str]] = {YES: [], NO: [], NOT_FINISHED: []}
    for federation, numbers, answer in asked:
        shown = federation
        if numbers:
            shown = f"{federation}: {numbers}"
        by_answer[answer].append(shown)
    cells = ["<br>".join(found) or NOTHING for found in by_answer.values()]
    return [predicate, *cells, _links(controls)]


def answer_of(holds: Sequence[bool], needed: int = len(SEEDS)) -> str:
    """Say whether a predicate holds in as many seeds as are needed.

    >>> answer_of([True, True, False], 2), answer_of([True, True, False]), answer_of([True], 1)
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


def _of_all_seeds(judge: Callable[[str], uneven_predictions.Verdict], method: str) -> list[Asked]:
    """Ask of all seeds of the uneven hospitals together.

    Args:
        judge: of the models that the sites receive or use.
        method: its name in the row.
    """
    asked = []
    for model, name in uneven.MODELS.items():
        federation = f"uneven volumes, {name}, {method}"
        try:
            came_true, numbers = judge(model)
        except NotFinished:
            asked.append(Asked(federation, "", NOT_FINISHED))
            continue
        answer = NO
        if came_true:
            answer = YES
        asked.append(Asked(federation, f"{numbers}, all seeds together", answer))
    return asked


def _fedce() -> list[Asked]:
    asked = []
    names = {"FedCE": "`FedCE`", "FedCE-sum": "`FedCE-sum` (not named beforehand)"}
    for method, name in names.items():
        compared = (method, "FedAvg", "FedAvg-uniform")
        asked += _of_uneven(name, compared, _more_even, _std_and_worst)
    return asked


def _more_even(fair: Performance, fedavg: Performance, uniform: Performance) -> bool:
    lower = fair.std < min(fedavg.std, uniform.std)
    return lower and fair.worst > max(fedavg.worst, uniform.worst)


def _std_and_worst(fair: Performance, fedavg: Performance, uniform: Performance) -> str:
    return (
        f"std {fair.std:.3f} (FedAvg {fedavg.std:.3f}, uniform {uniform.std:.3f}), "
        f"worst {fair.worst:.3f} (FedAvg {fedavg.worst:.3f}, uniform {uniform.worst:.3f})"
    )


def _fedlwr() -> list[Asked]:
    asked = []
    for variant in ("paper", "released"):
        compared = (f"FedLWR-{variant}", "FedAvg-uniform")
        asked += _of_uneven(f"`{variant}`", compared, _worst_above, _worst)
    return asked


def _worst_above(fair: Performance, uniform: Performance) -> bool:
    return fair.worst > uniform.worst


def _worst(fair: Performance, uniform: Performance) -> str:
    return f"worst {fair.worst:.3f} (uniform {uniform.worst:.3f})"


def _of_uneven(
    name: str,
    strategies: Sequence[str],
    holds: Callable[..., bool],
    shown: Callable[..., str],
) -> list[Asked]:
    """Ask of the models that the sites of the uneven hospitals receive, and of those they use.

    Args:
        name: of the method.
        strategies: names, in the order in which the functions take them.
        holds: of the strategies' means, deviations and worst sites: does the predicate hold?
        shown: of the same: the numbers for the table.
    """
    asked = []
    for model, models in uneven.MODELS.items():
        texts = []
        answers = []
        for seed, compared in _of_each_seed(strategies, model).items():
            texts.append(f"seed {seed} {shown(*compared)}")
            answers.append(holds(*compared))
        federation = f"uneven volumes, {models}, {name}"
        asked.append(Asked(federation, "; ".join(texts), answer_of(answers, LEAST_SEEDS)))
    return asked


def _of_each_seed(strategies: Sequence[str], model: str) -> dict[int, list[Performance]]:
    """Summarise the strategies over sites, in every seed that all of them have finished."""
    if UNEVEN not in studies():
        return {}
    study = Study.read(UNEVEN)
    found = finished(study)
    of_seeds = {}
    for seed, folds in _folds_of_seeds(study).items():
        compared = []
        for strategy in strategies:
            results = _of_seed(found.get(strategy, {}), seed)
            if len(results) == len(folds):
                compared.append(performance(site_means(cases(results, model=model))))
        if len(compared) == len(strategies):
            of_seeds[seed] = compared
    return of_seeds


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
            asked.append(Asked(f"{agents} agents, {partition}", numbers, answer_of(holds)))
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
        asked.append(Asked(design.name, each(ratios, 1), answer_of(holds)))
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
            federation = f"digits, {split}, {epochs} {noun} a round"
            asked.append(Asked(federation, each(found), answer_of(holds)))
    return asked


def _fedism_on_digits() -> list[Asked]:
    runs = measurement("controls_fedism")["runs"]
    asked = []
    for deal, method in (("Dirichlet", "both (FedISM)"), ("even", "SAGA only")):
        found = chosen(runs, deal=deal, method=method)
        baseline = chosen(runs, deal=deal, method="neither (FedAvg)")
        of_corrupted, of_clean, holds = controls_fedism.over_baseline(found, baseline)
        numbers = _both(of_corrupted, of_clean)
        asked.append(Asked(f"digits, {deal}, {method}", numbers, answer_of(holds)))
    return asked


def _fedism_on_volumes() -> list[Asked]:
    """Compare FedISM with FedAvg on volumes with noise."""
    asked = []
    for name, federation in CORRUPTED.items():
        if name in studies():
            asked.append(_fedism_in(Study.read(name), federation))
    return asked or [Asked("volumes, cross-entropy", "", NOT_FINISHED)]


def _fedism_in(study: Study, federation: str) -> Asked:
    """Compare FedISM with FedAvg in every seed of a study that both have finished."""
    found = finished(study)
    groups = study.arguments["groups"]
    ours = []
    baseline = []
    seeds = []
    for seed, folds in _folds_of_seeds(study).items():
        of_fedism = _of_seed(found.get("FedISM", {}), seed)
        of_fedavg = _of_seed(found.get("FedAvg", {}), seed)
        if len(of_fedism) == len(of_fedavg) == len(folds):
            ours.append(_of_groups(of_fedism, groups))
            baseline.append(_of_groups(of_fedavg, groups))
            seeds.append(str(seed))
    of_corrupted, of_clean, holds = controls_fedism.over_baseline(ours, baseline)
    if not holds:
        return Asked(federation, "", NOT_FINISHED)
    numbers = f"seeds {', '.join(seeds)} {_both(of_corrupted, of_clean)}"
    return Asked(federation, numbers, answer_of(holds))


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
