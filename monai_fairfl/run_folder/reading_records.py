# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What readers of a ledger ask of its records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def trained_by(
    records: Sequence[Mapping[str, Any]], clients: Sequence[str], per_round: int | None
) -> bool:
    """Whether just these clients trained a run's model in every round, and none was ever missing.

    Args:
        records: of the run's ledger.
        clients: names of the clients in question.
        per_round: how many of them a round samples; ``None``: all.

    >>> rounds = [{"kind": "round", "clients": ["A", "B"], "missing": {}}]
    >>> run = [{"kind": "start", "clients": ["A", "B"]}, *rounds]
    >>> trained_by(run, ["A", "B"], None), trained_by(run, ["A"], None)
    (True, False)
    """
    if set(records[0]["clients"]) != set(clients):
        return False
    size = min(len(clients), per_round or len(clients))
    for record in records:
        if record["kind"] != "round":
            continue
        others = set(record["clients"]) - set(clients)
        if others or record["missing"] or len(record["clients"]) != size:
            return False
    return True
