# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Credit by others: against brute force, and against sites that lie of themselves or as judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attackers import ATTACKS, Attack
from attacks import SITES
from helpers.attacked_federation import federation_of
from helpers.faulty_transports import Fault

from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.server.cross_evaluation import questions_of
from monai_fairfl.strategies import AFL, FedAvg, FedCE, FedISM, QFedAvg, Strategy
from monai_fairfl.valuation.cross_evaluation import (
    Comparison,
    credit_from_server,
    credit_from_sites,
    is_valued_by_images,
    least_absolute_values,
)


def errors_of(comparisons: list[Comparison], values: Mapping[str, float]) -> float:
    """The sum of absolute errors."""
    total = 0.0
    for comparison in comparisons:
        expected = sum(factor * values[site] for site, factor in comparison.group.items())
        total += abs(comparison.loss - expected)
    return total


def brute_force(comparisons: list[Comparison], sites: str) -> float:
    """The least sum of absolute errors: some optimum meets as many comparisons as there are sites.

    All choices of so many are solved.
    """
    best = np.inf
    for chosen in combinations(comparisons, len(sites)):
        factors = np.array([[one.group.get(site, 0.0) for site in sites] for one in chosen])
        if np.linalg.matrix_rank(factors) < len(sites):
            continue
        values = np.linalg.solve(factors, [one.loss for one in chosen])
        best = min(best, errors_of(comparisons, dict(zip(sites, values, strict=True))))
    return float(best)


@pytest.mark.parametrize("seed", range(4))
def test_no_other_values_have_smaller_errors(seed: int) -> None:
    generator = np.random.default_rng(seed)
    comparisons = []
    for number in range(9):
        group = {}
        for site in generator.choice(list("ABCD"), size=2, replace=False):
            group[str(site)] = float(generator.uniform(0.5, 2))
        comparisons.append(Comparison(f"judge{number}", group, float(generator.normal())))
    values = least_absolute_values(comparisons)
    assert sorted(values) == list("ABCD")
    assert errors_of(comparisons, values) == pytest.approx(brute_force(comparisons, "ABCD"))


def test_one_site_at_a_time_is_the_median_over_judges() -> None:
    losses = {"B": 0.3, "C": 0.1, "D": 0.9, "E": 0.2, "F": 0.25}
    comparisons = [Comparison(judge, {"A": 1.0}, loss) for judge, loss in losses.items()]
    found = least_absolute_values(comparisons)
    assert found["A"] == pytest.approx(np.median(list(losses.values())))


def test_the_median_of_an_even_number_of_judges_is_the_middle() -> None:
    losses = {"B": 0.1, "C": 0.2, "D": 0.6, "E": 0.9}
    comparisons = [Comparison(judge, {"A": 1.0}, loss) for judge, loss in losses.items()]
    assert least_absolute_values(comparisons) == {"A": pytest.approx(0.4)}


def test_values_do_not_depend_on_the_names_of_the_sites() -> None:
    """Of a single judged round, several values have the least sum of errors."""
    generator = np.random.default_rng(3)
    names = "ABCDEFGH"
    other_name = dict(zip(names, reversed(names), strict=True))
    comparisons = []
    renamed = []
    for question in chain.from_iterable(questions_of(names, names, seed=2, number=0)):
        loss = float(generator.normal())
        group = [site for site in question.without if site != question.judge]
        comparisons.append(Comparison(question.judge, dict.fromkeys(group, 1.0), loss))
        of_others = dict.fromkeys((other_name[site] for site in group), 1.0)
        renamed.append(Comparison(other_name[question.judge], of_others, loss))
    values = least_absolute_values(comparisons)
    found = least_absolute_values(renamed)
    assert {other_name[site]: value for site, value in found.items()} == pytest.approx(values)


def test_sites_that_are_always_left_out_together_have_no_value_each() -> None:
    together = [Comparison(judge, {"A": 1.0, "B": 1.0}, 0.2) for judge in "CDE"]
    alone = [Comparison(judge, {"C": 1.0}, 0.1) for judge in "ABD"]
    assert least_absolute_values([*together, *alone]) == {"C": pytest.approx(0.1)}


def record_of(sites: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """A judged round of five sites that count alike."""
    names = "ABCDE"
    return {
        "kind": "round",
        "aggregation": dict.fromkeys(names, 0.2),
        "samples": dict.fromkeys(names, 10),
        "cross_evaluation": {"sites": sites, "server": [], "together": {}},
        **fields,
    }


def answers(judge: str, base: float, **losses: float) -> dict[str, Any]:
    """One judge's scores: of all others together, and without each pair, such as ``BC=0.1``."""
    entries = [{"without": [judge], "score": base}]
    for pair, loss in losses.items():
        entries.append({"without": [judge, *pair], "score": base - loss})
    return {judge: entries}


def test_a_site_that_too_few_judged_is_not_judged_rather_than_worth_nothing() -> None:
    record = record_of({**answers("A", 0.8, BC=0.1, DE=0.1), **answers("B", 0.8, AC=0.1, DE=0.1)})
    credits = credit_from_sites([record])
    assert {credit.value for credit in credits.values()} == {None}
    assert credits["D"].reason == "fewer than three sites judged it"
    assert credits["D"].judges == 2


def test_a_site_that_nobody_judged_is_not_said_to_have_had_no_weight() -> None:
    """Of the five, A alone answered; E has weight in neither round."""
    weights = {**dict.fromkeys("ABCD", 0.25), "E": 0.0}
    record = record_of(answers("A", 0.8, BC=0.1, DE=0.1), aggregation=weights)
    reasons = {site: credit.reason for site, credit in credit_from_sites([record]).items()}
    assert reasons["A"] == "fewer than three sites judged it"
    assert reasons["E"] == "its update had next to no weight in every judged round"


def test_a_judge_without_a_score_of_the_whole_model_has_no_part() -> None:
    sites = {}
    for judge in "ABC":
        sites.update(answers(judge, 0.8, DE=0.1))
    sites["B"] = sites["B"][1:]
    credits = credit_from_sites([record_of(sites)])
    assert credits["D"].judges == 2


def test_ledgers_without_judges_give_nothing() -> None:
    records = [{"kind": "start"}, {"kind": "round"}, record_of({}, cross_evaluation=None)]
    assert credit_from_sites(records) == {}
    assert credit_from_server(records) == {}


def test_the_servers_value_is_the_mean_over_rounds_at_the_weight_of_the_images() -> None:
    def judged(without_a: float, weight: float) -> dict[str, Any]:
        scores = [{"without": [], "score": 0.8}, {"without": ["A"], "score": without_a}]
        found = {"sites": {}, "server": scores, "together": {}}
        weights = {"A": weight, "B": 1 - weight}
        return record_of({}, cross_evaluation=found, aggregation=weights)

    # A has a fifth of the images. In the second round it had twice that weight.
    credits = credit_from_server([judged(0.7, weight=0.2), judged(0.7, weight=0.4)])
    assert credits["A"].value == pytest.approx((0.1 + 0.05) / 2)
    assert (credits["A"].least, credits["A"].most) == pytest.approx((0.05, 0.1))
    assert (credits["A"].judges, credits["A"].rounds) == (1, 2)
    assert credits["A"].total == pytest.approx(0.15)


@pytest.mark.parametrize(
    ("declared", "expected"), [({}, 0.1), ({"A": 30}, 0.1), ({"A": 30, "B": 10}, 0.15)]
)
def test_images_count_where_the_settings_declare_those_of_all_sites(
    declared: dict[str, int], expected: float
) -> None:
    scores = [{"without": [], "score": 0.8}, {"without": ["A"], "score": 0.7}]
    found = {"sites": {}, "server": scores, "together": {}}
    weights = {"A": 0.5, "B": 0.5}
    samples = {"A": 30, "B": 10}
    record = record_of({}, cross_evaluation=found, aggregation=weights, samples=samples)
    records = [{"kind": "start", "samples": declared}, record]
    assert credit_from_server(records)["A"].value == pytest.approx(expected)
    assert is_valued_by_images(records) == (len(declared) == 2)


def test_images_count_for_nobody_where_one_site_of_a_group_or_of_a_round_is_not_declared() -> None:
    scores = [{"without": [], "score": 0.8}, {"without": ["A"], "score": 0.7}]
    alone = {"sites": {}, "server": scores, "together": {}}
    group = {**alone, "together": {"A": ["A", "C"]}}
    weights = {"A": 0.5, "B": 0.5}
    start = {"kind": "start", "samples": {"A": 300, "B": 30}}
    declared = record_of({}, cross_evaluation=alone, aggregation=weights, samples=start["samples"])
    # C sends the update of A, and says that it has a million images.
    copied = {**declared, "cross_evaluation": group, "samples": {"A": 500_150, "B": 30}}
    late = {**declared, "samples": {"A": 300, "B": 30, "C": 30}}
    assert is_valued_by_images([start, declared])
    assert not is_valued_by_images([start, copied])
    assert not is_valued_by_images([start, declared, late])
    values = [0.1 / (0.5 / (1 / 2)), 0.1 / (0.5 / (1 / 3))]
    found = credit_from_server([start, declared, late])["A"]
    assert (found.least, found.most) == pytest.approx((values[1], values[0]))


@pytest.mark.parametrize(("of_all", "without_a"), [(None, 0.7), (0.8, None)])
def test_a_score_that_is_no_number_does_not_count(
    of_all: float | None, without_a: float | None
) -> None:
    scores = [{"without": [], "score": of_all}, {"without": ["A"], "score": without_a}]
    found = {"sites": {}, "server": scores, "together": {}}
    record = record_of({}, cross_evaluation=found, aggregation={"A": 0.2, "B": 0.8})
    assert credit_from_server([record])["A"].value is None


# ---- in real federations


def credits_of(
    folder: Path,
    strategy: Strategy,
    attack: Attack | None = None,
    fault: Fault | None = None,
    **settings: Any,
) -> dict[str, float | None]:
    """site -> its total by the other sites, after a run whose judges may lie."""
    given = {"rounds": 4, "cross_evaluate_every": 1, **settings}
    records = federation_of(strategy, folder / "run", attack, fault=fault, **given).run().records
    return {site: credit.total for site, credit in credit_from_sites(records).items()}


UNVERIFIABLE = {
    "FedCE": FedCE,
    "FedISM": FedISM,
    "AFL": AFL,
    "QFedAvg": lambda: QFedAvg(form="loss_weighted"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(UNVERIFIABLE))
def test_a_plausible_false_report_buys_weight_and_no_credit_by_others(
    tmp_path: Path, name: str
) -> None:
    honest = credits_of(tmp_path / "honest", UNVERIFIABLE[name]())
    attacked = credits_of(
        tmp_path / "attacked", UNVERIFIABLE[name](), ATTACKS["plausible false report"]
    )
    share = {}
    for key, credits in (("honest", honest), ("attacked", attacked)):
        share[key] = credits["H"] / sum(credits.values())  # type: ignore[operator]
    assert share["attacked"] < 1.05 * share["honest"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy", [FedCE("cos"), FedAvg(weighting="uniform")], ids=["FedCE", "uniform"]
)
def test_a_false_number_of_images_buys_no_credit_by_others(
    tmp_path: Path, strategy: Strategy
) -> None:
    def with_more_images(request: Request, reply: Reply) -> Reply:
        if request.client != "H" or request.task != "train":
            return reply
        return replace(reply, num_samples=1000 * reply.num_samples)

    honest = credits_of(tmp_path / "honest", strategy)
    attacked = credits_of(tmp_path / "attacked", strategy, fault=with_more_images)
    assert attacked == pytest.approx(honest, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("lie", [0.0, 1.0])
def test_one_judge_that_lies_changes_no_value_by_more_than_a_tenth(
    tmp_path: Path, lie: float
) -> None:
    honest = credits_of(tmp_path / "honest", FedAvg())

    def lying(request: Request, reply: Reply) -> Reply:
        if request.client != "H" or request.task != "measure":
            return reply
        # Every second model that it is asked about it calls perfect, or worthless.
        score = lie if request.id % 2 else 0.5
        return replace(reply, measurements={"score": score})

    attacked = credits_of(tmp_path / "attacked", FedAvg(), fault=lying)
    for site in SITES:
        assert attacked[site] == pytest.approx(honest[site], rel=0.1)


@pytest.mark.slow
def test_a_site_whose_patients_are_others_may_be_worth_less_to_them_and_is_judged(
    tmp_path: Path,
) -> None:
    credits = credits_of(tmp_path, FedAvg(), outlier=True)
    assert credits["H"] is not None
    assert credits["H"] < min(credits[site] for site in SITES[:-1])  # type: ignore[type-var]
