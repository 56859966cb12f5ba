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
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attackers import (
    ATTACKS,
    SLEEPS_UNTIL,
    Attack,
    Attacker,
    Scene,
    Watched,
    length_of,
    random_like,
    scaled,
    weighted_sum,
)

from monai_fairfl.guards import DEFAULT, Guard
from monai_fairfl.messages import ModelSpec, Reply, Request
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
    compose,
)
from monai_fairfl.transports.in_process import Client, InProcess
from monai_fairfl.utils.tensors import seed_of

SITES = tuple("ABCDEFGH")
ATTACKER = "H"
"""The last site that is asked in a round, so that it can copy what others send."""

VICTIM = "A"
ROUNDS = 10
FIRST_COUNTED_ROUND = 2
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
    "QFedAvg": lambda: QFedAvg(variant="released"),
    "AFL": AFL,
    "FairFed": FairFed,
    "FedCI": FedCI,
}


def random_model(generator: np.random.Generator, length: float) -> dict[str, torch.Tensor]:
    """A random vector of that length in the space of the parameters."""
    zeros = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    return random_like(zeros, generator, length)


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
        if request.context.get("ended", 0):
            return Reply(self.name, None, 0, id=request.id, run=request.run, round=request.round)
        generator = np.random.default_rng(request.seed)
        sent = {name: request.weights[name] for name in SHAPES}
        measured = {name: self._measured(name, request, sent) for name in request.measure}
        echo: dict[str, Any] = {"id": request.id, "run": request.run, "round": request.round}
        if request.task == "measure":
            return Reply(self.name, None, 0, measured, **echo)
        towards_best = weighted_sum(self.best, -1.0, sent)
        update = weighted_sum(scaled(towards_best, RATE), 1.0, random_model(generator, CHANCE))
        update = {name: tensor.float() for name, tensor in update.items()}
        self.trained = weighted_sum(sent, 1.0, update)
        buffers = {
            "norm.running_mean": torch.from_numpy(generator.normal(size=16)).float() * 0.1,
            "norm.running_var": torch.from_numpy(generator.uniform(0.8, 1.25, size=16)).float(),
        }
        counts: dict[str, Any] = {"num_cases": 10, "num_steps": 50}
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


Records = Sequence[Mapping[str, Any]]
"""The records of a run's rounds, as a ledger has them."""


def attackers_of(attack: Attack) -> tuple[str, ...]:
    """The sites that attack: the last ones."""
    return SITES[-attack.sites :]


def honest_sites_of(attack: Attack) -> tuple[str, ...]:
    """All sites of the same federation without the attack."""
    return SITES[: len(SITES) - attack.sites + attack.hospitals]


def clients_of(
    sites: Sequence[str], attack: Attack | None, seed: int, outlier: bool
) -> dict[str, Client]:
    """The clients of one federation, by name.

    Args:
        sites: that take part.
        attack: of the last sites; ``None``: all are honest.
        seed: of their patients.
        outlier: whether the last site is an honest outlier.
    """
    scene = Scene(VICTIM)
    clients: dict[str, Client] = {}
    for name in sites:
        hospital = Hospital(name, seed, outlier and name == ATTACKER)
        clients[name] = Watched(hospital, scene)
        if attack is not None and name in attackers_of(attack):
            clients[name] = Attacker(hospital, attack, scene)
    return clients


def initial() -> tuple[dict[str, torch.Tensor], ModelSpec]:
    """The model that all federations begin with."""
    weights = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    weights["norm.running_mean"] = torch.zeros(16)
    weights["norm.running_var"] = torch.ones(16)
    return weights, SPEC


Runner = Callable[[Mapping[str, Client], int], Records]
"""Runs a federation of these clients with this seed."""


def with_federation(
    strategy: Callable[[], Strategy],
    guards: Sequence[Guard],
    rounds: int = ROUNDS,
    **settings: Any,
) -> Runner:
    """Our federation."""

    def run(clients: Mapping[str, Client], seed: int) -> Records:
        makers = {}
        for name, client in clients.items():
            makers[name] = partial(_itself, client)
        with tempfile.TemporaryDirectory() as folder:
            run_dir = Path(folder) / "run"
            given = {"seed": seed, "final": (), **settings}
            federation = Federation(
                strategy(), InProcess(makers), rounds, initial, guards, run_dir, **given
            )
            return federation.run().rounds

    return run


def _itself(client: Client) -> Client:
    return client


def with_nvflare(mode: str) -> Runner:
    """NVIDIA FLARE's FedCE, driven as its own controller drives it.

    Args:
        mode: ``"times"`` or ``"plus"``.
    """
    from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
    from nvflare.app_opt.pt.fedce import FedCEConstants, FedCEModelAggregator

    def run(clients: Mapping[str, Client], seed: int) -> Records:
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
            noted = client in record["not_finite"] or client in record.get("dropped", {})
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


@cache
def honest_rounds(run: Runner, sites: Sequence[str], seed: int) -> Records:
    """The same federation without an attack; run once for all attacks."""
    return run(clients_of(sites, None, seed, False), seed)


def outcome(run: Runner, name: str, seeds: Sequence[int]) -> Outcome:
    """Run an attack with each seed, beside the same federation without it."""
    attack = ATTACKS[name]
    begins = SLEEPS_UNTIL if name == "sleeper" else 0
    innocent = [site for site in SITES if site not in attackers_of(attack)]
    if name == "copy":
        # The victim shares its weight with the copy, and is no false alarm.
        innocent.remove(VICTIM)

    weights = []
    steps = []
    caught = 0
    false_alarms = 0
    for seed in seeds:
        honest = honest_rounds(run, honest_sites_of(attack), seed)
        attacked = run(clients_of(SITES, attack, seed, False), seed)
        hospitals = attackers_of(attack)[: attack.hospitals]
        if attack.hospitals < attack.sites:
            hospitals = honest_sites_of(attack)[-attack.hospitals :]
        honest_weight, honest_step = mean_shares(honest, hospitals)
        weight, step = mean_shares(attacked, attackers_of(attack))
        weights.append(weight / honest_weight)
        steps.append(step / honest_step)
        # It is caught in the round that it begins, or in one of the three that follow.
        rounds = verdicts_on(attacked, attackers_of(attack))
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
            shares_without.append(without)
            if without > 0:
                ratios.append(with_guards / without)
            verdicts += len(verdicts_on(rounds, SITES))
        mean = float(np.mean(shares_without))
        lowest = "–"
        if ratios:
            lowest = f"{min(ratios):.3f}"
        print(f"| {name} | {mean:.3f} | {lowest} | {verdicts} |", flush=True)


def _limited(name: str, cap: float | None, clip_reports: float | None) -> Strategy:
    """A new strategy with limits of its weights and reports, where these are given."""
    strategy = STRATEGIES[name]()
    if cap is None and clip_reports is None:
        return strategy
    return compose(strategy, cap=cap, clip_reports=clip_reports)


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
    parser.add_argument("--cap", type=float, help="most weight of a site, see compose")
    parser.add_argument("--clip-reports", type=float, help="k of median +- k MAD, see compose")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)

    unguarded = {}
    guarded = {}
    for name in arguments.strategies:
        strategy = partial(_limited, name, arguments.cap, arguments.clip_reports)
        unguarded[name] = with_federation(strategy, ())
        guarded[name] = with_federation(strategy, DEFAULT)
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
