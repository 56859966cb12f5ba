# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What-if: the answer is that of a training where nothing was trained again, or it is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.tiny_networks import SITES, federation, initial

from monai_fairfl import strategies as shipped
from monai_fairfl.audit import NotInLedgerError, what_if
from monai_fairfl.errors import ConfigError
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.strategies import Strategy, compose

pytestmark = pytest.mark.slow  # together they take long, each by itself does not

ROUNDING = 1e-6
"""Inner products of three updates and the same of four differ by the rounding of float32."""

OTHERS = [site for site in SITES if site != "elm"]

EXACT: dict[str, Callable[[], Strategy]] = {
    "FedAvg": shipped.FedAvg,
    "FedCE": shipped.FedCE,
    "CGSV": shipped.CGSV,
    "ShapFed": shipped.ShapFed,
    "FedISM": shipped.FedISM,
    "FedISM-saga": lambda: shipped.FedISM(salt=False),
    "QFedAvg": shipped.QFedAvg,
    "AFL": shipped.AFL,
    "CFFL": shipped.CFFL,
    "FairFed": shipped.FairFed,
    "FedGA": shipped.FedGA,
    "Ditto": shipped.Ditto,
}


@pytest.mark.parametrize("name", EXACT)
def test_the_first_round_without_a_site_is_that_of_a_run_without_it(
    name: str, tmp_path: Path
) -> None:
    """No guards: what they compare with all sites would change, too."""
    federation(EXACT[name](), tmp_path / "all", guards=()).run()
    rest = federation(EXACT[name](), tmp_path / "rest", sites=OTHERS, rounds=1, guards=()).run()

    answer = what_if(tmp_path / "all" / "run", without="elm")
    assert answer.first_round_is_exact and answer.why_not == ""
    first = answer.rounds[0]["what_if"]
    assert first["aggregation"] == pytest.approx(rest.rounds[0]["aggregation"], abs=ROUNDING)
    assert set(first["contributions"]) == set(OTHERS)
    for site in OTHERS:
        assert sum(answer.rounds[2]["what_if"]["aggregation"].values()) == pytest.approx(1.0)
        assert answer.sites[site]["weight"]["what_if"] is not None
    assert answer.sites["elm"]["weight"]["what_if"] is None
    assert answer.sites["elm"]["weight"]["recorded"] is not None


@pytest.mark.parametrize("name", EXACT)
def test_an_absent_site_and_one_that_is_left_out_are_the_same(name: str, tmp_path: Path) -> None:
    """All rounds: a site whose answers never arrive is left out of a run where they did."""

    def lose_elm(request: Request, reply: Reply) -> Reply | None:
        return None if request.client == "elm" else reply

    # Of one round, since the models of the second differ.
    federation(EXACT[name](), tmp_path / "all", rounds=1, guards=()).run()
    lost = federation(EXACT[name](), tmp_path / "lost", lose_elm, rounds=1, guards=()).run()
    (answer,) = what_if(tmp_path / "all" / "run", without="elm").rounds
    recorded = lost.rounds[0]["aggregation"]
    assert answer["what_if"]["aggregation"] == pytest.approx(recorded, abs=ROUNDING)


@pytest.mark.parametrize(
    "name", ["FedAvg", "ShapFed", "CGSV", "FairFed", "FedCE-cos", "Standalone"]
)
def test_another_strategy_computes_in_the_first_round_what_its_own_run_does(
    name: str, tmp_path: Path
) -> None:
    made = {**EXACT, "FedCE-cos": lambda: shipped.FedCE("cos"), "Standalone": shipped.Standalone}
    federation(shipped.FedCE(), tmp_path / "fedce", guards=()).run()
    own = federation(made[name](), tmp_path / "own", rounds=1, guards=()).run()
    answer = what_if(tmp_path / "fedce" / "run", strategy=made[name]())
    first = answer.rounds[0]["what_if"]
    assert first["aggregation"] == pytest.approx(own.rounds[0]["aggregation"], abs=ROUNDING)
    assert answer.first_round_is_exact
    assert len(answer.rounds) == 3


def test_the_runs_own_strategy_with_its_arguments_gives_what_is_recorded(tmp_path: Path) -> None:
    for strategy in (shipped.FedCE("sum"), shipped.FedLWR(), shipped.FedCI()):
        folder = tmp_path / strategy.name
        federation(strategy, folder).run()
        again = {"FedCE": shipped.FedCE("sum")}.get(type(strategy).__name__, type(strategy)())
        rounds = what_if(folder / "run", strategy=again).rounds
        assert len(rounds) == 3
        for entry in rounds:
            assert entry["what_if"] == entry["recorded"]


def test_a_number_in_the_runs_own_range_counts_in_the_answer(tmp_path: Path) -> None:
    """Elm's loss is above the package's range, and the run's settings allow it."""

    def report_more(request: Request, reply: Reply) -> Reply:
        if request.client != "elm" or "global_loss" not in reply.measurements:
            return reply
        return replace(reply, measurements={**reply.measurements, "global_loss": 250.0})

    settings = {"ranges": {"global_loss": [0, 5000]}}
    federation(shipped.QFedAvg(), tmp_path, report_more, **settings).run()
    rounds = what_if(tmp_path / "run", strategy=shipped.QFedAvg()).rounds
    assert len(rounds) == 3
    for entry in rounds:
        assert entry["what_if"] == entry["recorded"]


def test_other_arguments_of_a_method_that_asks_after_training_are_answered(
    tmp_path: Path,
) -> None:
    federation(shipped.FedCI(), tmp_path).run()
    answer = what_if(tmp_path / "run", strategy=shipped.FedCI(decay=0.5))
    for entry in answer.rounds:
        assert entry["what_if"]["aggregation"] == entry["recorded"]["aggregation"]
    assert answer.rounds[2]["what_if"]["contributions"] != answer.rounds[2]["recorded"]


REFUSED = {
    "LeaveOneOut": (shipped.LeaveOneOut, "LeaveOneOut, round 0: in exchange 1 it asks the sites"),
    "FedCI": (shipped.FedCI, "FedCI, round 0: in exchange 1 it asks the sites about models of"),
    "FedLWR": (shipped.FedLWR, "FedLWR, round 0: in exchange 1 it asks the sites about models of"),
    "QFedAvg": (shipped.QFedAvg, "QFedAvg, round 0: it needs 'global_loss', and this run did not"),
    "FedGA": (shipped.FedGA, "FedGA, round 0: it needs 'global_loss'"),
    "CFFL": (shipped.CFFL, r"needs 'local_score'.*measured: global_score\)"),
    "FedCE": (shipped.FedCE, "FedCE, round 1: it needs 'leave_one_out_error'"),
    "Ditto": (shipped.Ditto, "Ditto, round 0: it needs 'personal_score'"),
    "FedISM": (shipped.FedISM, "FedISM, round 0: it needs 'sharpness'"),
    "FedAvg with prox": (
        lambda: compose(shipped.FedAvg(), training={"prox_mu": 0.1}),
        "its sites would train with {'prox_mu': 0.1}, and those of this run did with no context",
    ),
    "ShapFed of another layer": (
        lambda: shipped.ShapFed(output_layer="0"),
        r"the classes of output layer '0', and the ledger holds those of \['3'\]",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_strategy_whose_answers_are_not_in_the_ledger_is_refused_by_name(
    name: str, tmp_path: Path
) -> None:
    make, why = REFUSED[name]
    federation(shipped.FedAvg(), tmp_path).run()
    with pytest.raises(NotInLedgerError, match=why):
        what_if(tmp_path / "run", strategy=make())


@pytest.mark.parametrize("coalitions", ["FedCI", "LeaveOneOut"])
def test_scores_of_other_coalitions_are_never_taken_for_the_ones_that_are_asked(
    coalitions: str, tmp_path: Path
) -> None:
    """With three sites both methods score models for every site, in exchanges of one size."""
    kinds: dict[str, type[Strategy]] = {
        "FedCI": shipped.FedCI,
        "LeaveOneOut": shipped.LeaveOneOut,
    }
    other = next(kind for name, kind in kinds.items() if name != coalitions)
    federation(kinds[coalitions](), tmp_path, sites=OTHERS).run()
    with pytest.raises(NotInLedgerError, match="it asks the sites about models of its own"):
        what_if(tmp_path / "run", strategy=other())
    assert what_if(tmp_path / "run", strategy=shipped.FedAvg()).first_round_is_exact


@pytest.mark.parametrize(
    "strategy",
    [
        shipped.FedLWR(),
        shipped.FedCI(),
        shipped.LeaveOneOut(),
        shipped.CGSV(reward="contribution_index"),
    ],
    ids=lambda strategy: strategy.name,
)
def test_a_method_that_asks_after_training_is_not_answered_without_a_site(
    strategy: Strategy, tmp_path: Path
) -> None:
    federation(strategy, tmp_path).run()
    with pytest.raises(NotInLedgerError, match="models that the update of elm is in"):
        what_if(tmp_path / "run", without="elm")


def test_too_few_sites_unknown_ones_and_no_question_are_refused(tmp_path: Path) -> None:
    federation(shipped.FedCE(), tmp_path, sites=["ash", "elm"]).run()
    run = tmp_path / "run"
    with pytest.raises(NotInLedgerError, match="needs at least 2 sites, and in round 0 1 remain"):
        what_if(run, without="elm")
    with pytest.raises(ConfigError, match="'elmm' took part in no round; did you mean 'elm'"):
        what_if(run, without="elmm")
    with pytest.raises(ConfigError, match=r"without=.*--without.*strategy=.*--strategy"):
        what_if(run)
    both = what_if(run, without="elm", strategy=shipped.FedAvg())
    assert both.question == {"strategy": "FedAvg", "without": "elm"}
    assert both.rounds[1]["what_if"]["aggregation"] == {"ash": 1.0}


def test_a_strategy_that_cannot_train_the_runs_model_is_refused_by_its_own_name(
    tmp_path: Path,
) -> None:
    """Parts stand for those that make models; no error names them."""
    asked = federation(shipped.FedAvg(), tmp_path)

    def initial_of_an_unknown_output() -> tuple[dict[str, torch.Tensor], ModelSpec]:
        weights, spec = initial()
        return weights, replace(spec, output=None)

    asked.initial = initial_of_an_unknown_output
    asked.run()
    mixed = compose(shipped.ShapFed(), weighting=shipped.Uniform(), average=shipped.Median())
    for strategy, name in ((shipped.ShapFed(), "ShapFed"), (mixed, "ShapFed-Uniform-Median")):
        with pytest.raises(ConfigError, match=f"^{name} looks at the layer that makes the logits"):
            what_if(tmp_path / "run", strategy=strategy)
        assert strategy.name == name


def test_a_run_that_drew_its_sites_has_no_exact_first_round(tmp_path: Path) -> None:
    federation(shipped.FedAvg(), tmp_path, clients_per_round=3).run()
    answer = what_if(tmp_path / "run", without="oak")
    assert not answer.first_round_is_exact
    assert answer.why_not == "each round drew some of the sites, and would have drawn others"
    assert what_if(tmp_path / "run", strategy=shipped.ShapFed()).first_round_is_exact


def test_a_guard_that_acted_in_the_first_round_compared_with_the_site_that_is_left_out(
    tmp_path: Path,
) -> None:
    def lengthen(request: Request, reply: Reply) -> Reply:
        if reply.update is None or request.client != "ash":
            return reply
        return replace(reply, update={name: 50 * value for name, value in reply.update.items()})

    federation(shipped.FedAvg(), tmp_path, lengthen).run()
    answer = what_if(tmp_path / "run", without="oak")
    assert not answer.first_round_is_exact
    assert answer.why_not == "a guard acted on ash, which it compares with all sites"
