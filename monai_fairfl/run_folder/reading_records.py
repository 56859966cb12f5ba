# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What readers of a ledger ask of its records; those of earlier formats included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from monai_fairfl.run_folder.records import model_round, rounds_of_end


def score_rounds(record: Mapping[str, Any], last_round: int) -> dict[str, int]:
    """measurement -> number of the round whose resulting model the record's values are of.

    It reads ``of_round`` of a round's or the end's record; for a ledger of format 1, which lacks
    the key, it applies the same rule.

    Args:
        record: of a ledger.
        last_round: number of the ledger's last round; -1 where there is none.

    >>> found = {"elm": {"global_score": 0.5, "local_score": 0.6}}
    >>> score_rounds({"kind": "round", "round": 3, "measurements": found}, last_round=9)
    {'global_score': 2, 'local_score': 3}
    >>> score_rounds({"kind": "end", "scores": {"elm": {"own": {"score": 0.5}}}}, last_round=9)
    {'score': 9}
    """
    if "of_round" in record:
        return dict(record["of_round"])
    rounds: dict[str, int] = {}
    if record["kind"] == "round":
        for measured in record["measurements"].values():
            for name in measured:
                rounds[name] = model_round(name, record["round"])
    if record["kind"] == "end":
        rounds = rounds_of_end(record["scores"], last_round)
    return rounds


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
