# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The verdicts of several guards together, in rounds of a federation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from monai_fairfl import Federation, InProcess, ModelSpec, Reply, Request
from monai_fairfl.guards import Copies, Guard, Replayed
from monai_fairfl.strategies import FedAvg

SIZE = 1200
SPEC = ModelSpec(("w",))


class Steady:
    """Goes on in its own direction, or sends the last global step times a factor.

    Args:
        direction: its own.
        samples: its images.
        replayed: the factor; 0: it is honest.
    """

    def __init__(self, direction: torch.Tensor, samples: int, replayed: float):
        self.direction = direction
        self.samples = samples
        self.replayed = replayed
        self.previous: torch.Tensor | None = None

    def answer(self, request: Request) -> Reply:
        echo: dict[str, Any] = {"id": request.id, "run": request.run, "round": request.round}
        if request.task == "measure":
            return Reply(request.client, None, 0, **echo)
        received = request.weights["w"]
        chance = torch.Generator().manual_seed(request.seed)
        update = self.direction + 0.2 * torch.randn(SIZE, generator=chance)
        if self.replayed and self.previous is not None:
            update = self.replayed * (received - self.previous)
        self.previous = received.clone()
        return Reply(request.client, {"w": update}, self.samples, **echo)


def sites_of(names: str, replayed: dict[str, float]) -> dict[str, Steady]:
    """Honest sites, of which b has most of the images, and those that replay, by a factor."""
    directions = torch.randn(len(names), SIZE, generator=torch.Generator().manual_seed(0))
    sites = {}
    for name, direction in zip(names, directions, strict=True):
        sites[name] = Steady(direction, 850 if name == "b" else 50, replayed.get(name, 0.0))
    return sites


def itself(site: Steady) -> Steady:
    return site


def federation(
    folder: Path, sites: dict[str, Steady], guards: Sequence[Guard], rounds: int
) -> Federation:
    """A federation whose sites live longer than its transport."""
    makers = {name: partial(itself, site) for name, site in sites.items()}
    initial = lambda: ({"w": torch.zeros(SIZE)}, SPEC)  # noqa: E731
    settings: dict[str, Any] = {"evaluate": (), "final": (), "guards": guards}
    return Federation(
        FedAvg(), InProcess(makers), rounds, initial, run_dir=folder / "run", **settings
    )


@pytest.mark.parametrize(
    ("names", "replayed"),
    [
        # The group of the two has the attacker's name, or the hospital's.
        ("abcd", {"a": 1.0}),
        ("abcd", {"c": 1.0}),
        # One hospital under two names, and under so many that most send the same.
        ("abcd", {"a": 1.0, "c": 1.5}),
        ("abcdef", {"a": 1.0, "c": 1.0, "e": 1.0, "f": 1.0}),
    ],
)
def test_who_sends_the_last_step_is_found_and_not_the_hospital_that_dominates_it(
    names: str, replayed: dict[str, float], tmp_path: Path
) -> None:
    """Also after a restart: guards remember, and those that were given stay new."""
    guards = [Copies(), Replayed()]
    fresh = guards[1].state_dict()
    sites = sites_of(names, replayed)
    federation(tmp_path, sites, guards, rounds=1).run()
    assert guards[1].state_dict() == fresh
    first, second = federation(tmp_path, sites, guards, rounds=2).run(resume=True).rounds
    assert first["verdicts"] == {} and first["missing"] == {}
    honest = [name for name in names if name not in replayed]
    assert list(second["aggregation"]) == honest
    images = {name: 850 if name == "b" else 50 for name in honest}
    for name in honest:
        assert second["aggregation"][name] == pytest.approx(images[name] / sum(images.values()))
    assert set(second["verdicts"]) == set(second["missing"]) == set(replayed)
    for name in replayed:
        assert {verdict["guard"] for verdict in second["verdicts"][name]} == {"Replayed"}
        assert second["missing"][name].startswith("quarantined")
