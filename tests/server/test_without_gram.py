# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``gram=False``: lengths and inner products with the step, in place of those of all pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.least_squares_federation import federation, ledger_bytes, stopped_in_round

from monai_fairfl.audit import NotInLedgerError, replay, what_if
from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.guards import Copies, NonFinite, TooLong
from monai_fairfl.protocol.averages import sample_shares
from monai_fairfl.protocol.messages import Train
from monai_fairfl.run_folder.ledger import read_ledger
from monai_fairfl.strategies import (
    CGSV,
    FedAvg,
    FedCE,
    Krum,
    QFedAvg,
    Rounds,
    Strategy,
    compose,
)
from monai_fairfl.valuation.free_riders import free_rider_history

GUARDS = (NonFinite(), TooLong())


def rounds_of(folder: Path, strategy: Strategy, **settings: Any) -> list[dict[str, Any]]:
    federation(folder, strategy, guards=GUARDS, **settings).run()
    records = read_ledger(folder / "run" / "ledger.jsonl")
    return [record for record in records if record["kind"] == "round"]


@pytest.mark.parametrize(
    "strategy",
    [FedAvg(), FedCE("sum"), FedCE("cos", variant="released"), CGSV(), QFedAvg()],
    ids=lambda strategy: strategy.name,
)
def test_weights_and_contributions_are_those_of_the_gram_matrix(
    strategy: Strategy, tmp_path: Path
) -> None:
    usual = rounds_of(tmp_path / "usual", strategy)
    found = rounds_of(tmp_path / "found", strategy, gram=False)
    for with_gram, without in zip(usual, found, strict=True):
        whole = np.array(with_gram["gram"]["whole"])
        gram = without["gram"]
        assert gram["clients"] == ["A", "B", "C"] and gram["whole"] is None
        np.testing.assert_allclose(gram["squared_norms"], np.diag(whole), rtol=1e-9)
        for entry in gram["sums"]:
            expected = whole @ entry["factors"]
            np.testing.assert_allclose(entry["products"], expected, rtol=1e-9, atol=1e-12)

        # One of the sums is the round's step.
        scale = without["details"].get("scale", {})
        step = [without["aggregation"][client] * scale.get(client, 1.0) for client in "ABC"]
        assert any(np.allclose(entry["factors"], step) for entry in gram["sums"])
        for entry in ("aggregation", "contributions"):
            for client, value in with_gram[entry].items():
                if isinstance(value, dict):
                    assert without[entry][client]["value"] == pytest.approx(value["value"])
                else:
                    assert without[entry][client] == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize("strategy", [FedCE("sum"), CGSV(), QFedAvg()], ids=lambda s: s.name)
def test_its_ledger_replays(strategy: Strategy, tmp_path: Path) -> None:
    rounds_of(tmp_path, strategy, gram=False)
    found = replay(tmp_path / "run")
    assert found.rounds == 4 and found.numbers > 0 and not found.differences


def test_what_needs_other_sums_than_the_run_computed_is_refused(tmp_path: Path) -> None:
    rounds_of(tmp_path, FedCE("sum"), gram=False)
    with pytest.raises(NotInLedgerError, match="with gram=False the ledger has the sums"):
        what_if(tmp_path / "run", without="A")
    # Its sums are uniform ones, and the run's were weighted.
    with pytest.raises(NotInLedgerError, match="with gram=False the ledger has the sums"):
        what_if(tmp_path / "run", strategy=FedCE("sum", variant="released"))
    with pytest.raises(NotInLedgerError, match="all pairs of updates .the run had gram=False"):
        what_if(tmp_path / "run", strategy=CGSV(exact=True))


def test_guards_and_methods_that_compare_pairs_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the guards Copies, Noise, Opposed compare all pairs"):
        federation(tmp_path, FedAvg(), gram=False)
    with pytest.raises(ConfigError, match=r"guards Copies compare.*guards=\['NonFinite'\]"):
        federation(tmp_path, FedAvg(), gram=False, guards=(NonFinite(), Copies()))
    for strategy in (CGSV(exact=True), CGSV(reward="euclidean")):
        with pytest.raises(ConfigError, match="CGSV compares all pairs of updates, and gram=False"):
            federation(tmp_path, strategy, gram=False, guards=())
    with pytest.raises(ConfigError, match="Krum compares all pairs"):
        federation(tmp_path, compose(FedAvg(), weighting=Krum()), gram=False, guards=())
    with pytest.raises(ConfigError, match="gram must be True or False, got 'no'"):
        federation(tmp_path, FedAvg(), gram="no")


class Pairs(FedAvg):
    """A method of a user that reads all pairs and does not declare it."""

    def round(self, clients: Any) -> Rounds:
        local = yield [Train(client, self.start_of(client)) for client in clients]
        local.geometry.gram.sum()
        shares = sample_shares(local)
        return self.finish(local, shares, contributions=shares)


def test_a_method_that_does_not_declare_what_it_reads_is_refused_in_its_round(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match="compares all pairs of updates, and gram=False"):
        federation(tmp_path, Pairs(), gram=False, guards=()).run()


def test_a_resumed_run_is_the_same_and_keeps_the_setting(tmp_path: Path) -> None:
    settings = {"gram": False, "guards": GUARDS}
    federation(tmp_path / "whole", CGSV(), **settings).run()
    stopped_in_round(1, tmp_path / "parts", strategy=CGSV(), **settings).run()
    with pytest.raises(FederationError, match="begun with gram = False, now it is True"):
        federation(tmp_path / "parts", CGSV(), guards=GUARDS).run(resume=True)
    federation(tmp_path / "parts", CGSV(), **settings).run(resume=True)
    assert ledger_bytes(tmp_path / "parts") == ledger_bytes(tmp_path / "whole")


def test_free_rider_scores_need_the_step_only(tmp_path: Path) -> None:
    measured = {"evaluate": ("global_score", "local_score")}
    usual = free_rider_history(rounds_of(tmp_path / "usual", CGSV(), **measured))
    found = free_rider_history(rounds_of(tmp_path / "found", CGSV(), gram=False, **measured))
    assert usual.rounds and found.rounds == usual.rounds
    for client, scores in usual.scores.items():
        assert found.scores[client] == pytest.approx(scores, abs=1e-9)
