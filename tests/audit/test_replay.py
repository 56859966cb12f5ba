# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Replay: the numbers of trained federations, computed again from their ledgers alone."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.driving import crash_before_checkpoint
from helpers.faulty_transports import Fault
from helpers.tiny_networks import federation

from monai_fairfl import strategies as shipped
from monai_fairfl.audit import NotInLedgerError, Replayed, replay
from monai_fairfl.audit.ledger_rounds import LedgerReplies
from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.protocol.messages import Reply, Request, Train
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.run_folder.ledger import Ledger, read_ledger
from monai_fairfl.strategies import FedAvg, Rounds, Strategy, compose, resolver
from monai_fairfl.strategies.configuration import configuration_of, strategy_from

pytestmark = pytest.mark.slow  # together they take long, each by itself does not

MADE: dict[str, Callable[[], Strategy]] = {
    **resolver.shipped(),
    "FedAvg-uniform": lambda: shipped.FedAvg("uniform"),
    "FedCE-sum": lambda: shipped.FedCE("sum"),
    "FedCE-released": lambda: shipped.FedCE("err", variant="released"),
    "FedCE-revised": lambda: shipped.FedCE(variant="revised"),
    "CGSV-paper": lambda: shipped.CGSV(variant="paper", exact=True),
    "CGSV-inf": lambda: shipped.CGSV(gamma=None, beta=math.inf),
    "CGSV-round_robin": lambda: shipped.CGSV(reward="round_robin"),
    "CGSV-data_size": lambda: shipped.CGSV(reward="data_size"),
    "CGSV-euclidean": lambda: shipped.CGSV(reward="euclidean"),
    "CGSV-ECI": lambda: shipped.CGSV(reward="contribution_index"),
    "CGSV-none": lambda: shipped.CGSV(reward=None),
    "FedLWR-released": lambda: shipped.FedLWR(variant="released"),
    "FedLWR-clip": lambda: shipped.FedLWR(clip=(0.0, 0.9)),
    "FedLWR-cosine": lambda: shipped.FedLWR(similarity="cosine", layerwise=False),
    "ShapFed-personalised": lambda: shipped.ShapFed(personalised=True, scale="max"),
    "ShapFed-paper": lambda: shipped.ShapFed(variant="paper", output_layer="0"),
    "FedISM-plus": lambda: shipped.FedISM(plus=True, alpha=0.0),
    "FedISM-saga": lambda: shipped.FedISM(salt=False),
    "QFedAvg-loss": lambda: shipped.QFedAvg(form="loss_weighted"),
    "AFL-worst": lambda: shipped.AFL(form="worst_client"),
    "FedCI-decay": lambda: shipped.FedCI(decay=0.5),
    "FedGA-released": lambda: shipped.FedGA(variant="released"),
    "CFFL-paper": lambda: shipped.CFFL(variant="paper"),
    "CFFL with its reward": lambda: compose(
        shipped.CFFL(), reward=shipped.Sparsified(ratio="share", rest="own")
    ),
    "FedCE with the median": lambda: compose(shipped.FedCE("cos"), average=shipped.Median()),
    "FedAvg with clipped updates": lambda: compose(shipped.FedAvg(), average=shipped.ClippedMean()),
    "FedCE by Krum": lambda: compose(shipped.FedCE(), weighting=shipped.Krum(1, 2)),
    "FedCE by images": lambda: compose(shipped.FedCE(), weighting=shipped.BySamples()),
    "FedCE to a power": lambda: compose(
        shipped.FedCE("cos"), shipped.Proportional(2.0), shipped.Mixed("max"), {"prox_mu": 0.1}
    ),
}


def assert_exact(found: Replayed, rounds: int) -> None:
    assert (found.rounds, found.differences) == (rounds, ())
    assert found.largest < 1e-9


def lost_and_sick(request: Request, reply: Reply) -> Reply | None:
    """Beech is absent in round 1, and oak's numbers are not finite in round 2."""
    if (request.client, request.round) == ("beech", 1):
        return None
    if (request.client, request.round) == ("oak", 2):
        return replace(reply, measurements=dict.fromkeys(reply.measurements, math.nan))
    return reply


@pytest.mark.parametrize("name", MADE)
def test_a_run_is_replayed_with_an_absent_site_and_numbers_that_were_dropped(
    name: str, tmp_path: Path
) -> None:
    history = federation(MADE[name](), tmp_path, lost_and_sick, rounds=4).run()
    found = replay(tmp_path / "run")
    assert_exact(found, 4)
    if name != "Standalone":
        assert found.numbers >= 4 * len(history.rounds) - 1


def elm_reports(measurement: str, value: float) -> Fault:
    """What arrives where elm reports ``value``, whatever it measured."""

    def fault(request: Request, reply: Reply) -> Reply:
        if request.client != "elm" or measurement not in reply.measurements:
            return reply
        return replace(reply, measurements={**reply.measurements, measurement: value})

    return fault


def test_a_limited_run_is_replayed(tmp_path: Path) -> None:
    low = elm_reports("global_loss", 0.0)
    strategy = shipped.QFedAvg(form="loss_weighted")
    federation(compose(strategy, clip_reports=0.5), tmp_path, low, rounds=2).run()
    assert_exact(replay(tmp_path / "run"), 2)


@pytest.mark.parametrize(
    ("strategy", "measurement", "value", "wider"),
    [
        (shipped.QFedAvg, "global_loss", 250.0, [0, 5000]),
        # A script's metric has the unit that the script gives it.
        (shipped.FedCE, "leave_one_out_error", 80.0, [-1e6, 1e6]),
    ],
)
def test_a_number_counts_in_a_replay_just_where_the_run_took_it(
    strategy: Callable[[], Strategy],
    measurement: str,
    value: float,
    wider: Sequence[float],
    tmp_path: Path,
) -> None:
    fault = elm_reports(measurement, value)
    settings = {"ranges": {measurement: wider}}
    taken = federation(strategy(), tmp_path / "taken", fault, **settings).run().rounds
    dropped = federation(strategy(), tmp_path / "dropped", fault).run().rounds
    assert measurement in dropped[1]["dropped"]["elm"] and not taken[1]["dropped"]
    assert taken[1]["aggregation"] != dropped[1]["aggregation"]
    assert_exact(replay(tmp_path / "taken" / "run"), 3)
    assert_exact(replay(tmp_path / "dropped" / "run"), 3)


@pytest.mark.parametrize("name", MADE)
def test_a_strategy_is_made_again_of_its_configuration(name: str) -> None:
    made = MADE[name]()
    configuration = configuration_of(made)
    assert configuration is not None
    again = strategy_from(configuration)
    assert (type(again), again.name) == (type(made), made.name)
    assert configuration_of(again) == configuration


@pytest.mark.parametrize("name", ["FedCE", "CGSV", "ShapFed", "AFL", "FedGA", "FedISM-plus"])
def test_late_joiners_sampled_rounds_and_resumed_runs_are_replayed(
    name: str, tmp_path: Path
) -> None:
    three = ("ash", "beech", "elm")
    federation(MADE[name](), tmp_path, sites=three, rounds=2).run()
    federation(MADE[name](), tmp_path, rounds=4).run(resume=True)
    crash_before_checkpoint(_resuming(MADE[name](), tmp_path), 5)
    assert_exact(replay(tmp_path / "run"), 6)
    federation(MADE[name](), tmp_path, rounds=7).run(resume=True)
    assert_exact(replay(tmp_path / "run"), 7)

    federation(MADE[name](), tmp_path / "sampled", rounds=6, clients_per_round=3).run()
    assert_exact(replay(tmp_path / "sampled" / "run"), 6)


def _resuming(strategy: Strategy, folder: Path) -> Any:
    """A federation whose plain ``run`` goes on with what is there."""
    made = federation(strategy, folder, rounds=7)
    begin = made.run
    made.run = lambda: begin(resume=True)  # type: ignore[method-assign]
    return made


@pytest.mark.parametrize(
    "name", ["FedCE", "ShapFed", "CGSV", "FedAvg", "FedCE by Krum", "CGSV-euclidean"]
)
def test_classes_that_a_site_does_not_label_are_replayed(name: str, tmp_path: Path) -> None:
    labelled = {"elm": (True, False, True), "oak": (True, True, False)}
    history = federation(MADE[name](), tmp_path, labelled=labelled).run()
    assert history.rounds[0]["labelled"] == {site: list(of) for site, of in labelled.items()}
    assert_exact(replay(tmp_path / "run"), 3)


def test_a_class_that_a_site_labels_no_longer_is_noted_and_replayed(tmp_path: Path) -> None:
    def fault(request: Request, reply: Reply) -> Reply:
        if request.client == "oak" and request.task == "train" and request.round in (1, 2):
            return replace(reply, labelled=(True, False, True))
        return reply

    history = federation(shipped.ShapFed(), tmp_path, fault, rounds=4).run()
    noted = ["oak" in record["notes"] for record in history.rounds]
    assert noted == [False, True, True, False]
    assert "class 1 is no longer labelled" in history.rounds[1]["notes"]["oak"]
    assert_exact(replay(tmp_path / "run"), 4)


@pytest.mark.parametrize("name", ["FedCE", "CGSV", "ShapFed", "FedLWR", "FedCI"])
def test_what_guards_left_out_clipped_and_merged_is_replayed(name: str, tmp_path: Path) -> None:
    """Oak copies elm's update in round 1; beech's is not finite in round 0, ash's long in 2."""
    sent: dict[str, Any] = {}

    def attack(request: Request, reply: Reply) -> Reply:
        if reply.update is None:
            return reply
        sent[request.client] = reply.update
        if (request.client, request.round) == ("oak", 1):
            return replace(reply, update=sent["elm"])
        if (request.client, request.round) == ("beech", 0):
            return replace(reply, update=_times(reply.update, math.nan))
        if (request.client, request.round) == ("ash", 2):
            return replace(reply, update=_times(reply.update, 50.0))
        return reply

    rounds = federation(MADE[name](), tmp_path, attack, rounds=4).run().rounds
    actions = set()
    for record in rounds:
        for verdicts in record["verdicts"].values():
            actions |= {verdict["action"] for verdict in verdicts}
    assert {"quarantine", "clip", "share"} <= actions
    assert_exact(replay(tmp_path / "run"), 4)


@pytest.mark.parametrize("times", [1.0, 3.0])
def test_a_round_in_which_nobody_was_asked_for_its_error_is_replayed(
    times: float, tmp_path: Path
) -> None:
    """In round 0 ash's update is cut, and oak's is the direction of elm's; beech misses round 1."""
    sent: dict[str, Any] = {}

    def attack(request: Request, reply: Reply) -> Reply | None:
        if reply.update is None:
            return reply
        sent[request.client] = reply.update
        if (request.client, request.round) == ("beech", 1):
            return None
        if (request.client, request.round) == ("oak", 0):
            return replace(reply, update=_times(sent["elm"], times))
        if (request.client, request.round) == ("ash", 0):
            return replace(reply, update=_times(reply.update, 50.0))
        return reply

    first, second, *_ = federation(shipped.FedCE(), tmp_path, attack, rounds=4).run().rounds
    assert [v["action"] for v in first["verdicts"]["ash"]] == ["clip"]
    assert sorted(first["verdicts"]) == ["ash", "elm", "oak"]
    asked = {
        entry["client"]
        for entry in second["exchanges"][0]
        if "leave_one_out_error" in (entry["measured"] or {})
    }
    assert asked == {"elm", "oak"}
    assert_exact(replay(tmp_path / "run"), 4)


def _times(update: Any, factor: float) -> dict[str, torch.Tensor]:
    return {name: tensor * factor for name, tensor in update.items()}


def change(run: Path, edit: Callable[[list[dict[str, Any]]], None]) -> None:
    """Change records of a run, with all later hashes mended."""
    records = read_ledger(run / "ledger.jsonl")
    edit(records)
    (run / "ledger.jsonl").unlink()
    ledger = Ledger(run / "ledger.jsonl")
    for record in records:
        record.pop("previous")
        ledger.append(record)


def test_a_changed_contribution_is_named_with_both_numbers(tmp_path: Path) -> None:
    federation(shipped.FedCE(), tmp_path).run()
    true = read_ledger(tmp_path / "run" / "ledger.jsonl")[2]["contributions"]["elm"]["value"]

    def raise_elm(records: list[dict[str, Any]]) -> None:
        records[2]["contributions"]["elm"]["value"] = true + 0.125

    change(tmp_path / "run", raise_elm)
    found = replay(tmp_path / "run")
    assert found.largest == pytest.approx(0.125)
    assert found.where == "round 1, contributions, elm, value"
    (difference,) = found.differences
    assert difference == f"{found.where}: recorded {true + 0.125}, computed {true}"


@pytest.mark.parametrize(
    ("entry", "edit"),
    [
        ("aggregation", lambda weights: weights.pop("elm")),
        ("aggregation", lambda weights: weights.update(yew=0.5)),
        ("details", lambda details: details["cosine"].update(ash=None)),
        ("details", lambda details: details.update(invented={"ash": 1.0})),
    ],
)
def test_a_number_that_is_absent_or_too_many_is_a_difference(
    entry: str, edit: Callable[[Any], Any], tmp_path: Path
) -> None:
    federation(shipped.CGSV(), tmp_path, rounds=2).run()
    change(tmp_path / "run", lambda records: edit(records[2][entry]))
    found = replay(tmp_path / "run")
    assert found.largest == math.inf and len(found.differences) == 1
    assert found.differences[0].startswith(f"round 1, {entry}")


def test_a_measurement_that_is_in_no_reply_is_a_difference(tmp_path: Path) -> None:
    """The report shows the Dice that stands beside the weights, and not that of the replies."""
    federation(shipped.FedCE(), tmp_path).run()

    def raise_elm(records: list[dict[str, Any]]) -> None:
        records[2]["measurements"]["elm"]["global_score"]["mean"]["value"] += 0.125

    change(tmp_path / "run", raise_elm)
    found = replay(tmp_path / "run")
    assert found.where == "round 1, measurements, elm, global_score, mean, value"
    assert len(found.differences) == 1


def test_a_round_that_was_cut_out_of_the_middle_is_a_difference(tmp_path: Path) -> None:
    """FedAvg's weights of the other rounds do not depend on it."""
    federation(shipped.FedAvg(), tmp_path).run()
    change(tmp_path / "run", lambda records: records.pop(2))
    assert replay(tmp_path / "run").differences == ("round 1, round: recorded 2, computed 1",)


@pytest.mark.parametrize("forged", [math.nan, math.inf, {}])
def test_what_is_no_finite_number_is_a_difference(forged: Any, tmp_path: Path) -> None:
    """Written by hand: the package's own ledger has ``null`` for a number that is not finite."""
    federation(shipped.FedAvg(), tmp_path, rounds=1).run()
    file = tmp_path / "run" / "ledger.jsonl"
    opening, line, _ = file.read_text().splitlines(keepends=True)
    record = json.loads(line)
    record["aggregation"]["elm"] = forged
    file.write_text(f"{opening}{json.dumps(record)}\n")
    found = replay(tmp_path / "run")
    assert found.largest == math.inf
    assert found.where == "round 0, aggregation, elm"


def test_a_record_of_requests_that_the_method_does_not_make_is_refused(tmp_path: Path) -> None:
    federation(shipped.FedCE(), tmp_path).run()
    change(tmp_path / "run", lambda records: records[2]["exchanges"][0].pop())
    with pytest.raises(FederationError, match="FedCE cannot play round 1.*the method asks"):
        replay(tmp_path / "run")


class Own(FedAvg):
    """A strategy outside the package, which weighs by the inverse of an update's length."""

    def __init__(self, power: float = 1.0):
        super().__init__()
        self.power = power

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield [Train(client, self.start_of(client)) for client in clients]
        lengths = dict(zip(local.clients, local.geometry.norms, strict=True))
        total = sum(length**-self.power for length in lengths.values())
        weights = {client: length**-self.power / total for client, length in lengths.items()}
        return self.finish(local, weights, weights)


class Peeking(Own):
    """Looks at the updates, which no ledger has."""

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield [Train(client, self.start_of(client)) for client in clients]
        sums = {reply.client: float(reply.update["0.bias"].sum()) for reply in local}  # type: ignore[index]
        return self.finish(local, dict.fromkeys(sums, 0.25), sums)


class ByLayer(Own):
    """Compares the updates of one layer."""

    def round(self, clients: Sequence[str]) -> Rounds:
        local = yield [Train(client, self.start_of(client)) for client in clients]
        grams = local.geometry.layers["0"]
        weights = dict(zip(local.clients, grams.diagonal() / grams.trace(), strict=True))
        return self.finish(local, weights, weights)


class Forgetful(Own):
    """Does not store its argument."""

    def __init__(self, strength: float = 1.0):
        super().__init__()


def test_a_strategy_outside_the_package_is_imported_on_request_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "own_methods", sys.modules[__name__])
    monkeypatch.setattr(Own, "__module__", "own_methods")
    federation(Own(power=2.0), tmp_path).run()
    with pytest.raises(ConfigError, match="'own_methods.Own' is not of this package.*--allow-im"):
        replay(tmp_path / "run")
    assert_exact(replay(tmp_path / "run", allow_import=True), 3)


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        (Peeking, "Peeking, round 0: the method reads the updates themselves"),
        (ByLayer, "ByLayer, round 0: the method reads the inner products of each layer"),
        (Forgetful, "the ledger does not hold the arguments of Forgetful"),
    ],
)
def test_a_strategy_that_cannot_be_replayed_is_refused_with_the_reason(
    strategy: type[Strategy], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "own_methods", sys.modules[__name__])
    monkeypatch.setattr(strategy, "__module__", "own_methods")
    federation(strategy(), tmp_path).run()
    with pytest.raises(NotInLedgerError, match=why):
        replay(tmp_path / "run", allow_import=True)


@pytest.mark.parametrize(
    ("place", "entry", "value", "message"),
    [
        (0, "spec", {}, "the opening of .*: restore the ledger"),
        (1, "exchanges", None, "line 2 of the ledger is not the record of a round"),
        (2, "gram", {"clients": ["ash"]}, "line 3 of the ledger"),
        (2, "details", [], "line 3 of the ledger"),
        (3, "verdicts", None, "line 4 of the ledger"),
        (3, "samples", {}, "cannot play round 2"),
    ],
)
def test_a_record_that_is_none_is_named_and_no_fault_of_the_program(
    place: int, entry: str, value: Any, message: str, tmp_path: Path
) -> None:
    federation(FedAvg(), tmp_path).run()
    change(tmp_path / "run", lambda records: records[place].update({entry: value}))
    with pytest.raises(FederationError, match=message):
        replay(tmp_path / "run")


def test_a_ledger_cannot_name_what_is_no_strategy(tmp_path: Path) -> None:
    federation(FedAvg(), tmp_path).run()

    def name_a_reward(records: list[dict[str, Any]]) -> None:
        records[0]["configuration"] = {"_target_": "monai_fairfl.strategies.Sparsified"}

    change(tmp_path / "run", name_a_reward)
    with pytest.raises(ConfigError, match="Sparsified' is no class that can be used as a Strategy"):
        replay(tmp_path / "run")


def test_fewer_replies_of_a_ledger_keep_what_guards_did_to_the_others() -> None:
    requests = [Request(client, "measure", {}, ("score",), id=id) for id, client in enumerate("AB")]
    replies = [
        Reply(request.client, None, 0, {"score": 0.5}, id=request.id) for request in requests
    ]
    marks: dict[str, Any] = {"shortened": ["A"], "groups": [("A", "B")]}
    recorded = LedgerReplies(replies, requests, ModelSpec(()), {"D": "timeout"}, None, **marks)
    assert recorded.groups == [("A", "B")]
    rest = recorded.without({1: "late"})
    assert isinstance(rest, LedgerReplies) and rest.clients == ["A"]
    assert rest.missing == {"B": "late", "D": "timeout"}
    assert rest.shortened == {"A"} and rest.groups == []
