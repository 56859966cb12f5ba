# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Flower's own FedAvg, for ``engines.py``: a ServerApp and a ClientApp as Flower's quickstart has
them, in Flower's simulation.

A client trains MONAI's ``MonaiAlgo`` on the batches that our sites train on, since it draws the
same random numbers. Any process of Ray's may answer for it. So its optimizer is in the context's
state, as Flower's guide to stateful clients has it.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch
from engines_peer_algo import algo_of
from engines_runs import CLIENTS
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from monai.fl.utils.exchange_object import ExchangeObject

from monai_fairfl.client.training import load_state, one_round, state_of
from monai_fairfl.utils.tensors import seed_of

TRAINER = "trainer"
client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model that the server sends."""
    config = message.content["config"]
    site = CLIENTS[int(context.node_config["partition-id"])]
    algo: Any = algo_of(site, config["settings"])
    if TRAINER in context.state:
        restore(algo.trainer, context)
    first = algo.trainer.state.iteration
    weights = message.content["arrays"].to_torch_state_dict()
    number = config["server-round"] - 1  # Flower's first round is 1
    with one_round(algo.trainer, seed_of(0, site, number), []):
        algo.train(ExchangeObject(weights=weights))
    steps = algo.trainer.state.iteration - first
    store(algo.trainer, context)
    content = {
        "arrays": ArrayRecord(algo.trainer.network.state_dict()),
        "metrics": MetricRecord({"num-examples": steps}),
    }
    return Message(RecordDict(content), reply_to=message)


def store(trainer: Any, context: Context) -> None:
    """Store what the next round's training goes on from, except for the model."""
    file = io.BytesIO()
    torch.save({**state_of(trainer), "local": {}}, file)
    context.state[TRAINER] = ConfigRecord({"state": file.getvalue()})


def restore(trainer: Any, context: Context) -> None:
    """Load what :func:`store` stored."""
    file = io.BytesIO(context.state[TRAINER]["state"])
    load_state(trainer, torch.load(file, weights_only=True))


def simulate_flower(settings: Path, initial: Path, clients: int, rounds: int, final: Path) -> None:
    """Run the federation, with a process per client.

    Args:
        settings: file that :func:`~engines_peer_algo.algo_of` reads.
        initial: file of the model to begin with.
        clients: number of them.
        rounds: number of them.
        final: file that gets the last global model.
    """
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_evaluate=0.0,
            min_train_nodes=clients,
            min_available_nodes=clients,
            train_metrics_aggr_fn=metrics_of_everybody,
        )
        result = strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(torch.load(initial, weights_only=True)),
            train_config=ConfigRecord({"settings": str(settings)}),
            num_rounds=rounds,
        )
        torch.save(result.arrays.to_torch_state_dict(), final)

    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=clients,
        backend_config={
            "init_args": {"num_cpus": clients},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


def metrics_of_everybody(replies: list[RecordDict], weighted_by: str) -> MetricRecord:
    """Return the steps of a round, in all.

    Raises:
        RuntimeError: when a client's result was left out, which Flower only logs.
    """
    if len(replies) != len(CLIENTS):
        raise RuntimeError(f"{len(replies)} of {len(CLIENTS)} clients have answered")
    steps = 0
    for reply in replies:
        steps += reply["metrics"][weighted_by]
    return MetricRecord({weighted_by: steps})
