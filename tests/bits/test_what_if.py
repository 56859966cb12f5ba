# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What-if: the answer is that of a run where nothing was trained again, or it is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.tiny_networks import SITES, federation

from monai_fairfl import Strategy
from monai_fairfl import strategies as shipped
from monai_fairfl.audit import NotInLedgerError, what_if
from monai_fairfl.strategies import FedAvg, FedCE

ROUNDING = 1e-6
"""Inner products of three updates and the same of four differ by the rounding of float32."""

OTHERS = [site for site in SITES if site != "elm"]


@pytest.mark.parametrize("kind", [FedCE, shipped.CFFL])
def test_the_first_round_without_a_site_is_that_of_a_run_without_it(
    kind: type[Strategy], tmp_path: Path
) -> None:
    """Guards would compare with all sites."""
    federation(kind(), tmp_path / "all", guards=()).run()
    rest = federation(kind(), tmp_path / "rest", sites=OTHERS, rounds=1, guards=()).run()
    answer = what_if(tmp_path / "all" / "run", without="elm")
    first = answer.rounds[0]["what_if"]
    assert set(first["contributions"]) == set(OTHERS)
    assert first["aggregation"] == pytest.approx(rest.rounds[0]["aggregation"], abs=ROUNDING)
    assert {site for site in SITES if answer.sites[site]["weight"]["what_if"] is None} == {"elm"}
    weights = [entry["recorded"]["aggregation"]["elm"] for entry in answer.rounds]
    assert answer.sites["elm"]["weight"]["recorded"] == pytest.approx(sum(weights) / 3)


@pytest.mark.parametrize("make", [shipped.ShapFed, shipped.Standalone])
def test_another_strategy_computes_in_the_first_round_what_its_own_run_does(
    make: Callable[[], Strategy], tmp_path: Path
) -> None:
    federation(FedCE(), tmp_path / "fedce", guards=()).run()
    own = federation(make(), tmp_path / "own", rounds=1, guards=()).run()
    answer = what_if(tmp_path / "fedce" / "run", strategy=make())
    first = answer.rounds[0]["what_if"]
    assert first["aggregation"] == pytest.approx(own.rounds[0]["aggregation"], abs=ROUNDING)
    assert len(answer.rounds) == 3


def test_a_strategy_whose_answers_are_not_in_the_ledger_is_refused_by_name(tmp_path: Path) -> None:
    federation(FedAvg(), tmp_path).run()
    for strategy, word in (
        (shipped.LeaveOneOut(), "models of its own"),
        (shipped.CFFL(), "local_score"),
        (FedAvg(training={"prox_mu": 0.1}), "prox_mu"),
        (shipped.ShapFed(output_layer="0"), "output layer '0'"),
    ):
        with pytest.raises(NotInLedgerError, match=f"{type(strategy).__name__}.*{word}"):
            what_if(tmp_path / "run", strategy=strategy)


def test_sites_that_did_not_answer_do_not_count_as_enough(tmp_path: Path) -> None:
    sites = ["ash", "elm", "oak"]
    federation(
        FedCE(), tmp_path, lambda asked, reply: reply if asked.client != "ash" else None, sites
    ).run()
    with pytest.raises(NotInLedgerError, match="'elm'.*remain"):
        what_if(tmp_path / "run", without="oak")
