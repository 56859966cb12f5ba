# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Absence costs a client nothing, and a strategy starts a second run as it started the first."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from helpers.driving import SPEC, play_round, vector
from hypothesis import given
from hypothesis import strategies as st

from monai_fairfl.protocol.averages import merge_with_absent, normalise, renormalised_previous
from monai_fairfl.strategies import AFL, CFFL, CGSV, FairFed, FedCE, FedGA, FedISM, Strategy

ALL = ("1", "2", "3")
KEEPING: dict[str, Callable[[], Strategy]] = {
    "AFL": AFL,
    "CFFL": CFFL,
    "CFFL-paper": lambda: CFFL(variant="paper"),
    "CGSV": CGSV,
    "FairFed": FairFed,
    "FedCE": lambda: FedCE("cos"),
    "FedGA": FedGA,
    "FedGA-released": lambda: FedGA(variant="released"),
    "FedISM": FedISM,
}
UPDATE = [0.2, 0.1, 0.0, 0.3]
MEASURED = {
    "local_score": 0.8,
    "global_score": 0.7,
    "global_loss": 1.0,
    "local_loss": 0.5,
    "sharpness": 0.05,
}


def run(
    strategy: Strategy,
    rounds: list[tuple[str, ...]],
    different: bool = False,
    known: tuple[str, ...] = ALL,
) -> list[dict[str, float]]:
    """Weights of every round of clients that are the same in everything, or in nothing."""
    strategy.rounds_planned = len(rounds)
    strategy.start({"w": vector([0.0] * 4)}, known, SPEC)
    found = []
    for present in rounds:
        size = {client: int(client) if different else 1 for client in present}
        updates = {
            client: [value * size[client] + size[client] - 1 for value in UPDATE]
            for client in present
        }
        measured = {
            client: {name: value / size[client] for name, value in MEASURED.items()}
            for client in present
        }
        result = play_round(strategy, updates, measured, dict.fromkeys(present, 10))
        strategy.weights, strategy.rewards = result.weights, result.rewards or {}
        found.append({client: float(weight) for client, weight in result.aggregation.items()})  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("name", KEEPING)
@pytest.mark.parametrize(
    "rounds",
    [
        [("1", "2"), ALL, ALL],
        [ALL, ("1", "2"), ("1", "2"), ALL],
        [ALL, ("1", "2"), ALL, ("1", "2"), ALL, ("1", "2"), ALL],
        [("1",), ALL],
    ],
    ids=["late", "absent twice", "every other round", "only one at first"],
)
def test_a_client_that_was_absent_weighs_as_much_as_its_equals_when_it_is_back(
    name: str, rounds: list[tuple[str, ...]]
) -> None:
    assert run(KEEPING[name](), rounds)[-1] == pytest.approx(dict.fromkeys(ALL, 1 / 3))


@pytest.mark.parametrize("name", KEEPING)
def test_a_client_that_connects_after_the_start_weighs_as_much_as_its_equals(name: str) -> None:
    rounds = [("1", "2"), ALL, ALL]
    assert run(KEEPING[name](), rounds, known=("1", "2"))[-1] == pytest.approx(
        dict.fromkeys(ALL, 1 / 3)
    )


@pytest.mark.parametrize("name", KEEPING)
def test_a_strategy_begins_a_second_run_as_it_began_the_first(name: str) -> None:
    strategy = KEEPING[name]()
    first = run(strategy, [ALL] * 3, different=True)
    assert first[0] != pytest.approx(first[2], abs=1e-6) or name in ("AFL", "FedISM")
    assert run(strategy, [ALL] * 3, different=True) == first


def test_cgsv_resumed_after_an_absence_gives_the_same_bits() -> None:
    rounds = [("1", "3"), ALL, ALL, ALL]
    whole = run(CGSV(), rounds, different=True)
    first, second = CGSV(), CGSV()
    run(first, rounds[:2], different=True)
    second.start(first.weights, ALL, SPEC)

    # As from a file, whose keys are sorted. ``run`` starts the strategy once more.
    second.load_state_dict({name: _sorted(value) for name, value in first.state_dict().items()})
    second._initial_state = second.state_dict()
    assert run(second, rounds[2:], different=True) == whole[2:]


def _sorted(value: object) -> object:
    return dict(sorted(value.items())) if isinstance(value, dict) else value


SHARES = st.dictionaries(st.sampled_from("ABCDEF"), st.floats(0.01, 1.0), min_size=1)


@pytest.mark.slow
@given(SHARES, SHARES)
def test_absent_clients_keep_their_proportions_and_all_weights_sum_to_one(
    known: dict[str, float], new: dict[str, float]
) -> None:
    known = normalise(known)
    new = normalise(new)
    merged = merge_with_absent(known, new)
    previous = renormalised_previous(known, new)
    assert sum(merged.values()) == pytest.approx(1)
    assert sum(previous.values()) == pytest.approx(1)

    # Ratios: among absent clients those of before, among present ones the new ones.
    absent = sorted(set(known) - set(new))
    for clients, weights in ((absent, known), (list(new), new)):
        for client in clients:
            first = clients[0]
            assert merged[client] * weights[first] == pytest.approx(weights[client] * merged[first])
    seen_before = sorted(set(known) & set(new))
    for client in seen_before:
        first = seen_before[0]
        assert previous[client] * known[first] == pytest.approx(known[client] * previous[first])
