# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The server's step of one round, ours beside NVIDIA FLARE's, for FedCE and FedAvg.

FedCE computes cosines, weights and an average. Both run in one process::

    python benchmarks/server_step.py [--clients 8 16] [--parameters 1.6 16]

It prints milliseconds (median of the repeats) and the ratio peer / ours. Both get the same updates,
of one dictionary of float32 tensors per client; ours includes moving them into the update matrix.

A second table has a whole round of a federation whose clients answer at once, checkpoint and ledger
included: with no guards and with the default ones, alternating.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from monai_fairfl.guards import DEFAULT, Guard
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.server.exchange import Inbox
from monai_fairfl.server.federation import Federation
from monai_fairfl.server.observer import Observer
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
    strategy: Strategy, updates: dict[str, dict[str, torch.Tensor]], spec: ModelSpec
) -> Callable[[], Any]:
    """Return a function that runs one round of ``strategy`` on the given updates."""
    clients = sorted(updates)
    first_update = updates[clients[0]]
    start = {name: torch.zeros_like(tensor) for name, tensor in first_update.items()}
    # Memory of the update matrix, used again every round as by Federation.
    memory: list[torch.Tensor | None] = [None]

    def step() -> Any:
        strategy.start(start, clients, spec)
        generator = strategy.round(clients)
        requests = [replace(request, id=number) for number, request in enumerate(next(generator))]
        measured = {"leave_one_out_error": 0.5}
        inbox = Inbox(requests, spec, start, storage=memory[0])
        for request in requests:
            inbox.arrived(
                Reply(request.client, updates[request.client], 10, measured, id=request.id)
            )
        memory[0] = inbox.storage
        try:
            generator.send(inbox.replies())
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


def milliseconds(step: Callable[[], Any], repeats: int) -> float:
    """Measure the median time of ``step`` after one warm-up."""
    step()
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        step()
        times.append(1000 * (time.perf_counter() - begun))
    return statistics.median(times)


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
    """Seconds between two records of rounds."""

    def __init__(self) -> None:
        self.previous = 0.0
        self.seconds: list[float] = []

    def record_added(self, record: Mapping[str, Any]) -> None:
        now = time.perf_counter()
        # The first round takes the memory that later ones use again.
        if record["kind"] == "round" and record["round"] > 0:
            self.seconds.append(now - self.previous)
        self.previous = now


def whole_rounds(
    updates: Mapping[str, Mapping[str, torch.Tensor]], spec: ModelSpec, guards: Sequence[Guard]
) -> list[float]:
    """Milliseconds of each round, from the second on, of a federation with prompt clients."""
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


def print_cost_of_guards(clients: int, millions: float, repeats: int) -> None:
    """Print what the default guards add to a whole round."""
    updates, spec = updates_of(clients, int(millions * 1e6))
    without: list[float] = []
    guarded: list[float] = []
    for _ in range(repeats):
        without += whole_rounds(updates, spec, ())
        guarded += whole_rounds(updates, spec, DEFAULT)
    before = statistics.median(without)
    after = statistics.median(guarded)
    print(f"| {clients} | {millions} M | {before:.1f} | {after:.1f} | {after / before - 1:+.1%} |")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[4, 8])
    parser.add_argument(
        "--parameters", type=float, nargs="+", default=[1.6, 16], help="in millions"
    )
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    print(f"torch threads: {torch.get_num_threads()}")
    print("| step | clients | parameters | ours, ms | NVFlare, ms | NVFlare / ours |")
    print("| --- " * 6 + "|")
    for millions in arguments.parameters:
        for clients in arguments.clients:
            updates, spec = updates_of(clients, int(millions * 1e6))
            for name, strategy in (("FedAvg", FedAvg()), ("FedCE", FedCE("multi", "revised"))):
                ours = milliseconds(our_step(strategy, updates, spec), arguments.repeats)
                peer = float("nan")
                peer_step = nvflare_step(name == "FedCE", updates)
                if peer_step is not None:
                    peer = milliseconds(peer_step, arguments.repeats)
                print(
                    f"| {name} | {clients} | {millions} M | {ours:.1f} | {peer:.1f} "
                    f"| {peer / ours:.1f} |"
                )
    print("\n| clients | parameters | guards=(), ms | default guards, ms | more |")
    print("| --- " * 5 + "|")
    for millions in arguments.parameters:
        for clients in arguments.clients:
            print_cost_of_guards(clients, millions, arguments.repeats)


if __name__ == "__main__":
    main()
