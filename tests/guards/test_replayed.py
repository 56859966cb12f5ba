# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.updates import (
    LENGTH_OF_MODEL,
    at_cosine,
    clients_judged,
    directions,
    honest,
    model_at,
    replies_with,
)

from monai_fairfl.guards import Replayed
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.server.federation import Federation
from monai_fairfl.strategies import Standalone
from monai_fairfl.transports.in_process import InProcess

NAMES = "ABCDE"
ORIGIN = LENGTH_OF_MODEL * directions(1, seed=99)[0]


def after_a_round(absent: str = "") -> tuple[Replayed, np.ndarray, dict[str, np.ndarray]]:
    """A guard that has seen a round, the step that followed, and that round's updates."""
    guard = Replayed()
    updates = honest(NAMES, seed=1)
    present = {client: update for client, update in updates.items() if client not in absent}
    guard.remember(replies_with(present, start=model_at(ORIGIN), absent=absent))
    step = sum(updates.values()) / len(updates)
    return guard, step, updates


def second_round(guard: Replayed, step: np.ndarray, **changed: np.ndarray) -> tuple[list[str], str]:
    updates = {**honest(NAMES, seed=2), **changed}
    replies = replies_with(updates, start=model_at(ORIGIN + step))
    verdicts = guard.check(replies)
    assert all(verdict.action == "quarantine" for verdict in verdicts.values())
    reason = next(iter(verdicts.values())).reason if verdicts else ""
    return clients_judged(verdicts, replies), reason


@pytest.mark.parametrize("factor", [1.0, 0.01, 30.0])
def test_the_last_step_is_found_at_any_length(factor: float) -> None:
    guard, step, _ = after_a_round()
    found, reason = second_round(guard, step, C=factor * step)
    assert found == ["C"]
    assert "repeats the last global step (cosine 1.000); the median of the others is" in reason


def test_an_update_that_only_resembles_the_last_step_passes() -> None:
    guard, step, _ = after_a_round()
    unit = step / np.linalg.norm(step)
    apart = directions(30, seed=5)[-1]
    apart = apart - (apart @ unit) * unit
    similar = at_cosine(0.85, unit, apart / np.linalg.norm(apart))
    assert second_round(guard, step, C=similar) == ([], "")


def test_another_clients_previous_update_is_found() -> None:
    guard, step, updates = after_a_round()
    found, reason = second_round(guard, step, C=updates["A"])
    assert found == ["C"] and "another client's previous update" in reason


def test_the_same_update_again_is_found_and_one_much_like_it_passes() -> None:
    guard, step, updates = after_a_round()
    found, reason = second_round(guard, step, C=3 * updates["C"])
    assert found == ["C"] and "its own previous update" in reason
    apart = directions(30, seed=5)[-1]
    apart = apart - (apart @ updates["C"]) * updates["C"]
    much_alike = at_cosine(0.999, updates["C"], apart / np.linalg.norm(apart))
    assert second_round(guard, step, C=much_alike) == ([], "")


def test_where_everybody_goes_on_in_one_direction_nobody_repeats() -> None:
    guard, step, updates = after_a_round()
    replies = replies_with(updates, start=model_at(ORIGIN + step))
    assert guard.check(replies) == {}
    alike = honest(NAMES, cosine=0.9999, seed=3)
    guard.remember(replies_with(alike, start=model_at(ORIGIN)))
    replies = replies_with(alike, start=model_at(ORIGIN + sum(alike.values())))
    assert guard.check(replies) == {}


def test_a_client_whose_reply_did_not_count_has_received_the_model_all_the_same() -> None:
    guard, step, _ = after_a_round(absent="C")
    found, reason = second_round(guard, step, C=step)
    assert found == ["C"] and "last global step" in reason


def test_the_state_is_json_and_gives_the_same_verdicts() -> None:
    guard, step, _ = after_a_round()
    restored = Replayed()
    restored.load_state_dict(json.loads(json.dumps(guard.state_dict())))
    assert second_round(restored, step, C=step) == second_round(guard, step, C=step)
    fresh = Replayed()
    assert second_round(fresh, step, C=step) == ([], "")


def test_memory_of_a_model_of_another_size_judges_nobody() -> None:
    guard, step, _ = after_a_round()
    small = Replayed(entries=10)
    small.load_state_dict(guard.state_dict())
    assert second_round(small, step, C=step) == ([], "")


def test_a_client_that_is_sent_the_same_model_again_is_judged_by_the_step_before() -> None:
    guard, step, _ = after_a_round()
    replaying = {**honest(NAMES, seed=2), "C": step}
    replies = replies_with(replaying, start=model_at(ORIGIN + step))
    [quarantined] = guard.check(replies)
    guard.remember(replies.without({quarantined: "quarantined"}))

    # A method with rewards gives it nothing new; that it repeats the same step is found again.
    third = replies_with({**honest(NAMES, seed=3), "C": step}, start=model_at(ORIGIN + step))
    assert clients_judged(guard.check(third), third) == ["C"]
    restored = Replayed()
    restored.load_state_dict(json.loads(json.dumps(guard.state_dict())))
    assert clients_judged(restored.check(third), third) == ["C"]


class Counted(dict[str, torch.Tensor]):
    """Tensors that count how often one of them is looked up."""

    lookups = 0

    def __getitem__(self, name: str) -> torch.Tensor:
        self.lookups += 1
        return super().__getitem__(name)


def test_updates_and_models_of_a_round_are_gathered_once_and_let_go() -> None:
    guard, step, _ = after_a_round()
    start = Counted(model_at(ORIGIN + step))
    replies = replies_with(honest(NAMES, seed=2), start=start)
    of_first = replies[0].update
    assert of_first is not None
    counted = Counted(of_first)
    replies[0] = replace(replies[0], update=counted)
    assert replies.matrix.width
    counted.lookups = start.lookups = 0

    assert guard.check(replies) == {}
    after_check = (counted.lookups, start.lookups)
    assert min(after_check) > 0
    guard.remember(replies)
    assert (counted.lookups, start.lookups) == after_check

    # A guard that goes on holding the model would keep its memory from being used again.
    model = weakref.ref(start)
    del start, replies
    assert model() is None


def test_what_is_remembered_is_what_the_strategy_saw() -> None:
    guard, step, _ = after_a_round()
    updates = honest(NAMES, seed=2)
    replies = replies_with(updates, start=model_at(ORIGIN + step))
    assert guard.check(replies) == {}
    # A later guard cuts an update, or takes another one in its place.
    other = directions(20, seed=7)[-1]
    changed = replies_with({**updates, "C": other}, start=model_at(ORIGIN + step))
    guard.remember(changed)
    fresh, _, _ = after_a_round()
    fresh.remember(changed)
    assert guard.state_dict() == fresh.state_dict()


@pytest.mark.parametrize(("noise", "found"), [(0.0, ["C"]), (0.25, ["C"]), (1.0, [])])
def test_a_step_that_was_much_its_own_is_found_with_noise_too(
    noise: float, found: list[str]
) -> None:
    guard, _, updates = after_a_round()
    # What C received is two thirds its own update, as with rewards by contribution.
    others = sum(updates[client] for client in "ABDE") / 4
    step = updates["C"] + 0.5 * others / np.linalg.norm(others)
    step /= np.linalg.norm(step)
    replayed = step + noise * directions(30, seed=5)[-1]
    verdicts, _ = second_round(guard, step, C=replayed)
    assert verdicts == found


def test_an_honest_update_that_resembles_its_own_part_of_the_step_passes() -> None:
    guard, _, updates = after_a_round()
    others = sum(updates[client] for client in "ABDE") / 4
    step = updates["C"] + 0.4 * others / np.linalg.norm(others)
    going_on = updates["C"] + 0.2 * directions(30, seed=5)[-1]
    cosine = step @ going_on / (np.linalg.norm(step) * np.linalg.norm(going_on))
    assert cosine > 0.9
    assert second_round(guard, step, C=going_on) == ([], "")


def test_a_site_that_goes_on_with_its_own_model_repeats_nobody(tmp_path: Path) -> None:
    """Where each site trains its own model, the last step that it knows is its own update."""

    class OwnModels(Standalone):
        """Its guards compare the sites."""

        shares_nothing = False

    generator = torch.Generator().manual_seed(5)
    drift = torch.randn(2000, generator=generator)
    fresh = {site: torch.randn(2000, generator=generator) for site in "BCD"}

    def answer(request: Request) -> Reply:
        chance = torch.Generator().manual_seed(request.seed)
        update = torch.randn(2000, generator=chance)
        if request.client == "A":
            # The same direction in every round, but for a little chance.
            update = drift + 0.3 * update
        else:
            update = 0.3 * fresh[request.client] + update
        echo = {"id": request.id, "run": request.run, "round": request.round}
        return Reply(request.client, {"w": update}, 10, num_cases=2, num_steps=1, **echo)

    class Site:
        def answer(self, request: Request) -> Reply:
            return answer(request)

    federation = Federation(
        OwnModels(),
        InProcess({site: Site for site in "ABCD"}),
        4,
        lambda: ({"w": torch.zeros(2000)}, ModelSpec(("w",), layers={"w": "w"})),
        [Replayed()],
        tmp_path / "run",
        evaluate=(),
        final=(),
    )
    assert [record["guards"] for record in federation.run().rounds] == [{}] * 4
