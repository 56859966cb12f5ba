# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The server's step of one round, beside NVIDIA FLARE's, Flower's and one reading of all models.

All steps alternate in one process::

    python benchmarks/server_step.py [--clients 4 8 16] [--parameters 1.6 16] [--repeats 15]
        [--tables steps rounds] [--steps average "Flower's average"]

It prints the median of the repeats in milliseconds: CPU time, and wall time in brackets. Everybody
gets the same updates, of one dictionary of float32 tensors per client.

A second table has whole rounds of a federation whose clients answer at once, checkpoint and ledger
included: with the default guards over ``guards=()``, in alternating pairs, by CPU time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from stopwatch import alternating

from monai_fairfl.guards import DEFAULT, Guard
from monai_fairfl.messages import ModelSpec, Reply, Request
from monai_fairfl.server.exchange import Exchange
from monai_fairfl.server.federation import Federation
from monai_fairfl.server.observer import Observer
from monai_fairfl.server.round import guarded
from monai_fairfl.strategies import FedAvg, FedCE, Strategy
from monai_fairfl.transports.in_process import InProcess


def updates_of(
    clients: int, parameters: int
) -> tuple[dict[str, dict[str, torch.Tensor]], ModelSpec]:
    """Draw random updates of about ``parameters`` values, in 40 tensors as a small U-Net's."""
    generator = torch.Generator().manual_seed(0)
    names = [f"layer{i:02d}.weight" for i in range(40)]
    size = parameters // len(names)
    updates = {}
    for client in range(clients):
        update = {name: torch.randn(size, generator=generator) for name in names}
        updates[f"site-{client:02d}"] = update
    layers = {name: name.split(".")[0] for name in names}
    return updates, ModelSpec(tuple(names), layers=layers)


def our_step(
    strategy: Strategy,
    updates: dict[str, dict[str, torch.Tensor]],
    spec: ModelSpec,
    guards: Sequence[Guard] | None = None,
) -> Callable[[], Any]:
    """Return a function that runs one round of ``strategy`` on the given updates.

    Args:
        strategy: of the step.
        updates: client -> update.
        spec: the model's tensors.
        guards: that judge the updates before; then the ledger's inner products are computed, too.
    """
    clients = sorted(updates)
    first_update = updates[clients[0]]
    start = {name: torch.zeros_like(tensor) for name, tensor in first_update.items()}

    def step() -> Any:
        strategy.start(start, clients, spec)
        generator = strategy.round(clients)
        requests = [replace(request, id=number) for number, request in enumerate(next(generator))]
        measured = {"leave_one_out_error": 0.5}
        sent = [one.reply(updates[one.client], 10, measurements=measured) for one in requests]
        transport: Any = SimpleNamespace(ask=lambda requests, timeout: sent)
        replies = Exchange(requests, spec, start).ask(transport)
        if guards is not None:
            replies, _ = guarded(replies, guards)
            # The ledger records it.
            replies.geometry.recorded()
        try:
            generator.send(replies)
        except StopIteration as stop:
            return stop.value

    return step


def nvflare_step(
    fedce: bool, updates: dict[str, dict[str, torch.Tensor]]
) -> Callable[[], Any] | None:
    """Return the same step with NVFlare's own classes; ``None`` where it is not installed."""
    try:
        from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
        from nvflare.app_common.aggregators.weighted_aggregation_helper import (
            WeightedAggregationHelper,
        )
        from nvflare.app_opt.pt.fedce import FedCEConstants, FedCEModelAggregator
    except ImportError:
        return None

    def fedce_step() -> Any:
        aggregator = FedCEModelAggregator("times")
        for client, update in updates.items():
            meta = {"client_name": client, FedCEConstants.MINUS_MODEL_SCORE: 0.5}
            aggregator.accept_model(
                FLModel(ParamsType.DIFF, params=update, current_round=0, meta=meta)
            )
        return aggregator.aggregate_model()

    def fedavg_step() -> Any:
        helper = WeightedAggregationHelper()
        for client, update in updates.items():
            helper.add(data=update, weight=10, contributor_name=client, contribution_round=0)
        return helper.get_result()

    if fedce:
        return fedce_step
    return fedavg_step


def flower_steps(
    updates: dict[str, dict[str, torch.Tensor]],
) -> dict[str, Callable[[], Any] | None]:
    """Return Flower's averages of the same updates; ``None`` where it is not installed.

    The one is of arrays that are there. The other is that of its ``FedAvg``, of records as they
    arrive, whose arrays are bytes.
    """
    steps: dict[str, Callable[[], Any] | None] = {FLOWER: None, FLOWER_OF_RECORDS: None}
    try:
        from flwr.app import ArrayRecord, MetricRecord, RecordDict
        from flwr.server.strategy.aggregate import aggregate
        from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords
    except ImportError:
        return steps
    results = []
    records = []
    for update in updates.values():
        results.append(([tensor.numpy() for tensor in update.values()], 10))
        arrays = ArrayRecord(update)
        records.append(RecordDict({"arrays": arrays, "metrics": MetricRecord({"examples": 10})}))
    steps[FLOWER] = partial(aggregate, results)
    steps[FLOWER_OF_RECORDS] = partial(aggregate_arrayrecords, records, "examples")
    return steps


def reading(updates: dict[str, dict[str, torch.Tensor]]) -> Callable[[], Any]:
    """Return a function that reads every value of every update once, and does no more."""

    def step() -> float:
        total = 0.0
        for update in updates.values():
            for tensor in update.values():
                total += float(tensor.sum())
        return total

    return step


def print_steps(clients: int, millions: float, repeats: int, chosen: Sequence[str] = ()) -> None:
    """Print the steps of one size: all, or the chosen ones."""
    updates, spec = updates_of(clients, int(millions * 1e6))
    steps: dict[str, Callable[[], Any] | None] = {
        "one reading of all models": reading(updates),
        "average": our_step(FedAvg(), updates, spec),
        "average, default guards, Gram matrix": our_step(FedAvg(), updates, spec, guards=DEFAULT),
        "FedCE": our_step(FedCE("multi", "revised"), updates, spec),
        "NVFlare's average": nvflare_step(False, updates),
        "NVFlare's FedCE": nvflare_step(True, updates),
        **flower_steps(updates),
    }
    for name in chosen:
        if name not in steps:
            raise SystemExit(f"no step {name!r}; there are {', '.join(steps)}")
    if chosen:
        steps = {name: steps[name] for name in chosen}
    installed = {name: step for name, step in steps.items() if step is not None}
    found = alternating(installed, repeats)
    peer = found.get("NVFlare's average")
    for name, times in found.items():
        ratio = "-" if peer is None else f"{times.cpu / peer.cpu:.2f}"
        print(f"| {name} | {clients} | {millions} M | {times} | {ratio} |")
    for name in steps:
        if name not in found:
            print(f"| {name} | {clients} | {millions} M | not installed | - |")


FLOWER = "Flower's average"
FLOWER_OF_RECORDS = "Flower's average of records"
TABLES = ("steps", "rounds")
ROUNDS = 4
CHANNELS = 64
"""Of each layer's batch normalisation."""


class PromptClient:
    """Answers at once, with an update that was made before.

    Args:
        update: of every round.
        buffers: of every round.
    """

    def __init__(self, update: Mapping[str, torch.Tensor], buffers: Mapping[str, torch.Tensor]):
        self.update = update
        self.buffers = buffers

    def answer(self, request: Request) -> Reply:
        """Answer without any work."""
        echo: dict[str, Any] = {"id": request.id, "run": request.run, "round": request.round}
        return Reply(request.client, self.update, 10, {}, self.buffers, **echo)


class Clock(Observer):
    """Seconds of CPU time between two records of rounds."""

    def __init__(self) -> None:
        self.previous = 0.0
        self.seconds: list[float] = []

    def record_added(self, record: Mapping[str, Any]) -> None:
        now = time.process_time()
        # The first round takes the memory that later ones use again.
        if record["kind"] == "round" and record["round"] > 0:
            self.seconds.append(now - self.previous)
        self.previous = now


def whole_rounds(
    updates: Mapping[str, Mapping[str, torch.Tensor]], spec: ModelSpec, guards: Sequence[Guard]
) -> list[float]:
    """Milliseconds of CPU time of each round, from the second on, with prompt clients."""
    statistics_of_layers: dict[str, torch.Tensor] = {}
    for layer in spec.layers.values():
        statistics_of_layers[f"{layer}.norm.running_mean"] = torch.zeros(CHANNELS)
        statistics_of_layers[f"{layer}.norm.running_var"] = torch.ones(CHANNELS)
        statistics_of_layers[f"{layer}.norm.num_batches_tracked"] = torch.tensor(50)
    with_buffers = replace(spec, buffers=tuple(sorted(statistics_of_layers)))
    first_update = next(iter(updates.values()))
    start = {name: torch.zeros_like(tensor) for name, tensor in first_update.items()}

    clock = Clock()
    makers = {}
    for client, update in updates.items():
        makers[client] = partial(PromptClient, update, statistics_of_layers)
    with tempfile.TemporaryDirectory() as folder:
        Federation(
            FedAvg(),
            InProcess(makers),
            ROUNDS,
            lambda: ({**start, **statistics_of_layers}, with_buffers),
            guards,
            Path(folder) / "run",
            observer=clock,
            evaluate=(),
            final=(),
        ).run()
    return [1000 * seconds for seconds in clock.seconds]


def print_cost_of_guards(clients: int, millions: float, pairs: int) -> None:
    """Print what the default guards add to a whole round."""
    updates, spec = updates_of(clients, int(millions * 1e6))
    without: list[float] = []
    guarded_rounds: list[float] = []
    more: list[float] = []
    for pair in range(pairs):
        # Every other pair begins with the guards.
        order: list[Sequence[Guard]] = [(), DEFAULT]
        if pair % 2:
            order.reverse()
        found = {}
        for guards in order:
            times = whole_rounds(updates, spec, guards)
            found[bool(guards)] = statistics.median(times)
        without.append(found[False])
        guarded_rounds.append(found[True])
        more.append(found[True] / found[False] - 1)
    first, middle, third = statistics.quantiles(more, n=4)
    usual = statistics.median(without)
    judged = statistics.median(guarded_rounds)
    spread = f"{middle:+.1%} ({first:+.1%} to {third:+.1%})"
    print(f"| {clients} | {millions} M | {usual:.1f} | {judged:.1f} | {spread} |")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument(
        "--parameters", type=float, nargs="+", default=[1.6, 16], help="in millions"
    )
    parser.add_argument("--repeats", type=int, default=15, help="of each step; pairs of rounds")
    parser.add_argument(
        "--tables", nargs="+", choices=TABLES, default=TABLES, help="which of both to print"
    )
    parser.add_argument(
        "--steps", nargs="+", default=[], help="rows of the first table; default: all"
    )
    arguments = parser.parse_args()
    print(f"torch threads: {torch.get_num_threads()}")
    sizes = list(product(arguments.parameters, arguments.clients))
    if "steps" in arguments.tables:
        print("| step | clients | parameters | CPU ms (wall) | over NVFlare's average, CPU |")
        print("| --- " * 5 + "|")
        for millions, clients in sizes:
            print_steps(clients, millions, arguments.repeats, arguments.steps)
    if "rounds" in arguments.tables:
        print("\n| clients | parameters | guards=(), CPU ms | default guards, CPU ms | more |")
        print("| --- " * 5 + "|")
        for millions, clients in sizes:
            print_cost_of_guards(clients, millions, arguments.repeats)


if __name__ == "__main__":
    main()
