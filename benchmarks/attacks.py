# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What one site gains by an attack, with and without guards, and with NVIDIA FLARE's FedCE.

Eight simulated hospitals train a model of 20,000 parameters for ten rounds in a real
:class:`~monai_fairfl.server.federation.Federation`. One of them attacks. Each number is the
attacker's share of the weight, or of the step, divided by the same site's share when it is honest:
the mean over the rounds from the third on, and the worst of all seeds::

    python benchmarks/attacks.py
    python benchmarks/attacks.py --seeds 1 --attacks zeros flipped --strategies FedAvg FedCE

A number of 1 is no gain. Without attack the honest outlier's share and the guards' verdicts on
honest sites are printed below the table.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from monai_fairfl.guards import DEFAULT, Guard
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.server.federation import Federation
from monai_fairfl.strategies import (
    AFL,
    CGSV,
    FairFed,
    FedAvg,
    FedCE,
    FedCI,
    FedISM,
    QFedAvg,
    ShapFed,
    Strategy,
)
from monai_fairfl.transports.in_process import InProcess
from monai_fairfl.utils.random_state import seed_of

SITES = tuple("ABCDEFGH")
ATTACKER = "H"
"""The last site that is asked in a round, so that it can copy what others send."""

VICTIM = "A"
ROUNDS = 10
FIRST_COUNTED_ROUND = 2
SLEEPS_UNTIL = 5
"""The round from which the sleeper attacks."""

SHAPES = {
    "encoder.weight": (64, 128),
    "middle.weight": (64, 128),
    "decoder.weight": (32, 112),
    "out.weight": (3, 11),
    "out.bias": (3,),
}
SPEC = ModelSpec(
    tuple(SHAPES),
    buffers=("norm.running_mean", "norm.running_var"),
    layers={name: name.split(".")[0] for name in SHAPES},
    output=("out", 0),
)
COMMON = 1.0
"""Length of the step that all sites have in common."""

OWN = 0.7
"""Length of the step that is a site's own, in every round."""

CHANCE = 0.7
"""Length of the part of an update that is another in every round."""

RATE = 0.02
"""Part of the way to its own best model that a site goes in one round."""

STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "FedAvg": FedAvg,
    "FedCE": FedCE,
    "FedCE-sum": lambda: FedCE("sum"),
    "CGSV": lambda: CGSV(gamma=None),
    "ShapFed": ShapFed,
    "FedISM": FedISM,
    "QFedAvg": lambda: QFedAvg(form="loss_weighted"),
    "AFL": AFL,
    "FairFed": FairFed,
    "FedCI": FedCI,
}


def random_model(generator: np.random.Generator, length: float) -> dict[str, torch.Tensor]:
    """A vector of that length in the space of the parameters."""
    tensors = {}
    for name, shape in SHAPES.items():
        tensors[name] = torch.from_numpy(generator.normal(size=shape))
    norm = length_of(tensors)
    return {name: tensor * (length / norm) for name, tensor in tensors.items()}


def length_of(tensors: Mapping[str, torch.Tensor]) -> float:
    """The Euclidean length of some tensors together."""
    return float(np.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors.values())))


def weighted_sum(
    first: Mapping[str, torch.Tensor], factor: float, second: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """``first + factor * second``."""
    return {name: first[name] + factor * second[name] for name in SHAPES}


class Hospital:
    """A site whose loss is the squared distance from a model that fits its patients best.

    Args:
        name: of the site.
        seed: of all sites.
        outlier: whether its patients ask for the opposite of what the others have in common, in
            part.
    """

    def __init__(self, name: str, seed: int, outlier: bool = False):
        common = random_model(np.random.default_rng(seed), COMMON / RATE)
        own = random_model(np.random.default_rng([seed, ord(name)]), OWN / RATE)
        share_of_common = -0.3 if outlier else 1.0
        self.name = name
        self.best = weighted_sum(own, share_of_common, common)
        self.trained: dict[str, torch.Tensor] | None = None

    def loss(self, weights: Mapping[str, torch.Tensor]) -> float:
        """The squared distance from its best model, as a share of that model's squared length."""
        distance = length_of(weighted_sum(self.best, -1.0, weights))
        return (distance / length_of(self.best)) ** 2

    def score(self, weights: Mapping[str, torch.Tensor]) -> float:
        """A Dice that falls with the loss, between 0 and 1."""
        return float(np.exp(-self.loss(weights)))

    def answer(self, request: Request) -> Reply:
        """Train or measure, as a client does."""
        generator = np.random.default_rng(request.seed)
        sent = {name: request.weights[name] for name in SHAPES}
        measured = {name: self._measured(name, request, sent) for name in request.measure}
        echo: dict[str, Any] = {"id": request.id, "run": request.run, "round": request.round}
        if request.task == "measure":
            return Reply(self.name, None, 0, measured, **echo)
        towards_best = weighted_sum(self.best, -1.0, sent)
        step = {name: RATE * tensor for name, tensor in towards_best.items()}
        update = weighted_sum(step, 1.0, random_model(generator, CHANCE))
        update = {name: tensor.float() for name, tensor in update.items()}
        self.trained = weighted_sum(sent, 1.0, update)
        buffers = {
            "norm.running_mean": torch.from_numpy(generator.normal(size=16)).float() * 0.1,
            "norm.running_var": torch.from_numpy(generator.uniform(0.8, 1.25, size=16)).float(),
        }
        counts = {"num_cases": 10, "num_steps": 50}
        return Reply(self.name, update, 100, measured, buffers, **counts, **echo)

    def _measured(self, name: str, request: Request, sent: Mapping[str, torch.Tensor]) -> float:
        if name == "leave_one_out_error":
            return 1 - self.score(self._without_itself(request, sent))
        if name == "sharpness":
            return 0.1 * self.loss(sent)
        if name.endswith("loss"):
            return self.loss(sent)
        return self.score(sent)

    def _without_itself(
        self, request: Request, sent: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        """The model that it was sent, less its own part of it."""
        weight = request.context["previous_weight"]
        if self.trained is None or weight >= 1:
            return sent
        rest = weighted_sum(sent, -weight, self.trained)
        return {name: tensor / (1 - weight) for name, tensor in rest.items()}


@dataclass
class Scene:
    """What an attacker knows: what it was sent before, and what others sent in this round."""

    number: int = -1
    previous: dict[str, torch.Tensor] | None = None
    present: dict[str, torch.Tensor] | None = None
    updates: dict[str, dict[str, torch.Tensor]] | None = None

    def sent(self, request: Request) -> None:
        """Take in what a client is sent."""
        if request.task == "train" and request.round != self.number:
            self.number = request.round
            self.previous = self.present
            self.present = {name: request.weights[name].clone() for name in SHAPES}
            self.updates = {}

    def last_step(self) -> dict[str, torch.Tensor] | None:
        """The last global step, from the two models that were sent last."""
        if self.previous is None or self.present is None:
            return None
        return weighted_sum(self.present, -1.0, self.previous)


Change = Callable[[Reply, Scene, np.random.Generator], Reply]
"""An attack: what a client sends in place of its honest reply."""


def changed_update(reply: Reply, update: Mapping[str, torch.Tensor]) -> Reply:
    """The reply with another update, in float32."""
    return replace(reply, update={name: tensor.float() for name, tensor in update.items()})


def multiplied(factor: float) -> Change:
    """The honest update times ``factor``."""

    def change(reply: Reply, scene: Scene, generator: np.random.Generator) -> Reply:
        assert reply.update is not None
        return changed_update(reply, {name: t * factor for name, t in reply.update.items()})

    return change


def noise(reply: Reply, scene: Scene, generator: np.random.Generator) -> Reply:
    """Random numbers of the honest length."""
    assert reply.update is not None
    return changed_update(reply, random_model(generator, length_of(reply.update)))


def one_value(value: float) -> Change:
    """The honest update with one value replaced."""

    def change(reply: Reply, scene: Scene, generator: np.random.Generator) -> Reply:
        update = {name: tensor.clone() for name, tensor in (reply.update or {}).items()}
        update["middle.weight"][3, 5] = value
        return replace(reply, update=update)

    return change


def copied(reply: Reply, scene: Scene, generator: np.random.Generator) -> Reply:
    """The victim's update."""
    assert scene.updates is not None
    return changed_update(reply, scene.updates[VICTIM])


def sinking(reply: Reply, scene: Scene, generator: np.random.Generator) -> Reply:
    """The opposite of the victim's update."""
    assert scene.updates is not None
    return changed_update(reply, {name: -t for name, t in scene.updates[VICTIM].items()})


def replayed(reply: Reply, scene: Scene, generator: np.random.Generator) -> Reply:
    """The last global step, at the honest length."""
    step = scene.last_step()
    if step is None:
        return reply
    assert reply.update is not None
    factor = length_of(reply.update) / length_of(step)
    return changed_update(reply, {name: tensor * factor for name, tensor in step.items()})


def replayed_with_noise(reply: Reply, scene: Scene, generator: np.random.Generator) -> Reply:
    """The last global step and a quarter of noise, at the honest length."""
    assert reply.update is not None
    length = length_of(reply.update)
    replay = replayed(reply, scene, generator).update
    assert replay is not None
    mixed = weighted_sum(replay, 1.0, random_model(generator, 0.25 * length))
    return changed_update(reply, mixed)


def sleeper(reply: Reply, scene: Scene, generator: np.random.Generator) -> Reply:
    """Honest at first, then noise."""
    if scene.number < SLEEPS_UNTIL:
        return reply
    return noise(reply, scene, generator)


def together(reply: Reply, scene: Scene, generator: np.random.Generator) -> Reply:
    """The first attacker's update with a little noise of its own, as several identities send it."""
    assert reply.update is not None and scene.updates is not None
    leader = scene.updates.setdefault("leader", dict(reply.update))
    little = random_model(generator, 0.2 * length_of(leader))
    return changed_update(reply, weighted_sum(leader, 1.0, little))


def impossible_statistics(reply: Reply, scene: Scene, generator: np.random.Generator) -> Reply:
    """A variance that no images can have."""
    buffers = dict(reply.buffers or {})
    buffers["norm.running_var"] = torch.full((16,), -1e6)
    return replace(reply, buffers=buffers)


def many_samples(reply: Reply, scene: Scene, generator: np.random.Generator) -> Reply:
    """A thousand million images."""
    return replace(reply, num_samples=1_000_000_000)


def reported(numbers: Mapping[str, float]) -> Change:
    """Other numbers than it measured."""

    def change(reply: Reply, scene: Scene, generator: np.random.Generator) -> Reply:
        measured = dict(reply.measurements)
        for name in measured:
            measured[name] = numbers.get(name, numbers["any"])
        return replace(reply, measurements=measured)

    return change


@dataclass(frozen=True)
class Attack:
    """One attack.

    Args:
        change: of every reply of the attackers.
        sites: how many sites attack together; the last ones.
        hospitals: how many hospitals these are. One hospital with three names has one honest share.
    """

    change: Change
    sites: int = 1
    hospitals: int = 1

    @property
    def attackers(self) -> tuple[str, ...]:
        """The sites that attack."""
        return SITES[-self.sites :]

    @property
    def honest_sites(self) -> tuple[str, ...]:
        """All sites of the same federation without the attack."""
        return SITES[: len(SITES) - self.sites + self.hospitals]


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
    "report of 1e9": Attack(reported({"any": 1e9})),
    "plausible false report": Attack(
        reported({"leave_one_out_error": 1.0, "sharpness": 1.0, "global_loss": 5.0, "any": 0.5})
    ),
}


class Attacker:
    """A hospital that answers honestly, and then changes its reply.

    Args:
        hospital: that it is.
        change: of its replies.
        scene: what it knows.
    """

    def __init__(self, hospital: Hospital, change: Change, scene: Scene):
        self.hospital = hospital
        self.change = change
        self.scene = scene

    def answer(self, request: Request) -> Reply:
        """Answer, and change the answer."""
        self.scene.sent(request)
        reply = self.hospital.answer(request)
        generator = np.random.default_rng(request.seed + 1)
        if reply.update is None and self.change not in REPORTS:
            return reply
        return self.change(reply, self.scene, generator)


REPORTS = (ATTACKS["report of 1e9"].change, ATTACKS["plausible false report"].change)


class Watched:
    """An honest hospital whose updates the attackers see."""

    def __init__(self, hospital: Hospital, scene: Scene):
        self.hospital = hospital
        self.scene = scene

    def answer(self, request: Request) -> Reply:
        """Answer honestly."""
        self.scene.sent(request)
        reply = self.hospital.answer(request)
        if reply.update is not None and self.scene.updates is not None:
            self.scene.updates[self.hospital.name] = dict(reply.update)
        return reply


Records = Sequence[Mapping[str, Any]]
"""The records of a run's rounds, as a ledger has them."""


def clients_of(
    sites: Sequence[str], attack: Attack | None, seed: int, outlier: bool
) -> dict[str, Attacker | Watched]:
    """The clients of one federation, by name.

    Args:
        sites: that take part.
        attack: of the last sites; ``None``: all are honest.
        seed: of their patients.
        outlier: whether the last site is an honest outlier.
    """
    scene = Scene()
    attackers: tuple[str, ...] = ()
    if attack is not None:
        attackers = attack.attackers
    clients: dict[str, Attacker | Watched] = {}
    for name in sites:
        hospital = Hospital(name, seed, outlier and name == ATTACKER)
        clients[name] = Watched(hospital, scene)
        if attack is not None and name in attackers:
            clients[name] = Attacker(hospital, attack.change, scene)
    return clients


def initial() -> tuple[dict[str, torch.Tensor], ModelSpec]:
    """The model that all federations begin with."""
    weights = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    weights["norm.running_mean"] = torch.zeros(16)
    weights["norm.running_var"] = torch.ones(16)
    return weights, SPEC


Runner = Callable[[Mapping[str, "Attacker | Watched"], int], Records]
"""Runs a federation of these clients with this seed."""


def with_federation(strategy: Callable[[], Strategy], guards: Sequence[Guard]) -> Runner:
    """Our federation."""

    def run(clients: Mapping[str, Attacker | Watched], seed: int) -> Records:
        makers = {}
        for name, client in clients.items():
            makers[name] = partial(_itself, client)
        with tempfile.TemporaryDirectory() as folder:
            run_dir = Path(folder) / "run"
            federation = Federation(
                strategy(), InProcess(makers), ROUNDS, initial, guards, run_dir, seed=seed, final=()
            )
            return federation.run().rounds

    return run


def _itself(client: Attacker | Watched) -> Attacker | Watched:
    return client


def with_nvflare(mode: str) -> Runner:
    """NVIDIA FLARE's FedCE, driven as its own controller drives it.

    Args:
        mode: ``"times"`` or ``"plus"``.
    """
    from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
    from nvflare.app_opt.pt.fedce import FedCEConstants, FedCEModelAggregator

    def run(clients: Mapping[str, Attacker | Watched], seed: int) -> Records:
        aggregator = FedCEModelAggregator(mode, list(SPEC.parameters))
        weights, _ = initial()
        entered = dict.fromkeys(clients, 0.0)
        errors: dict[str, list[float]] = {name: [] for name in clients}
        records = []
        for number in range(ROUNDS):
            measure = ("leave_one_out_error",) if number else ()
            updates = {}
            aggregator.reset_stats()
            for name, client in clients.items():
                context = {"previous_weight": entered[name]}
                work = seed_of(seed, name, number)
                request = Request(name, "train", weights, measure, context, 0, "", number, work)
                reply = client.answer(request)
                assert reply.update is not None
                updates[name] = reply.update
                # The reference client sends the mean of its errors; the first one counts as 1.
                errors[name].append(float(reply.measurements.get("leave_one_out_error", 1.0)))  # type: ignore[arg-type]
                error = float(np.mean(errors[name]))
                meta = {"client_name": name, FedCEConstants.MINUS_MODEL_SCORE: error}
                aggregator.accept_model(
                    FLModel(
                        ParamsType.DIFF,
                        params=dict(reply.update),
                        current_round=number,
                        meta=meta,
                    )
                )
            result = aggregator.aggregate_model()
            entered = dict(result.meta[FedCEConstants.CONTRIBUTION_WEIGHTS])
            for name in SHAPES:
                weights = {**weights, name: weights[name] + result.params[name]}
            records.append(_record(number, entered, updates))
        return records

    return run


def _record(
    number: int, weights: Mapping[str, float], updates: Mapping[str, Mapping[str, torch.Tensor]]
) -> dict[str, Any]:
    """A round of NVIDIA FLARE in the form of our ledger, as far as it is read here."""
    squared = np.diag([length_of(update) ** 2 for update in updates.values()])
    return {
        "round": number,
        "aggregation": weights,
        "gram": {"clients": list(updates), "whole": squared.tolist()},
        "details": {},
        "missing": {},
        "guards": {},
        "verdicts": {},
        "not_finite": {},
    }


def shares(record: Mapping[str, Any], attackers: Sequence[str]) -> tuple[float, float]:
    """The attackers' share of the weights and of the step's lengths in one round."""
    weights = record["aggregation"]
    of_weight = sum(weights.get(client, 0.0) for client in attackers) / sum(weights.values())

    lengths = {}
    for row, client in enumerate(record["gram"]["clients"]):
        squared = record["gram"]["whole"][row][row]
        lengths[client] = float("nan") if squared is None else float(np.sqrt(squared))
    # A copy counts with the length of the one that it shares a weight with.
    for client, verdicts in record["verdicts"].items():
        for verdict in verdicts:
            if verdict["action"] == "share":
                lengths[client] = lengths[verdict["group"][0]]
    scale = record["details"].get("scale", {})
    moved = {}
    for client, length in lengths.items():
        moved[client] = weights.get(client, 0.0) * scale.get(client, 1.0) * length
    of_step = sum(moved.get(client, 0.0) for client in attackers) / sum(moved.values())
    return of_weight, of_step


def mean_shares(
    rounds: Sequence[Mapping[str, Any]], attackers: Sequence[str]
) -> tuple[float, float]:
    """The mean over the rounds that count."""
    counted = [shares(record, attackers) for record in rounds[FIRST_COUNTED_ROUND:]]
    of_weight = float(np.mean([weight for weight, _ in counted]))
    of_step = float(np.mean([step for _, step in counted]))
    return of_weight, of_step


def verdicts_on(rounds: Sequence[Mapping[str, Any]], clients: Sequence[str]) -> list[int]:
    """The rounds in which a guard or a check acted on one of these clients."""
    found = []
    for record in rounds:
        for client in clients:
            reason = record["missing"].get(client, "")
            noted = client in record["not_finite"] or client in record.get("out_of_range", {})
            if client in record["guards"] or reason.startswith("refused") or noted:
                found.append(record["round"])
    return found


@dataclass(frozen=True)
class Outcome:
    """What an attack brought with one strategy: the worst of all seeds.

    Args:
        weight: share of the weight over the honest share.
        step: share of the step over the honest share.
        caught: share of seeds with a verdict within three rounds of the attack.
        false_alarms: verdicts on honest sites, over all seeds.
    """

    weight: float
    step: float
    caught: float
    false_alarms: int


def outcome(run: Runner, name: str, seeds: Sequence[int]) -> Outcome:
    """Run an attack with each seed, beside the same federation without it."""
    attack = ATTACKS[name]
    begins = SLEEPS_UNTIL if name == "sleeper" else 0
    innocent = [site for site in SITES if site not in attack.attackers]
    if name == "copy":
        # The victim shares its weight with the copy, and is no false alarm.
        innocent.remove(VICTIM)

    weights = []
    steps = []
    caught = 0
    false_alarms = 0
    for seed in seeds:
        honest = run(clients_of(attack.honest_sites, None, seed, False), seed)
        attacked = run(clients_of(SITES, attack, seed, False), seed)
        hospitals = attack.attackers[: attack.hospitals]
        if attack.hospitals < attack.sites:
            hospitals = attack.honest_sites[-attack.hospitals :]
        honest_weight, honest_step = mean_shares(honest, hospitals)
        weight, step = mean_shares(attacked, attack.attackers)
        weights.append(weight / honest_weight)
        steps.append(step / honest_step)
        # It is caught in the round that it begins, or in one of the three that follow.
        rounds = verdicts_on(attacked, attack.attackers)
        caught += any(begins <= number <= begins + 3 for number in rounds)
        false_alarms += len(verdicts_on(attacked, innocent))
    return Outcome(float(np.max(weights)), float(np.max(steps)), caught / len(seeds), false_alarms)


def print_attacks(
    title: str, runs: Mapping[str, Runner], attacks: Sequence[str], seeds: Sequence[int]
) -> None:
    """Print a table with a row for each attack and a column for each way to run it."""
    print(f"\n{title}\n")
    print("| attack | " + " | ".join(runs) + " |")
    print("| --- " * (len(runs) + 1) + "|")
    for name in attacks:
        cells = []
        for run in runs.values():
            try:
                found = outcome(run, name, seeds)
            except Exception as error:
                cells.append(f"ended by {type(error).__name__}")
                continue
            cells.append(
                f"{found.weight:.2f} / {found.step:.2f}, {found.caught:.0%}, {found.false_alarms}"
            )
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def print_outlier(
    guarded: Mapping[str, Runner], unguarded: Mapping[str, Runner], seeds: Sequence[int]
) -> None:
    """Print what an honest outlier's share of the weight is, and how often a guard acts on it."""
    print("\nThe honest outlier: its share of the weight with default guards over that without\n")
    print("| strategy | share without guards | ratio, lowest of all seeds | verdicts on any site |")
    print("| --- | --- | --- | --- |")
    for name, run in guarded.items():
        ratios = []
        shares_without = []
        verdicts = 0
        for seed in seeds:
            rounds = run(clients_of(SITES, None, seed, True), seed)
            free = unguarded[name](clients_of(SITES, None, seed, True), seed)
            with_guards, _ = mean_shares(rounds, [ATTACKER])
            without, _ = mean_shares(free, [ATTACKER])
            ratios.append(with_guards / without)
            shares_without.append(without)
            verdicts += len(verdicts_on(rounds, SITES))
        mean = float(np.mean(shares_without))
        print(f"| {name} | {mean:.3f} | {min(ratios):.3f} | {verdicts} |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--attacks", nargs="+", choices=list(ATTACKS), default=list(ATTACKS))
    parser.add_argument(
        "--strategies", nargs="+", choices=list(STRATEGIES), default=list(STRATEGIES)
    )
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)

    unguarded = {}
    guarded = {}
    for name in arguments.strategies:
        unguarded[name] = with_federation(STRATEGIES[name], ())
        guarded[name] = with_federation(STRATEGIES[name], DEFAULT)
    print("Each cell: weight / step, caught within three rounds, verdicts on honest sites.")
    if find_spec("nvflare") is not None:
        peers = {"times": with_nvflare("times"), "plus": with_nvflare("plus")}
        print_attacks("NVIDIA FLARE's FedCE", peers, arguments.attacks, seeds)
    print_attacks("guards=()", unguarded, arguments.attacks, seeds)
    print_attacks("default guards", guarded, arguments.attacks, seeds)
    print_outlier(guarded, unguarded, seeds)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
