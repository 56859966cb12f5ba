# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The server's step of one round, ours beside NVIDIA FLARE's, in one run: FedCE (cosines, weights,
average) and FedAvg.

    python benchmarks/server_step.py [--clients 8 16] [--parameters 1.6 16]

Prints milliseconds (median of the repeats) and the ratio peer / ours. Both get the same updates, of
one dictionary of float32 tensors per client; ours includes moving them into the update matrix.
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
    """``clients`` random updates of about ``parameters`` values, in 40 tensors as a small U-Net has
    them.
    """
    generator = torch.Generator().manual_seed(0)
    names = [f"layer{i:02d}.weight" for i in range(40)]
    size = parameters // len(names)
    made = {
        f"site-{c:02d}": {name: torch.randn(size, generator=generator) for name in names}
        for c in range(clients)
    }
    return made, ModelSpec(tuple(names), layers={name: name.split(".")[0] for name in names})


def our_step(
    strategy: Strategy, updates: dict[str, dict[str, torch.Tensor]], spec: ModelSpec
) -> Callable[[], Any]:
    """One round of ``strategy`` on the given updates."""
    start = {
        name: torch.zeros_like(tensor) for name, tensor in next(iter(updates.values())).items()
    }
    memory: list[torch.Tensor | None] = [
        None
    ]  # the update matrix's, used again every round as Federation does

    def step() -> Any:
        strategy.start(start, sorted(updates), spec)
        playing = strategy.round(sorted(updates))
        requests = [replace(request, id=i) for i, request in enumerate(next(playing))]
        measured = {"leave_one_out_error": 0.5}
        inbox = Inbox(requests, spec, start, storage=memory[0])
        for request in requests:
            inbox.arrived(
                Reply(request.client, updates[request.client], 10, measured, id=request.id)
            )
        memory[0] = inbox.storage
        try:
            playing.send(inbox.replies())
        except StopIteration as stop:
            return stop.value

    return step


def nvflare_step(
    fedce: bool, updates: dict[str, dict[str, torch.Tensor]]
) -> Callable[[], Any] | None:
    """The same with NVFlare's own classes; ``None`` where it is not installed."""
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

    return fedce_step if fedce else fedavg_step


def milliseconds(step: Callable[[], Any], repeats: int) -> float:
    """Median time of ``step`` after one warm-up."""
    step()
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        step()
        times.append(1000 * (time.perf_counter() - begun))
    return statistics.median(times)


def main() -> None:
    """See the module's text."""
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
    print(
        "| step | clients | parameters | ours, ms | NVFlare, ms | NVFlare / ours |\n"
        + "| --- " * 6
        + "|"
    )
    for millions in arguments.parameters:
        for clients in arguments.clients:
            updates, spec = updates_of(clients, int(millions * 1e6))
            for name, strategy in (("FedAvg", FedAvg()), ("FedCE", FedCE("multi", "revised"))):
                ours = milliseconds(our_step(strategy, updates, spec), arguments.repeats)
                peer_step = nvflare_step(name == "FedCE", updates)
                peer = milliseconds(peer_step, arguments.repeats) if peer_step else float("nan")
                print(
                    f"| {name} | {clients} | {millions} M | {ours:.1f} | {peer:.1f} | {peer / ours:.1f} |"
                )


if __name__ == "__main__":
    main()
