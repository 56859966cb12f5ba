# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What-if: the answer is that of a run where nothing was trained again, or it is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.tiny_networks import SITES, federation

from monai_fairfl import Reply, Request, Strategy
from monai_fairfl import strategies as shipped
from monai_fairfl.audit import NotInLedgerError, what_if
from monai_fairfl.errors import ConfigError
from monai_fairfl.strategies import FedAvg, FedCE

ROUNDING = 1e-6
"""Inner products of three updates and the same of four differ by the rounding of float32."""

OTHERS = [site for site in SITES if site != "elm"]


@pytest.mark.parametrize("kind", [FedCE, shipped.CGSV, shipped.ShapFed, shipped.CFFL])
def test_the_first_round_without_a_site_is_that_of_a_run_without_it(
    kind: type[Strategy], tmp_path: Path
) -> None:
    """And of one where its replies are lost. Guards would compare with all sites."""

    def lose_elm(request: Request, reply: Reply) -> Reply | None:
        return None if request.client == "elm" else reply

    federation(kind(), tmp_path / "all", guards=()).run()
    rest = federation(kind(), tmp_path / "rest", sites=OTHERS, rounds=1, guards=()).run()
    lost = federation(kind(), tmp_path / "lost", lose_elm, rounds=1, guards=()).run()

    answer = what_if(tmp_path / "all" / "run", without="elm")
    assert answer.first_round_is_exact and answer.why_not == ""
    first = answer.rounds[0]["what_if"]
    assert set(first["contributions"]) == set(OTHERS)
    for run in (rest, lost):
        recorded = run.rounds[0]["aggregation"]
        assert first["aggregation"] == pytest.approx(recorded, abs=ROUNDING)
    last = answer.rounds[2]["what_if"]["aggregation"]
    assert sum(last.values()) == pytest.approx(1.0)
    assert {site for site in SITES if answer.sites[site]["weight"]["what_if"] is None} == {"elm"}
    weights = [entry["recorded"]["aggregation"]["elm"] for entry in answer.rounds]
    assert answer.sites["elm"]["weight"]["recorded"] == pytest.approx(sum(weights) / 3)


@pytest.mark.parametrize("make", [shipped.ShapFed, lambda: FedCE("cos"), shipped.Standalone])
def test_another_strategy_computes_in_the_first_round_what_its_own_run_does(
    make: Callable[[], Strategy], tmp_path: Path
) -> None:
    federation(FedCE(), tmp_path / "fedce", guards=()).run()
    own = federation(make(), tmp_path / "own", rounds=1, guards=()).run()
    answer = what_if(tmp_path / "fedce" / "run", strategy=make())
    first = answer.rounds[0]["what_if"]
    assert first["aggregation"] == pytest.approx(own.rounds[0]["aggregation"], abs=ROUNDING)
    assert answer.first_round_is_exact and len(answer.rounds) == 3


@pytest.mark.parametrize("make", [lambda: FedCE("sum"), shipped.FedCI])
def test_the_runs_own_strategy_with_its_arguments_gives_what_is_recorded(
    make: Callable[[], Strategy], tmp_path: Path
) -> None:
    federation(make(), tmp_path).run()
    rounds = what_if(tmp_path / "run", strategy=make()).rounds
    assert len(rounds) == 3
    for entry in rounds:
        assert entry["what_if"] == entry["recorded"]


def test_a_strategy_whose_answers_are_not_in_the_ledger_is_refused_by_name(tmp_path: Path) -> None:
    federation(FedAvg(), tmp_path).run()
    for strategy, word in (
        (shipped.LeaveOneOut(), "models of its own"),
        (shipped.FedLWR(), "models of its own"),
        (shipped.CFFL(), "local_score"),
        (FedCE(), "leave_one_out_error"),
        (FedAvg(training={"prox_mu": 0.1}), "prox_mu"),
        (shipped.ShapFed(output_layer="0"), "output layer '0'"),
    ):
        with pytest.raises(NotInLedgerError, match=f"{type(strategy).__name__}.*{word}"):
            what_if(tmp_path / "run", strategy=strategy)


def test_scores_of_other_coalitions_are_never_taken_for_the_ones_that_are_asked(
    tmp_path: Path,
) -> None:
    """With three sites both methods score models for every site, in exchanges of one size."""
    for ran, asked in (
        (shipped.FedCI, shipped.LeaveOneOut),
        (shipped.LeaveOneOut, shipped.FedCI),
    ):
        folder = tmp_path / ran.__name__
        federation(ran(), folder, sites=OTHERS).run()
        with pytest.raises(NotInLedgerError, match=asked.__name__):
            what_if(folder / "run", strategy=asked())
        assert what_if(folder / "run", strategy=FedAvg()).first_round_is_exact


def test_too_few_sites_unknown_ones_and_no_question_are_refused(tmp_path: Path) -> None:
    federation(FedCE(), tmp_path, sites=["ash", "elm"]).run()
    run = tmp_path / "run"
    with pytest.raises(NotInLedgerError, match="at least 2"):
        what_if(run, without="elm")
    with pytest.raises(ConfigError, match="'elmm'.*'elm'"):
        what_if(run, without="elmm")
    with pytest.raises(ConfigError, match="site.*strategy"):
        what_if(run)
    both = what_if(run, without="elm", strategy=FedAvg())
    assert both.question == {"strategy": "FedAvg", "without": "elm"}
    assert both.rounds[1]["what_if"]["aggregation"] == {"ash": 1.0}


def test_where_sites_were_drawn_or_compared_the_first_round_is_not_exact(tmp_path: Path) -> None:
    def lengthen(request: Request, reply: Reply) -> Reply:
        if reply.update is None or request.client != "ash":
            return reply
        return replace(reply, update={name: 50 * value for name, value in reply.update.items()})

    federation(FedAvg(), tmp_path / "drawn", clients_per_round=3).run()
    federation(FedAvg(), tmp_path / "guarded", lengthen).run()
    for folder, word in (("drawn", "drew"), ("guarded", "guard acted on ash")):
        answer = what_if(tmp_path / folder / "run", without="oak")
        assert not answer.first_round_is_exact and word in answer.why_not
        other = what_if(tmp_path / folder / "run", strategy=shipped.ShapFed())
        assert other.first_round_is_exact and other.why_not == ""
