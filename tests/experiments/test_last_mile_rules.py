# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The rules of the last mile that are compared after the tests."""

from __future__ import annotations

import importlib

import pytest
from helpers.checkout import CHECKOUT


@pytest.mark.parametrize("name", ["uneven_prostate", "strong_fundus"])
def test_the_rule_as_it_is_takes_what_the_sites_took(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(CHECKOUT / "experiments"))
    last_mile = importlib.import_module("papers.last_mile")
    rules = importlib.import_module("papers.last_mile_rules")
    found = importlib.import_module("seeds").finished(
        importlib.import_module("study").Study.read(name)
    )
    alone = found["Standalone"]
    cells = last_mile.with_baselines(found["FedAvg"], alone, alone)
    taken = last_mile.losses_of(cells, cells, alone)
    [rule] = [rule for title, rule in rules.RULES.items() if title.startswith("**")]
    again = last_mile.losses_of(cells, cells, alone, rules.taken_by(rule))
    # The files have the Dice of cases to four digits.
    for seed, of_sites in taken.items():
        for site, of_folds in of_sites.items():
            for fold, difference in of_folds.items():
                assert again[seed][site][fold] == pytest.approx(difference, abs=1e-4)
