# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedCI, leaving one out, and CGSV's reward by the index: coalitions' models in a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from helpers.driving import (
    CLIENTS,
    COMMON,
    GOLDEN,
    SAMPLES,
    SPEC,
    UPDATES,
    agree,
    drive,
    values,
    vector,
)
from helpers.fixed_sites import federate

from monai_fairfl import Estimate, Reply, Request, Strategy
from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.strategies import CGSV, FedCI, LeaveOneOut

Answer = Callable[[Request], Reply]
WORTH = {key.replace("empty", ""): value for key, value in GOLDEN["shapley"]["v"].items()}
"""Coalition -> its utility in the worked example."""


def clients_of(worth: Mapping[str, float]) -> Answer:
    """Clients whose score of a coalition's model is its worth; its parameters identify it."""
    w0 = np.array(COMMON["w0"])

    def model(coalition: str) -> np.ndarray:
        total = sum(SAMPLES[client] for client in coalition)
        moved = [SAMPLES[client] / total * np.array(UPDATES[client]) for client in coalition]
        return w0 + sum(moved)

    def answer(request: Request) -> Reply:
        if request.task == "train":
            return request.reply({"w": vector(UPDATES[request.client])}, SAMPLES[request.client])
        weights = request.weights["w"].numpy()
        (found,) = [worth[name] for name in worth if np.allclose(model(name), weights)]
        return request.reply(measurements={"score": {"mean": Estimate(found, None, 3)}})

    return answer


def begun(strategy: Strategy) -> Strategy:
    strategy.start({"w": vector(COMMON["w0"])}, CLIENTS, SPEC)
    return strategy


def additive(worth: Mapping[str, float], empty: float = 0.0) -> dict[str, float]:
    """Coalition -> the sum of its members' worth."""
    subsets = [s for size in range(4) for s in combinations(CLIENTS, size)]
    return {"".join(s): empty + sum(worth[client] for client in s) for s in subsets}


def test_the_weights_are_the_values_of_the_coalitions_models() -> None:
    worked = {name: np.array(GOLDEN["shapley"][name]) for name in ("exact", "leave_one_out")}
    for strategy, key, models in ((FedCI(), "exact", 8), (LeaveOneOut(), "leave_one_out", 4)):
        result, exchanges = drive(begun(strategy), CLIENTS, clients_of(WORTH))
        agree(result.contributions, worked[key], 1e-6)
        agree(result.aggregation, worked[key] / worked[key].sum(), 1e-6)
        assert sum(len(requests) for requests in exchanges) == 3 + models * 3


def test_values_of_rounds_add_up_and_may_decay() -> None:
    worked = GOLDEN["ci_multi_round"]
    for decay, key in ((1.0, "share"), (0.5, "normalised_then_decay_0_5")):
        strategy = begun(FedCI(decay))
        for number in (1, 2):
            phi = dict(zip(CLIENTS, worked[f"phi_round{number}"], strict=True))
            strategy.weights = {"w": vector(COMMON["w0"])}
            result, _ = drive(strategy, CLIENTS, clients_of(additive(phi, 0.1)))
        got = np.array(values(result.contributions))
        agree(got / got.sum(), worked[key])


ANSWERS = {
    "123": {"1": (0.8, 1), "2": (0.6, 2), "3": (0.4, 1)},
    "23": {"1": (0.2, 1), "2": (0.5, 2), "3": (0.1, 1)},
    "13": {"1": (0.8, 1), "2": (0.0, 2), "3": (0.4, 1)},
    "12": {"1": (0.7, 1), "2": (0.6, 2), "3": (0.4, 1)},
}
"""Coalition -> client -> its Dice of this model, and its number of cases. Client 2 lies: 0.0."""


def test_nothing_that_a_client_reports_of_itself_counts_where_the_others_judge() -> None:
    """By hand: client 1 is worth (2*0.6 + 0.4)/3 - (2*0.5 + 0.1)/3 to the two others."""
    by_number = {float(number): name for number, name in enumerate(ANSWERS)}
    honest = clients_of({name: number for number, name in by_number.items()})

    def answer(request: Request) -> Reply:
        reply = honest(request)
        if request.task == "train":
            return reply
        number: Estimate = reply.measurements["score"]["mean"]  # type: ignore[index, assignment]
        score, cases = ANSWERS[by_number[number.value]][request.client]
        return request.reply(measurements={"score": {"mean": Estimate(score, None, cases)}})

    result, _ = drive(begun(LeaveOneOut("others")), CLIENTS, answer)
    agree(result.contributions, [0.5 / 3, 0.0, 0.1 / 3], 1e-12)
    agree(result.aggregation, [5 / 6, 0.0, 1 / 6], 1e-12)


def test_cgsv_can_reward_by_the_same_index() -> None:
    strategy = begun(CGSV(reward="contribution_index", variant="paper"))
    result, _ = drive(strategy, CLIENTS, clients_of(WORTH))
    worked = np.array(GOLDEN["shapley"]["exact"])
    assert values(result.details["kept"]) == [np.floor(4 * q) / 4 for q in worked / worked.max()]


@pytest.mark.parametrize("kind", [FedCI, LeaveOneOut])
def test_only_clients_that_scored_every_model_count_and_others_are_noted(
    kind: type[Strategy],
) -> None:
    honest = clients_of(WORTH)
    steps = [SAMPLES[client] / 100 * vector(UPDATES[client]) for client in CLIENTS]
    largest = vector(COMMON["w0"]) + sum(steps)

    def answer(request: Request) -> Reply:
        if request.client == "2" and request.weights["w"].allclose(largest):
            return replace(honest(request), measurements={})
        if request.client == "2" and request.task == "measure":
            return request.reply(measurements={"score": 0.9})
        return honest(request)

    result, _ = drive(begun(kind()), CLIENTS, answer)
    key = "exact" if kind is FedCI else "leave_one_out"
    agree(result.contributions, GOLDEN["shapley"][key], 1e-6)
    assert set(result.notes) == {"2"}
    with pytest.raises(FederationError, match="no client"):
        drive(begun(kind()), CLIENTS, lambda r: honest(r) if r.task == "train" else r.reply())


def test_too_many_clients_are_refused_with_a_way_out(tmp_path: Path) -> None:
    updates = {f"c{number:02}": {"w": vector([1.0])} for number in range(11)}
    with pytest.raises(ConfigError, match="FedCI.*clients_per_round.*11"):
        federate(FedCI(), tmp_path, [updates])
