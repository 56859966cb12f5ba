# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from monai_fairfl.errors import ConfigError
from monai_fairfl.protocol.averages import normalise
from monai_fairfl.statistics.fairness import (
    agreement,
    gain,
    pearson,
    performance,
    performance_distance,
    performance_fairness_pearson,
)

GOLDEN = Path(__file__).parents[1] / "golden"


def table(name: str) -> list[dict[str, str]]:
    with (GOLDEN / "tables" / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def numbers(row: dict[str, str], prefix: str) -> list[float]:
    """Values of the columns prefix1, prefix2, ..., as printed."""
    return [float(row[f"{prefix}{i}"]) for i in range(1, 7) if row.get(f"{prefix}{i}")]


def fractions(row: dict[str, str], prefix: str) -> list[float]:
    return [value / 100 for value in numbers(row, prefix)]


def find(name: str, **keys: str) -> dict[str, str]:
    """The row of a table that has these values."""
    found = [row for row in table(name) if keys.items() <= row.items()]
    assert len(found) == 1
    return found[0]


def spread(scores: list[float], quantity: str) -> float:
    if quantity == "avg_dice":
        return 100 * performance(scores).mean
    return 100 * performance(scores, ddof=int(quantity[-1])).std


LOO = {"fundus": "fedce_table4_loo_fundus", "prostate": "fedce_table5_loo_prostate"}


def loo_rows(task: str) -> list[dict[str, str]]:
    return [row for row in table(LOO[task]) if row["client"] != "none_removed"]


def recompute(row: dict[str, str]) -> float:
    """One row of the verification report, from printed values and this package's functions."""
    source = row["source_table"]
    task = row["task"]
    name = row["row"]
    quantity = row["quantity"]
    if source == "fedce_table1":
        return spread(fedce_dice(task, name), quantity)
    if source.startswith("fedlwr"):
        return spread(fractions(find(FEDLWR[source], method=name), "site"), quantity)
    if source == "fedce_table2":
        return fairness_of_performance(fedce_dice(task, "Standalone"), fedce_dice(task, name))[
            quantity
        ]
    if source.startswith("shapfed"):
        return pearson(
            shapfed_scores(source, task, "Individual"), shapfed_scores(source, task, name)
        ).r
    if source == "fedce_table3":
        return agreement_with_samples(loo_rows(task), quantity)
    drops = published_drops(loo_rows(task))
    return 100 * normalise({client: sum(parts.values()) for client, parts in drops.items()})[name]


FEDLWR = {"fedlwr_table1": "fedlwr_table1_prostate", "fedlwr_table2": "fedlwr_table2_rif"}


def fedce_dice(task: str, method: str) -> list[float]:
    return fractions(find("fedce_table1_table6_dice", task=task, method=method), "client")


def shapfed_scores(source: str, task: str, method: str) -> list[float]:
    dataset, partition = task.split("/")
    return fractions(find(source, dataset=dataset, partition=partition, method=method), "P")


def fairness_of_performance(alone: list[float], method: list[float]) -> dict[str, float]:
    r, p_value = performance_fairness_pearson(alone, method)
    distance = performance_distance(alone, method)
    return {"pearson_x100": r, "p_value": p_value, "euclidean": distance}


def agreement_with_samples(rows: list[dict[str, str]], quantity: str) -> float:
    """Agreement of the shares of samples with the published leave-one-out shares."""
    samples = np.array([float(row["training_samples"]) for row in rows])
    published = [float(row["performance_contribution_pct"]) / 100 for row in rows]
    found = agreement((samples / samples.sum()).tolist(), published)
    if quantity == "pearson_x100":
        return found.pearson
    value: float = getattr(found, quantity)
    return value


def published_drops(rows: list[dict[str, str]]) -> dict[str, dict[str, float]]:
    """client -> structure -> drop in score without this client."""
    drops = {}
    for row in rows:
        deltas = {key: value for key, value in row.items() if key.startswith("delta_")}
        drops[f"client{row['client']}"] = {key: -float(value) for key, value in deltas.items()}
    return drops


# What half a unit of the last printed digit, or the coarser rounding of the paper, allows.
TOLERANCE = {
    ("fedce_table1", "avg_dice"): 0.0055,
    ("fedce_table1", "std_ddof1"): 0.0056,
    ("fedce_table2", "p_value"): 0.0005,
    ("fedce_table4", "performance_contribution_pct"): 0.25,
    ("fedce_table5", "performance_contribution_pct"): 0.03,
    ("fedlwr_table1", "avg_dice"): 0.01,
    ("fedlwr_table1", "std_ddof0"): 0.01,
    ("fedlwr_table1", "std_ddof1"): 0.01,
    ("fedlwr_table2", "avg_dice"): 0.01,
    ("fedlwr_table2", "std_ddof0"): 0.01,
    ("fedlwr_table2", "std_ddof1"): 0.01,
}


def can_be_recomputed(row: dict[str, str]) -> bool:
    source = row["source_table"]
    return not source.endswith("own_r") and source != "fedce_table45"


def title(row: dict[str, str]) -> str:
    return f"{row['source_table']}-{row['task']}-{row['row']}-{row['quantity']}"


REPORT = [row for row in table("verification_report") if can_be_recomputed(row)]


def test_the_report_covers_every_table_that_can_be_recomputed() -> None:
    counts: dict[str, int] = {}
    for row in REPORT:
        source = row["source_table"]
        counts[source] = counts.get(source, 0) + int(row["matches"])
    assert counts == {
        "fedce_table1": 32,
        "fedce_table2": 0,
        "fedce_table3": 7,
        "fedce_table4": 4,
        "fedce_table5": 4,
        "fedlwr_table1": 18,
        "fedlwr_table2": 18,
        "shapfed_table1": 5,
        "shapfed_table2": 2,
    }


@pytest.mark.parametrize("row", REPORT, ids=title)
def test_published_values_are_met_where_the_report_says_so_and_missed_elsewhere(
    row: dict[str, str],
) -> None:
    value = recompute(row)
    assert value == pytest.approx(float(row["recomputed"]), rel=3e-3, abs=6e-5)
    tolerance = TOLERANCE.get((row["source_table"], row["quantity"]), 0.005)
    assert (abs(value - float(row["published"])) <= tolerance) == (row["matches"] == "1")


def test_performance_names_the_worst_site() -> None:
    found = performance({"x": 0.9, "a": 0.6, "m": 0.7})
    assert (found.worst_client, found.worst) == ("a", 0.6)
    assert found.gap == pytest.approx(0.3)
    assert found.std == pytest.approx(stats.tstd([0.9, 0.6, 0.7]))


def test_equally_bad_sites_are_distinguished_by_name_not_by_order() -> None:
    assert performance({"b": 0.5, "a": 0.5, "c": 0.9}).worst_client == "a"


def test_a_sequence_numbers_its_clients_in_order() -> None:
    scores = [0.9] * 10 + [0.1, 0.8]
    assert performance(scores).worst_client == "10"
    gains = gain(scores, [0.0] * 12)
    assert list(gains) == [str(number) for number in range(12)]
    assert list(gains.values()) == scores


def test_one_site_has_a_mean_but_no_sample_deviation() -> None:
    found = performance({"only": 0.8})
    assert found.mean == 0.8 and math.isnan(found.std) and found.jain == pytest.approx(1)
    assert performance({"only": 0.8}, ddof=0).std == 0


SCORES = st.lists(st.floats(0, 1).map(lambda x: round(x, 6)), min_size=1, max_size=8)


@pytest.mark.slow
@given(SCORES, st.randoms(use_true_random=False), st.floats(0.01, 1))
def test_jain_lies_between_one_nth_and_one_whatever_scale_and_order(
    scores: list[float], random: Random, scale: float
) -> None:
    assume(any(scores))
    jain = performance(scores).jain
    assert 1 / len(scores) - 1e-9 <= jain <= 1 + 1e-9
    shuffled = [scale * score for score in scores]
    random.shuffle(shuffled)
    assert performance(shuffled).jain == pytest.approx(jain, rel=1e-9)


def test_jain_is_one_for_equal_scores_one_nth_for_one_winner_and_undefined_for_zeros() -> None:
    assert performance([0.4] * 5).jain == pytest.approx(1)
    assert performance([0.0, 0.0, 0.7, 0.0]).jain == pytest.approx(0.25)
    assert math.isnan(performance([0.0, 0.0]).jain)


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=3, max_size=8),
    st.floats(0.1, 10),
)
def test_pearson_is_scipys_and_does_not_change_with_order_scale_and_offset(
    pairs: list[tuple[int, int]], scale: float
) -> None:
    x, y = (np.array(v, dtype=float) for v in zip(*pairs))
    assume(np.ptp(x) > 0 and np.ptp(y) > 0)
    found = pearson(x.tolist(), y.tolist())
    expected = stats.pearsonr(x, y)
    assert (found.r, found.p_value) == pytest.approx(
        (expected.statistic, expected.pvalue), abs=1e-12
    )
    assert pearson((scale * x[::-1] + 7).tolist(), y[::-1].tolist()).r == pytest.approx(
        found.r, abs=1e-6
    )
    assert pearson(y.tolist(), (-x).tolist()).r == pytest.approx(-found.r, abs=1e-12)


@pytest.mark.parametrize("constant", [[0.25] * 4, [0.1 + 0.2, 0.3, 0.3, 0.3]])
def test_correlation_with_equal_weights_is_undefined_not_zero(constant: list[float]) -> None:
    other = [0.1, 0.2, 0.3, 0.4]
    assert all(math.isnan(value) for value in pearson(constant, other) + pearson(other, constant))
    found = agreement([0.25] * 4, other)
    assert math.isnan(found.pearson) and math.isnan(found.p_value)
    assert found.euclidean == pytest.approx(math.dist([0.25] * 4, other))
    assert found.cosine == pytest.approx(0.5 / math.sqrt(0.3))


def test_correlation_of_two_clients_is_undefined() -> None:
    assert math.isnan(performance_fairness_pearson([0.8, 0.9], [0.7, 0.9]).r)


def test_clients_are_matched_by_name() -> None:
    assert gain({"b": 0.9, "a": 0.5}, {"a": 0.6, "b": 0.7}) == pytest.approx({"a": -0.1, "b": 0.2})
    assert agreement({"b": 0.7, "a": 0.3}, {"a": 0.3, "b": 0.7}).euclidean == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: performance({}), "empty"),
        (lambda: performance({"siteA": 0.9, "siteB": float("nan")}), "'siteB' has nan"),
        (
            lambda: performance({"siteA": 0.9, "siteB": 87.2}),
            "'siteB' has 87.2.*divide percentages by 100",
        ),
        (lambda: performance({"siteA": -0.2}), "'siteA'"),
        (lambda: performance({"siteA": None}), "'siteA' has None"),  # type: ignore[dict-item]
        (
            lambda: gain({"a": 0.5}, {"b": 0.5}),
            r"same clients; only method has \['a'\], only standalone has \['b'\]. Leave them out",
        ),
        (lambda: gain({"0": 0.5}, [0.5]), "both be mappings"),
        (lambda: pearson([0.5], [0.5]), "at least two"),
        (lambda: agreement({"a": 1.0}, {"a": 1.0}), "one client"),
        (
            lambda: agreement({"a": 4.0, "b": 1.0}, {"a": 0.5, "b": 0.5}),
            "estimated: shares must sum to 1, got 5",
        ),
    ],
)
def test_input_that_cannot_be_judged_is_refused_with_the_client_named(
    call: Callable[[], object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        call()
