# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Sites that attack: clients that answer honestly, and then change what they send."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from monai_fairfl.messages import Reply, Request
from monai_fairfl.transports.in_process import Client, InProcess

SLEEPS_UNTIL = 5
"""The round from which the sleeper attacks."""

Update = Mapping[str, torch.Tensor]


def length_of(tensors: Update) -> float:
    """The Euclidean length of some tensors together."""
    return float(np.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors.values())))


def weighted_sum(first: Update, factor: float, second: Update) -> dict[str, torch.Tensor]:
    """``first + factor * second``."""
    return {name: tensor + factor * second[name] for name, tensor in first.items()}


def scaled(update: Update, factor: float) -> dict[str, torch.Tensor]:
    """``factor * update``."""
    return {name: factor * tensor for name, tensor in update.items()}


def random_like(
    update: Update, generator: np.random.Generator, length: float
) -> dict[str, torch.Tensor]:
    """A random vector of that length, with the tensors of ``update``."""
    tensors = {}
    for name, tensor in update.items():
        tensors[name] = torch.from_numpy(generator.normal(size=tuple(tensor.shape)))
    return scaled(tensors, length / length_of(tensors))


@dataclass
class Scene:
    """What the attackers of one federation know.

    Args:
        victim: the site that is copied, or sunk.
    """

    victim: str
    number: int = -1
    asked: Update = field(default_factory=dict)
    previous: dict[str, torch.Tensor] = field(default_factory=dict)
    present: dict[str, torch.Tensor] = field(default_factory=dict)
    updates: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)

    def sent(self, request: Request) -> None:
        """Take in what a client is sent, to train or to measure."""
        self.asked = request.weights
        if request.task == "train" and request.round != self.number:
            self.number = request.round
            self.previous = self.present
            self.present = {name: tensor.clone() for name, tensor in request.weights.items()}
            self.updates = {}

    def last_step(self, update: Update) -> dict[str, torch.Tensor]:
        """The last global step, from the two models that were sent last; empty in round 0."""
        if not self.previous:
            return {}
        step = {}
        for name in update:
            step[name] = self.present[name].double() - self.previous[name].double()
        return step


Change = Callable[[Reply, Update, Scene, np.random.Generator], Reply]
"""An attack: the honest reply and its update, what is known, random numbers -> what is sent."""


def with_update(reply: Reply, update: Update) -> Reply:
    """The reply with another update, in float32."""
    return replace(reply, update={name: tensor.float() for name, tensor in update.items()})


def multiplied(factor: float) -> Change:
    """The honest update times ``factor``."""

    def change(reply: Reply, update: Update, scene: Scene, chance: np.random.Generator) -> Reply:
        return with_update(reply, scaled(update, factor))

    return change


def noise(reply: Reply, update: Update, scene: Scene, chance: np.random.Generator) -> Reply:
    """Random numbers of the honest length."""
    return with_update(reply, random_like(update, chance, length_of(update)))


def one_value(value: float) -> Change:
    """The honest update with one value replaced."""

    def change(reply: Reply, update: Update, scene: Scene, chance: np.random.Generator) -> Reply:
        name = max(update, key=lambda name: update[name].numel())
        spoilt = update[name].clone()
        spoilt.view(-1)[7] = value
        return replace(reply, update={**update, name: spoilt})

    return change


def copied(reply: Reply, update: Update, scene: Scene, chance: np.random.Generator) -> Reply:
    """The victim's update."""
    return with_update(reply, scene.updates[scene.victim])


def sinking(reply: Reply, update: Update, scene: Scene, chance: np.random.Generator) -> Reply:
    """The opposite of the victim's update."""
    return with_update(reply, scaled(scene.updates[scene.victim], -1.0))


def replayed(reply: Reply, update: Update, scene: Scene, chance: np.random.Generator) -> Reply:
    """The last global step, at the honest length."""
    step = scene.last_step(update)
    if not step:
        return reply
    return with_update(reply, scaled(step, length_of(update) / length_of(step)))


def replayed_with_noise(
    reply: Reply, update: Update, scene: Scene, chance: np.random.Generator
) -> Reply:
    """The last global step at the honest length, and a quarter of that in noise."""
    step = scene.last_step(update)
    if not step:
        return reply
    length = length_of(update)
    replay = scaled(step, length / length_of(step))
    return with_update(reply, weighted_sum(replay, 1.0, random_like(update, chance, 0.25 * length)))


def sleeper(reply: Reply, update: Update, scene: Scene, chance: np.random.Generator) -> Reply:
    """Honest at first, then noise."""
    if scene.number < SLEEPS_UNTIL:
        return reply
    return noise(reply, update, scene, chance)


def together(reply: Reply, update: Update, scene: Scene, chance: np.random.Generator) -> Reply:
    """The first attacker's update with a little noise of its own, as several identities send it."""
    leader = scene.updates.setdefault("leader", dict(update))
    little = random_like(leader, chance, 0.2 * length_of(leader))
    return with_update(reply, weighted_sum(leader, 1.0, little))


def impossible_statistics(
    reply: Reply, update: Update, scene: Scene, chance: np.random.Generator
) -> Reply:
    """Variances that no images can have."""
    buffers = dict(reply.buffers or {})
    for name, buffer in buffers.items():
        if name.endswith("running_var"):
            buffers[name] = torch.full_like(buffer, -1e6)
    return replace(reply, buffers=buffers)


def many_samples(reply: Reply, update: Update, scene: Scene, chance: np.random.Generator) -> Reply:
    """A thousand million images."""
    return replace(reply, num_samples=1_000_000_000)


def enormous_reports(
    reply: Reply, update: Update, scene: Scene, chance: np.random.Generator
) -> Reply:
    """A thousand million for everything that it measured."""
    return replace(reply, measurements=dict.fromkeys(reply.measurements, 1e9))


def false_reports(reply: Reply, update: Update, scene: Scene, chance: np.random.Generator) -> Reply:
    """What pays best within the range of a measurement.

    A model of a coalition gets a Dice of 1 where it holds the attacker's update, and else 0.
    """
    measured = {name: PLAUSIBLE.get(name, 0.5) for name in reply.measurements}
    if update:
        scene.updates["attacker"] = dict(update)
    elif "score" in measured:
        measured["score"] = float(_holds(scene, scene.updates["attacker"]))
    return replace(reply, measurements=measured)


def _holds(scene: Scene, update: Update) -> bool:
    """Whether the model in question moved along ``update`` more than by chance."""
    along = 0.0
    for name, tensor in update.items():
        moved = scene.asked[name].double() - scene.present[name].double()
        along += float((moved * tensor.double()).sum())
    # A coalition of two moves by half of it, and one of others by as much as they agree with it.
    return along / length_of(update) ** 2 > 0.55


@dataclass(frozen=True)
class Attack:
    """One attack.

    Args:
        change: of the attackers' replies to a training.
        sites: how many sites attack together.
        hospitals: how many hospitals these are. One hospital with three names has one honest share.
        reports: whether replies that only measure are changed, too.
    """

    change: Change
    sites: int = 1
    hospitals: int = 1
    reports: bool = False


PLAUSIBLE = {"leave_one_out_error": 1.0, "sharpness": 1.0, "global_loss": 5.0}
"""The best false reports that are within the measurement's range."""

ATTACKS: dict[str, Attack] = {
    "zeros": Attack(multiplied(0.0)),
    "noise of honest length": Attack(noise),
    "flipped sign": Attack(multiplied(-1.0)),
    "x10": Attack(multiplied(10.0)),
    "x100": Attack(multiplied(100.0)),
    "NaN": Attack(one_value(float("nan"))),
    "Inf": Attack(one_value(float("inf"))),
    "copy": Attack(copied),
    "replay of the last step": Attack(replayed),
    "replay with noise": Attack(replayed_with_noise),
    "sleeper": Attack(sleeper),
    "two colluders": Attack(together, sites=2, hospitals=2),
    "three identities": Attack(together, sites=3),
    "a site that sinks another": Attack(sinking),
    "BatchNorm statistics": Attack(impossible_statistics),
    "num_samples 1e9": Attack(many_samples),
    "report of 1e9": Attack(enormous_reports, reports=True),
    "plausible false report": Attack(false_reports, reports=True),
}


class Attacker:
    """A client that answers honestly, and then changes its reply.

    Args:
        client: that it is.
        attack: on its replies.
        scene: what it knows.
    """

    def __init__(self, client: Client, attack: Attack, scene: Scene):
        self.client = client
        self.attack = attack
        self.scene = scene

    def answer(self, request: Request) -> Reply:
        """Answer, and change the answer."""
        self.scene.sent(request)
        reply = self.client.answer(request)
        if reply.update is None and not self.attack.reports:
            return reply
        chance = np.random.default_rng(request.seed + 1)
        return self.attack.change(reply, reply.update or {}, self.scene, chance)


class AttackersLast(InProcess):
    """Asks the honest clients first, so that an attacker of any name has seen their updates.

    Args:
        clients: name -> function that makes the client.
        attackers: names of those who are asked last.
    """

    def __init__(self, clients: Mapping[str, Callable[[], Client]], attackers: Collection[str]):
        super().__init__(clients)
        self.attackers = attackers

    def ask(self, requests: Sequence[Request], timeout: float | None = None) -> Iterator[Reply]:
        """Carry out the requests."""
        last = sorted(requests, key=lambda request: request.client in self.attackers)
        return super().ask(last, timeout)


class Watched:
    """An honest client whose updates the attackers see."""

    def __init__(self, client: Client, scene: Scene):
        self.client = client
        self.scene = scene

    def answer(self, request: Request) -> Reply:
        """Answer honestly."""
        self.scene.sent(request)
        reply = self.client.answer(request)
        if reply.update is not None:
            update = {name: tensor.clone() for name, tensor in reply.update.items()}
            self.scene.updates[request.client] = update
        return reply
