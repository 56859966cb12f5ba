# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Absence costs a client nothing, and a strategy starts a second run as it started the first."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from helpers.driving import CLIENTS, SPEC, play_round, vector

from monai_fairfl import Strategy
from monai_fairfl.strategies import AFL, CFFL, CGSV, FairFed, FedCE, FedGA, FedISM

KEEPING: dict[str, Callable[[], Strategy]] = {
    "AFL": AFL,
    "CFFL": CFFL,
    "CFFL-paper": lambda: CFFL(variant="paper"),
    "CGSV": CGSV,
    "FairFed": FairFed,
    "FedCE": FedCE,
    "FedGA": FedGA,
    "FedISM": FedISM,
}
"""Methods that remember something of each client."""

UPDATE = [0.2, 0.1, 0.0, 0.3]
MEASURED = {
    "local_score": 0.8,
    "global_score": 0.7,
    "global_loss": 1.0,
    "local_loss": 0.5,
    "sharpness": 0.05,
    "leave_one_out_error": 0.2,
}
ROUNDS = {
    "late": [("1", "2"), CLIENTS, CLIENTS],
    "every other round": [CLIENTS, ("1", "2"), CLIENTS, ("1", "2"), CLIENTS],
    "only one at first": [("1",), CLIENTS],
}


def run(
    strategy: Strategy,
    rounds: list[tuple[str, ...]],
    different: bool = False,
    known: tuple[str, ...] = CLIENTS,
) -> list[dict[str, float]]:
    """Weights of every round of clients that are the same in everything, or in nothing."""
    strategy.rounds_planned = len(rounds)
    strategy.start({"w": vector([0.0] * 4)}, known, SPEC)
    found = []
    for present in rounds:
        size = {client: int(client) if different else 1 for client in present}
        updates, measured = {}, {}
        for client, factor in size.items():
            updates[client] = [value * factor + factor - 1 for value in UPDATE]
            measured[client] = {name: value / factor for name, value in MEASURED.items()}
        result = play_round(strategy, updates, measured, dict.fromkeys(present, 10))
        strategy.weights, strategy.rewards = result.weights, dict(result.rewards or {})
        found.append({client: float(weight) for client, weight in result.aggregation.items()})  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("name", KEEPING)
def test_who_was_absent_weighs_as_much_as_its_equals_and_a_second_run_begins_anew(
    name: str,
) -> None:
    for title, rounds in ROUNDS.items():
        last = run(KEEPING[name](), rounds)[-1]
        assert last == pytest.approx(dict.fromkeys(CLIENTS, 1 / 3)), title
    # One that connects after the start.
    last = run(KEEPING[name](), ROUNDS["late"], known=("1", "2"))[-1]
    assert last == pytest.approx(dict.fromkeys(CLIENTS, 1 / 3))

    # A second run begins as the first.
    strategy = KEEPING[name]()
    rounds = [CLIENTS, ("1", "3"), CLIENTS, CLIENTS]
    first = run(strategy, rounds, different=True)
    assert first[0] != pytest.approx(first[3], abs=1e-6) or name in ("AFL", "FedISM")
    assert run(strategy, rounds, different=True) == first
