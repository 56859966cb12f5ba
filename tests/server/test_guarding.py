# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The verdicts of several guards together, on one exchange."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from monai_fairfl import ModelSpec, Replies, Reply, Request
from monai_fairfl.guards import Copies, Replayed
from monai_fairfl.guards.defaults import DEFAULT
from monai_fairfl.server.guarding import guarded

SPEC = ModelSpec(("w",))
CLIENTS = ["aa", "bb", "cc", "dd"]
OWN = torch.randn(4, 1200, generator=torch.Generator().manual_seed(0))
STEP = 0.85 * OWN[1] + 0.05 * (OWN[0] + OWN[2] + OWN[3])
"""The last global step: bb has most of the images."""


def exchange(start: torch.Tensor, updates: Mapping[str, torch.Tensor]) -> Replies:
    requests = [
        Request(client, "train", {"w": start}, id=id) for id, client in enumerate(sorted(updates))
    ]
    replies = [
        Reply(request.client, {"w": updates[request.client]}, 10, id=request.id)
        for request in requests
    ]
    return Replies(replies, requests, SPEC)


def later(seed: int) -> dict[str, torch.Tensor]:
    """Honest updates that go on in each client's own direction."""
    chance = torch.randn(4, 1200, generator=torch.Generator().manual_seed(seed))
    return dict(zip(CLIENTS, OWN + 0.2 * chance, strict=True))


@pytest.mark.parametrize("attacker", ["aa", "cc"])
def test_a_hospital_does_not_fall_with_one_that_sends_the_step_which_it_dominates(
    attacker: str,
) -> None:
    guards = [Copies(), Replayed()]
    guards[1].remember(exchange(torch.zeros(1200), later(1)))
    second = exchange(STEP, {**later(2), attacker: STEP})
    assert sorted(Copies().check(second)) == sorted({CLIENTS.index(attacker), 1})

    passed, verdicts = guarded(second, guards)
    if attacker == "aa":
        # The group of the two has the attacker's name.
        assert passed.clients == ["bb", "cc", "dd"]
        assert {client: [one.guard for one in of] for client, of in verdicts.items()} == {
            "aa": ["Replayed"]
        }
        assert passed.missing["aa"].startswith("quarantined: its update repeats the last global")
        assert torch.equal(passed[0].update["w"], second[1].update["w"])  # type: ignore[index]
        # Nothing is left of the group: bb has its whole weight.
        assert passed.groups == []
    else:
        assert "bb" in passed.clients


def test_a_hospital_under_many_names_does_not_vouch_for_itself() -> None:
    names = ["aa", "bb", "cc", "dd", "ee", "ff"]
    directions = torch.randn(6, 1200, generator=torch.Generator().manual_seed(3))
    step = 0.9 * directions[1] + 0.02 * directions.sum(0)

    def sent(start: torch.Tensor, seed: int, replayed: str = "") -> Replies:
        chance = torch.randn(6, 1200, generator=torch.Generator().manual_seed(seed))
        updates = dict(zip(names, directions + 0.2 * chance, strict=True))
        updates.update({name: step for name in replayed.split()})
        return exchange(start, updates)

    guard = Replayed()
    guard.remember(sent(torch.zeros(1200), 1))
    passed, verdicts = guarded(sent(step, 2, "aa cc ee ff"), [Copies(), guard])
    assert passed.clients == ["bb", "dd"]
    # Each by its own update, though most of the others send the same.
    for name in ("aa", "cc", "ee", "ff"):
        assert [verdict.guard for verdict in verdicts[name]] == ["Replayed"]


def test_one_hospital_under_two_names_that_repeats_the_step_is_found_under_both() -> None:
    guard = Replayed()
    guard.remember(exchange(torch.zeros(1200), later(1)))
    replayed = exchange(STEP, {**later(2), "aa": STEP, "cc": 1.5 * STEP})
    passed, verdicts = guarded(replayed, [Copies(), guard])
    assert passed.clients == ["bb", "dd"] and sorted(verdicts) == ["aa", "cc"]


def test_honest_updates_pass_all_default_guards_unchanged() -> None:
    replies = exchange(torch.zeros(1200), later(1))
    passed, verdicts = guarded(replies, DEFAULT)
    assert passed is replies and verdicts == {}
