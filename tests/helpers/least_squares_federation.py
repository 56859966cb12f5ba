# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A federation of three least-squares clients, whose replies a test may lose, change or watch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from helpers.driving import SPEC, LeastSquares, Listening
from helpers.faulty_transports import Fault, FaultyTransport

from monai_fairfl import Federation, InProcess, ModelSpec, Reply, Request, Strategy, read_ledger
from monai_fairfl.messages import Weights
from monai_fairfl.strategies import FedCE

TARGETS = {"A": [1.0, 0.0], "B": [0.0, 1.0], "C": [2.0, 2.0]}
ROUNDS = 4


def clients() -> dict[str, Callable[[], LeastSquares]]:
    """Client -> its maker."""
    return {name: partial(LeastSquares, target) for name, target in TARGETS.items()}


def initial() -> tuple[Weights, ModelSpec]:
    """A model that the run's seed decides."""
    return {"w": torch.randn(2, dtype=torch.float64)}, SPEC


def federation(
    folder: Path,
    strategy: Strategy | None = None,
    transport: Any = None,
    **settings: Any,
) -> Federation:
    """A federation in ``folder/run``, of FedCE and of all clients where nothing else is given."""
    settings = {"rounds": ROUNDS, **settings}
    return Federation(
        strategy or FedCE("sum"),
        transport or InProcess(clients()),
        initial=initial,
        run_dir=folder / "run",
        **settings,
    )


def ledger_file(folder: Path) -> Path:
    return folder / "run" / "ledger.jsonl"


def ledger_bytes(folder: Path) -> bytes:
    """The ledger of :func:`federation`; it holds the hash of every model."""
    return ledger_file(folder).read_bytes()


def records_less_the_plan(folder: Path) -> list[dict[str, Any]]:
    """The records of :func:`federation` without how many rounds were planned, and so unchained."""
    records = read_ledger(ledger_file(folder))
    for record in records:
        record.pop("planned_rounds", None)
        record.pop("previous")
    return records


def global_weights(folder: Path) -> torch.Tensor:
    """The vector that is the global model of :func:`federation`."""
    weights: torch.Tensor = torch.load(folder / "run" / "models" / "global.pt")["w"]
    return weights


# --- transports with faults


class Faulty(FaultyTransport):
    """Loses or changes replies: ``fault(request, reply)`` returns what arrives, or ``None``."""

    def __init__(self, fault: Fault):
        super().__init__(clients(), fault)


def losing(lost: Callable[[Request], bool]) -> Faulty:
    """All clients; the replies to these requests are lost."""
    return Faulty(lambda request, reply: None if lost(request) else reply)


def changing(chosen: Callable[[Request], bool], **fields: Any) -> Faulty:
    """All clients; the replies to these requests have other fields."""
    return Faulty(lambda request, reply: replace(reply, **fields) if chosen(request) else reply)


def nobody() -> Faulty:
    """Clients of whom nothing may be asked."""

    def fail(request: Request, reply: Reply) -> Reply:
        raise AssertionError(f"{request.client} was asked")

    return Faulty(fail)


def stopped_in_round(number: int, folder: Path, how: str = "stop") -> Federation:
    """A federation that is stopped, or concluded, when the record of this round is written."""

    def added(record: Any) -> None:
        if record.get("round") == number:
            getattr(stopped, how)()

    stopped = federation(folder, observer=Listening(added))
    return stopped
