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
    reserved = {"best", "global"} & set(clients)
    if reserved:
        raise ConfigError(f"a client cannot be called {reserved}, as the federation's own models")
    unknown = sorted(set(settings.samples) - set(clients))
    if unknown:
        logger.warning("samples names %s, and the clients are now %s", unknown, clients)
    needed = max(strategy.min_clients, settings.min_clients)
    if len(clients) < needed:
        raise FederationError(
            f"{strategy.name} needs at least {needed} clients, got {len(clients)} {clients}: add "
            "sites, lower min_clients, or use a strategy for one client (FedAvg, Standalone)"
        )
    per_round = settings.clients_per_round
    if per_round is not None and per_round < strategy.min_clients:
        raise ConfigError(
            f"{strategy.name} compares the clients of a round, at least {strategy.min_clients}, "
            f"and clients_per_round is {per_round}: raise it"
        )
    return clients


def refuse_fewer_rounds(run_dir: Path, rounds: int, done: int, planned: int) -> None:
    """Refuse to close a run that has not ended after more rounds than are asked for."""
    if rounds < done:
        kept = (
            f"; earlier results: {names}" if (names := [*map(str, kept_results(run_dir))]) else ""
        )
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
    head = checkpoint.state["ledger_head"]
    heads = ledger.heads[:records_done]
    if len(heads) < records_done or heads[-1] != head:
        raise FederationError(
            f"{ledger.path} does not fit the checkpoint of round {checkpoint.round}, which was "
            f"written after {records_done} records with head {head}: a record was changed, or "
            f"records were cut off (there are {len(heads)}). Restore the ledger from a copy, or "
            "choose another run_dir"
        )


def warn_of_new_clients(
    run_dir: Path, clients: Sequence[str], records: Sequence[Mapping[str, Any]]
) -> None:
    """Warn of clients that took no part in a run which is over."""
    trained = {client for record in records for client in record.get("clients", ())}
    new = sorted(set(clients) - trained)
    if new:
        logger.warning("%s is finished, without %s: more rounds would take them in", run_dir, new)
