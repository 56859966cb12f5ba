# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The server's step of one round, ours beside NVIDIA FLARE's, for FedCE and FedAvg.

FedCE computes cosines, weights and an average. Both run in one process::

    python benchmarks/server_step.py [--clients 8 16] [--parameters 1.6 16]

It prints milliseconds (median of the repeats) and the ratio peer / ours. Both get the same updates,
of one dictionary of float32 tensors per client; ours includes moving them into the update matrix.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from monai_fairfl.protocol.messages import Reply
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.server.exchange import Inbox
from monai_fairfl.strategies import FedAvg, FedCE, Strategy


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


def main() -> None:
    """Print the table."""
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


if __name__ == "__main__":
    main()
