# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a federation refuses before it begins, or goes on."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.run_folder.checkpoint import Checkpoint
from monai_fairfl.run_folder.ended import kept_results
from monai_fairfl.run_folder.ledger import Ledger
from monai_fairfl.server.settings import RunSettings
from monai_fairfl.strategies.base import Strategy
from monai_fairfl.utils.names import safe_name

logger = logging.getLogger(__name__)


def checked_clients(names: Sequence[str], strategy: Strategy, settings: RunSettings) -> list[str]:
    """The clients, sorted: enough of them, with names that can be file names."""
    clients = sorted(safe_name(client) for client in names)
    if len(set(clients)) < len(clients):
        raise ConfigError(f"a client is named twice, give each site its own name: {clients}")
    for name in ("best", "global"):
        if name in clients:
            raise ConfigError(
                f"a client cannot be called {name!r}: models/{name}.pt is the federation's; "
                "rename it"
            )
    unknown = sorted(set(settings.samples) - set(clients))
    if unknown:
        logger.warning(
            "samples names %s, and the clients are %s: correct the name, unless the client "
            "comes later",
            ", ".join(unknown),
            ", ".join(clients),
        )
    per_round = min(settings.clients_per_round or len(clients), len(clients))
    needed = max(strategy.min_clients, settings.min_clients)
    if len(clients) < needed:
        raise FederationError(
            f"{strategy.name} needs at least {needed} clients, got {len(clients)} "
            f"{clients}: add sites, lower min_clients, or use a strategy for one client "
            "(FedAvg, Standalone)"
        )
    if per_round < strategy.min_clients:
        raise ConfigError(
            f"{strategy.name} compares the clients of a round, at least "
            f"{strategy.min_clients}, and clients_per_round is {per_round}: raise it, or "
            "use a strategy for one client (FedAvg, Standalone)"
        )
    if strategy.max_clients is not None and per_round > strategy.max_clients:
        raise ConfigError(
            f"{strategy.name} can take at most {strategy.max_clients} clients in a round, got "
            f"{per_round}: set clients_per_round, or use another strategy"
        )
    return clients


def refuse_fewer_rounds(run_dir: Path, rounds: int, done: int, planned: int) -> None:
    """Refuse to close a run that has not ended after more rounds than are asked for.

    Raises:
        FederationError: naming the numbers, what to do, and where an earlier result is.
    """
    if rounds >= done:
        return
    kept = ""
    for folder in kept_results(run_dir):
        kept += f". An earlier result is in {folder}"
    raise FederationError(
        f"{run_dir} has {done} of {planned} rounds and has not ended, and now rounds is "
        f"{rounds}: give rounds {planned} to go on, or {done} to end it here{kept}"
    )


def require_ledger_of(checkpoint: Checkpoint, ledger: Ledger, records_done: int) -> None:
    """Refuse to go on from a ledger that is not the one of the checkpoint.

    An intact chain does not show a ledger that was rewritten as a whole, or cut at its end.

    Raises:
        FederationError: naming the round, and what to do.
    """
    written = checkpoint.state["ledger_head"]
    heads = ledger.heads[:records_done]
    if len(heads) < records_done:
        problem = f"it has {len(heads)} records, and the checkpoint was written after "
        problem += f"{records_done}: records were cut off"
    elif heads[-1] != written:
        problem = f"its head after that round is {heads[-1]}, and the checkpoint has {written}"
        problem += ": one of its records was changed"
    else:
        return
    raise FederationError(
        f"{ledger.path} does not fit the checkpoint of round {checkpoint.round}; "
        f"{problem}. Restore the ledger from a copy, or choose another run_dir"
    )


def warn_of_new_clients(
    run_dir: Path, clients: Sequence[str], records: Sequence[Mapping[str, Any]]
) -> None:
    """Warn of clients that took no part in a run which is over."""
    trained: set[str] = set()
    for record in records:
        trained.update(record.get("clients", ()))
    new = sorted(set(clients) - trained)
    if new:
        logger.warning(
            "%s is finished, without %s: name more rounds for these to take part, or another "
            "run_dir",
            run_dir,
            ", ".join(new),
        )
