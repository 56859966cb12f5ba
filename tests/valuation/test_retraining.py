# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.linear_federation import START, LinearRun, mean_score, model_of

from monai_fairfl.errors import ConfigError
from monai_fairfl.protocol.messages import Request
from monai_fairfl.run_folder.ledger import read_ledger
from monai_fairfl.strategies import FedAvg, FedCE, Standalone
from monai_fairfl.valuation import Retraining
from monai_fairfl.valuation.retraining import folder_of


def utility(coalition: str) -> float:
    """Both rounds' steps, 1 + 2 times, scored by all three."""
    return mean_score(model_of(coalition, START, 3.0))


def trained(run: LinearRun) -> list[str]:
    return sorted({f"{r.run} {r.round}" for r in run.asked if r.task == "train"})


def test_leave_one_out_scores_each_coalitions_own_training_at_all_clients(tmp_path: Path) -> None:
    run = LinearRun(tmp_path)
    found = Retraining().value(run.finished())
    drops = {c: utility("ABC") - utility("ABC".replace(c, "")) for c in "ABC"}
    assert {c: float(v) for c, v in found.values.items()} == pytest.approx(drops)
    assert {p.name for p in (tmp_path / "retrained" / "FedAvg").iterdir()} == {
        *("all", "without-A", "without-B", "without-C", "measured.jsonl")
    }
    assert read_ledger(tmp_path / "retrained/FedAvg/without-B/ledger.jsonl")[0]["clients"] == [
        "A",
        "C",
    ]


def test_exact_values_by_retraining_share_out_what_training_gained(tmp_path: Path) -> None:
    found = Retraining("exact").value(LinearRun(tmp_path).finished())
    assert found.total == pytest.approx(utility("ABC") - mean_score(np.array(START)))
    assert (
        sum(float(v) for v in found.values.values()) == pytest.approx(found.total)
        and found.evaluations == 8
    )


def test_a_kill_between_and_within_coalitions_trains_nothing_twice(tmp_path: Path) -> None:
    whole = Retraining().value(LinearRun(tmp_path / "whole").finished())
    run = LinearRun(tmp_path / "killed")

    def kill(request: Request) -> bool:
        if (request.run, request.round) == ("without-B", 1):
            raise KeyboardInterrupt
        return False

    run.lose = kill
    with pytest.raises(KeyboardInterrupt):
        Retraining().value(run.finished())
    assert trained(run) == ["all 0", "all 1", "without-A 0", "without-A 1", "without-B 0"]
    run.lose = lambda request: False
    run.asked.clear()
    assert Retraining().value(run.finished()) == whole
    assert (
        trained(run) == ["without-B 1", "without-C 0", "without-C 1"] and run.models_measured == 2
    )
    run.asked.clear()
    assert Retraining().value(run.finished()) == whole
    assert not run.asked


def test_a_coalition_that_was_trained_and_not_yet_scored_is_not_trained_again(
    tmp_path: Path,
) -> None:
    run = LinearRun(tmp_path)
    run.lose = lambda request: request.run == "valuation"
    with pytest.raises(Exception, match="client 'A' did not measure"):
        Retraining().value(run.finished())
    run.lose = lambda request: False
    run.asked.clear()
    Retraining().value(run.finished())
    assert not any(line.startswith("all") for line in trained(run))


def test_the_clients_that_score_are_let_go_before_others_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linear, events = LinearRun(tmp_path), []
    run = linear.finished()
    monkeypatch.setattr(run.panel, "close", lambda: events.append("closed"))
    Retraining().value(replace(run, train=lambda *of: events.append("trains") or linear.train(*of)))
    assert events == ["closed", "trains"] * 4


def test_another_strategy_may_train_the_coalitions(tmp_path: Path) -> None:
    uniform = Retraining(strategy=FedAvg("uniform"))
    assert uniform.name == "retraining-FedAvg-uniform-leave_one_out-mean"
    uniform.value(LinearRun(tmp_path).finished())
    assert (tmp_path / "retrained" / "FedAvg-uniform" / "without-A").is_dir()


def test_what_cannot_be_retrained_is_refused() -> None:
    with pytest.raises(ConfigError, match="gtg values the rounds of one run"):
        Retraining("gtg")
    with pytest.raises(ConfigError, match="coalitions of 1 clients, and FedCE needs at least 2"):
        Retraining("exact", strategy=FedCE()).check("ABC", recorded=False)
    Retraining("leave_one_out", strategy=FedCE()).check("ABC", recorded=False)
    with pytest.raises(ConfigError, match="Standalone averages nothing, .*the initial one"):
        Retraining(strategy=Standalone()).check("ABC", recorded=False)


def test_coalitions_have_folders_of_their_own() -> None:
    names = {folder_of(frozenset(c), "ABCDE") for c in ("ABCDE", "ABCD", "A", "AB", "BC", "ABC")}
    assert len(names) == 6 and {"all", "without-E", "only-A"} < names
