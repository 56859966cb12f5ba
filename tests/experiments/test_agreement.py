# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Measures of agreement and fairness beside the papers' published tables."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from agreement import agreement, pearson
from helpers.reports import rows_of

from monai_fairfl.statistics import performance

GOLDEN = Path(__file__).parents[1] / "golden"


def table(name: str) -> list[dict[str, str]]:
    return rows_of(GOLDEN / "tables" / f"{name}.csv")


def fractions(row: dict[str, str], prefix: str) -> list[float]:
    """Values of the columns prefix1, prefix2, ..., printed in percent."""
    return [float(row[f"{prefix}{i}"]) / 100 for i in range(1, 7) if row.get(f"{prefix}{i}")]


def find(name: str, **keys: str) -> dict[str, str]:
    """The row of a table that has these values."""
    [found] = [row for row in table(name) if keys.items() <= row.items()]
    return found


def spread(scores: list[float], quantity: str) -> float:
    of_sites = dict(zip("123456", scores))
    if quantity == "avg_dice":
        return 100 * performance(of_sites).mean
    return 100 * performance(of_sites, ddof=int(quantity[-1])).std


def recompute(row: dict[str, str]) -> float:
    """One row of the verification report, from printed values and this package's functions."""
    source, task, name, quantity = (row[k] for k in ("source_table", "task", "row", "quantity"))
    if source == "fedce_table1":
        dice = find("fedce_table1_table6_dice", task=task, method=name)
        return spread(fractions(dice, "client"), quantity)
    if source.startswith("fedlwr"):
        return spread(fractions(find(FEDLWR[source], method=name), "site"), quantity)
    if source.startswith("shapfed"):
        dataset, partition = task.split("/")
        keys = {"dataset": dataset, "partition": partition}
        of = [fractions(find(source, method=one, **keys), "P") for one in ("Individual", name)]
        return pearson(*of)
    rows = [row for row in table(LOO[task]) if row["client"] != "none_removed"]
    samples = np.array([float(row["training_samples"]) for row in rows])
    published = [float(row["performance_contribution_pct"]) / 100 for row in rows]
    found = agreement((samples / samples.sum()).tolist(), published)
    return float(getattr(found, quantity.removesuffix("_x100")))


FEDLWR = {"fedlwr_table1": "fedlwr_table1_prostate", "fedlwr_table2": "fedlwr_table2_rif"}
LOO = {"fundus": "fedce_table4_loo_fundus", "prostate": "fedce_table5_loo_prostate"}
RECOMPUTED = "fedce_table1 fedce_table3 fedlwr_table1 fedlwr_table2 shapfed_table1 shapfed_table2"

# What half a unit of the last printed digit, or the coarser rounding of the paper, allows.
TOLERANCE = {"fedce_table1": 0.0056, "fedlwr_table1": 0.01, "fedlwr_table2": 0.01}


def test_published_values_are_met_where_the_report_says_so_and_missed_elsewhere() -> None:
    met = 0
    for row in table("verification_report"):
        source = row["source_table"]
        if source in RECOMPUTED.split() and row["quantity"] != "p_value":
            value = recompute(row)
            is_met = abs(value - float(row["published"])) <= TOLERANCE.get(source, 0.005)
            assert is_met == (row["matches"] == "1"), row
            met += is_met
    assert met == 80


def test_correlations_that_do_not_exist_are_undefined_not_zero() -> None:
    other = [0.1, 0.2, 0.3, 0.4]
    constant = [0.1 + 0.2, 0.3, 0.3, 0.3]
    for sides in ((constant, other), (other, constant)):
        assert math.isnan(pearson(*sides))
    found = agreement([0.25] * 4, other)
    assert math.isnan(found.pearson)
    assert found.cosine == pytest.approx(0.5 / math.sqrt(0.3))


def test_clients_are_matched_by_name_and_what_cannot_be_compared_is_refused() -> None:
    assert agreement({"b": 0.7, "a": 0.3}, {"a": 0.3, "b": 0.7}).euclidean == 0
    with pytest.raises(ValueError, match="'a'.*'b'"):
        pearson({"a": 0.5}, {"b": 0.5})
    with pytest.raises(ValueError, match="sum to 1"):
        agreement({"a": 4.0, "b": 1.0}, {"a": 0.5, "b": 0.5})
