# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What readers of a ledger ask of its records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def counts_with_others(record: Mapping[str, Any], client: str) -> bool:
    """Whether a guard counted a client as one with others in a round.

    Args:
        record: of the round.
        client: its name.

    >>> copies = {"action": "share", "group": ["A", "B"]}
    >>> record = {"verdicts": {"A": [copies], "B": [copies], "C": [{"action": "clip"}]}}
    >>> counts_with_others(record, "B"), counts_with_others(record, "C")
    (True, False)
    """
    return bool(firsts_of_groups(record, client))


def firsts_of_groups(record: Mapping[str, Any], client: str) -> list[str]:
    """The first client of each group with which a client counted as one in a round.

    The mean of a group's updates is recorded as its first client's.

    Args:
        record: of the round.
        client: its name.

    >>> copies = {"action": "share", "group": ["A", "B"]}
    >>> record = {"verdicts": {"A": [copies], "B": [copies], "C": [{"action": "clip"}]}}
    >>> firsts_of_groups(record, "B"), firsts_of_groups(record, "C")
    (['A'], [])
    """
    verdicts = record["verdicts"].get(client, ())
    return [verdict["group"][0] for verdict in verdicts if verdict["action"] == "share"]


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
