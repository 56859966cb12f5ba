# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.driving import CLIENTS, COMMON, GOLDEN, SAMPLES, SPEC, UPDATES, drive, values, vector

from monai_fairfl.errors import FederationError
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.values import Estimate
from monai_fairfl.strategies import CGSV, FedCI, LeaveOneOut
from monai_fairfl.strategies.coalitions import all_coalitions

GAME = {frozenset(key.replace("empty", "")): value for key, value in GOLDEN["shapley"]["v"].items()}


def clients_of(table: dict[frozenset[str], float]):  # type: ignore[no-untyped-def]
    """Clients whose score of a coalition's model is its worth; its parameters identify it."""
    w0 = np.array(COMMON["w0"])
    rows = {client: np.array(UPDATES[client]) for client in CLIENTS}

    def model(coalition: frozenset[str]) -> np.ndarray:
        total = sum(SAMPLES[c] for c in coalition)
        return w0 + sum(SAMPLES[c] / total * rows[c] for c in coalition)

    def answer(request: Request) -> Reply:
        if request.task == "train":
            update = {"w": vector(UPDATES[request.client])}
            return Reply(request.client, update, SAMPLES[request.client])
        weights = request.weights["w"].numpy()
        (worth,) = [value for s, value in table.items() if np.allclose(model(s), weights)]
        return Reply(request.client, None, 0, {"score": {"mean": Estimate(worth, None, 3)}})

    return answer


def begun(strategy):  # type: ignore[no-untyped-def]
    strategy.start({"w": vector(COMMON["w0"])}, CLIENTS, SPEC)
    return strategy


@pytest.fixture
def table() -> dict[frozenset[str], float]:
    return dict(GAME)


def test_the_weights_are_the_shapley_values_of_the_coalitions_models(
    table: dict[frozenset[str], float],
) -> None:
    result, exchanges = drive(begun(FedCI()), CLIENTS, clients_of(table))
    worked = np.array(GOLDEN["shapley"]["exact"])
    np.testing.assert_allclose(values(result.contributions), worked, atol=1e-6)
    np.testing.assert_allclose(values(result.aggregation), worked / worked.sum(), atol=1e-6)
    assert sum(len(requests) for requests in exchanges) == 3 + 8 * 3


def test_values_of_rounds_add_up_and_may_decay() -> None:
    worked = GOLDEN["ci_multi_round"]
    phi = [dict(zip(CLIENTS, worked[f"phi_round{i}"], strict=True)) for i in (1, 2)]
    for decay, key in ((1.0, "share"), (0.5, "normalised_then_decay_0_5")):
        strategy = begun(FedCI(decay))
        for values_of_round in phi:
            additive = {}
            for coalition in all_coalitions(CLIENTS):
                additive[coalition] = 0.1 + sum(values_of_round[c] for c in coalition)
            strategy.weights = {"w": vector(COMMON["w0"])}
            result, _ = drive(strategy, CLIENTS, clients_of(additive))
        got = np.array(values(result.contributions))
        np.testing.assert_allclose(got / got.sum(), worked[key], atol=2e-6)


def test_a_round_that_gains_nothing_turns_no_signs() -> None:
    strategy = begun(FedCI(decay=0.5))
    losing = {s: -0.02 * ("1" in s) - 0.01 * ("2" in s) for s in all_coalitions(CLIENTS)}
    result, _ = drive(strategy, CLIENTS, clients_of(losing))
    assert values(result.contributions) == [0.0, 0.0, 0.0]
    np.testing.assert_allclose(
        values(result.details["round_value"]), [-0.02, -0.01, 0.0], atol=1e-12
    )


@pytest.mark.parametrize("kind", [FedCI, LeaveOneOut])
def test_who_cannot_score_every_model_is_noted(
    kind: type, table: dict[frozenset[str], float]
) -> None:
    answer = clients_of(table)

    def without_foreground(request: Request) -> Reply:
        reply = answer(request)
        return replace(reply, measurements={}) if request.client == "2" else reply

    result, _ = drive(begun(kind()), CLIENTS, without_foreground)
    assert set(result.notes) == {"2"} and "did not score every coalition" in result.notes["2"]


def test_leave_one_out_weights_are_the_drops(table: dict[frozenset[str], float]) -> None:
    result, exchanges = drive(begun(LeaveOneOut()), CLIENTS, clients_of(table))
    np.testing.assert_allclose(
        values(result.contributions), GOLDEN["shapley"]["leave_one_out"], atol=1e-6
    )
    np.testing.assert_allclose(
        values(result.aggregation), GOLDEN["shapley"]["loo_share"], atol=1e-6
    )
    assert len(exchanges) == 2 and len(exchanges[1]) == 4 * 3


ANSWERS = {
    "123": {"1": (0.8, 1), "2": (0.6, 2), "3": (0.4, 1)},
    "23": {"1": (0.2, 1), "2": (0.5, 2), "3": (0.1, 1)},
    "13": {"1": (0.8, 1), "2": (0.2, 2), "3": (0.4, 1)},
    "12": {"1": (0.7, 1), "2": (0.6, 2), "3": (0.4, 1)},
}
"""Coalition -> client -> its Dice of this model, and its number of cases."""


@pytest.mark.parametrize("lie", [False, True])
def test_nothing_that_a_client_reports_of_itself_counts_where_the_others_judge(lie: bool) -> None:
    """By hand: client 1 is worth (2*0.6 + 0.4)/3 - (2*0.5 + 0.1)/3 to the two others."""
    names = iter(ANSWERS)
    model_of: dict[tuple[float, ...], str] = {}
    honest = clients_of(dict(GAME))

    def answer(request: Request) -> Reply:
        if request.task == "train":
            return honest(request)
        key = tuple(request.weights["w"].tolist())
        if key not in model_of:
            model_of[key] = next(names)
        score, cases = ANSWERS[model_of[key]][request.client]
        if lie and (request.client, model_of[key]) == ("2", "13"):
            score = 0.0
        return Reply(request.client, None, 0, {"score": {"mean": Estimate(score, None, cases)}})

    result, exchanges = drive(begun(LeaveOneOut("others")), CLIENTS, answer)
    np.testing.assert_allclose(values(result.contributions), [0.5 / 3, 0.0, 0.1 / 3], atol=1e-12)
    np.testing.assert_allclose(values(result.aggregation), [5 / 6, 0.0, 1 / 6], atol=1e-12)

    names = iter(ANSWERS)
    model_of.clear()
    by_all, asked = drive(begun(LeaveOneOut()), CLIENTS, answer)
    own = 0.3 if lie else 0.2
    np.testing.assert_allclose(values(by_all.contributions), [0.275, own, 0.025], atol=1e-12)
    # Over any engine: the requests are the same.
    for these, those in zip(exchanges, asked, strict=True):
        assert [replace(one, weights={}) for one in these] == [
            replace(one, weights={}) for one in those
        ]


def test_whose_scores_count_is_one_of_two_words() -> None:
    with pytest.raises(ValueError, match="judged_by must be one of .*got 'nobody'"):
        LeaveOneOut("nobody")


def test_cgsv_can_reward_by_the_same_index(table: dict[frozenset[str], float]) -> None:
    result, _ = drive(
        begun(CGSV(reward="contribution_index", variant="paper")), CLIENTS, clients_of(table)
    )
    worked = np.array(GOLDEN["shapley"]["exact"])
    assert values(result.details["kept"]) == [np.floor(4 * q) / 4 for q in worked / worked.max()]


def test_only_clients_that_scored_every_model_count(table: dict[frozenset[str], float]) -> None:
    honest = clients_of(table)

    def answer(request: Request) -> Reply:
        reply = honest(request)
        is_model_of_nobody = torch.allclose(request.weights["w"], vector(COMMON["w0"]))
        if request.client == "2" and request.task == "measure" and is_model_of_nobody:
            return Reply(request.client, None, 0)
        return reply

    result, _ = drive(begun(FedCI()), CLIENTS, answer)
    np.testing.assert_allclose(values(result.contributions), GOLDEN["shapley"]["exact"], atol=1e-6)
    with pytest.raises(FederationError, match="no client scored every"):
        drive(
            begun(FedCI()),
            CLIENTS,
            lambda r: honest(r) if r.task == "train" else Reply(r.client, None, 0),
        )


def test_a_client_that_is_lost_after_its_training_is_waited_for_once() -> None:
    """Each exchange that asks it may take the whole timeout, and its scores cannot count."""

    def answer(request: Request) -> Reply | None:
        if request.task == "train":
            return Reply(request.client, {"w": vector([float(request.client)])}, 1)
        if request.client == "2":
            return None
        return Reply(request.client, None, 0, {"score": float(request.weights["w"]) / 10})

    strategy = FedCI()
    strategy.start({"w": vector([0.0])}, ["1", "2", "3", "4"], SPEC)
    result, exchanges = drive(strategy, ["1", "2", "3", "4"], answer)
    asked = [{request.client for request in requests} for requests in exchanges]
    # The training, and two exchanges of eight coalitions each.
    assert asked == [{"1", "2", "3", "4"}, {"1", "2", "3", "4"}, {"1", "3", "4"}]
    assert set(result.notes) == {"2"} and set(result.aggregation) == {"1", "2", "3", "4"}


def test_too_many_clients_are_refused_with_a_way_out() -> None:
    many = [f"c{i:02}" for i in range(11)]
    strategy = FedCI()
    strategy.start({"w": vector([0.0])}, many, SPEC)
    with pytest.raises(FederationError, match="clients_per_round"):
        drive(strategy, many, lambda r: Reply(r.client, {"w": vector([1.0])}, 1))
