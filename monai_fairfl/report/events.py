# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What did not go as planned: absences, guards' verdicts and notes, as the ledger records them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from monai_fairfl.report.run import Run
from monai_fairfl.valuation.free_riders import evidence_of

KINDS = {
    "missing": "missing",
    "guards": "guard",
    "notes": "note",
    "not_finite": "not finite",
    "dropped": "dropped",
}
"""Key of a ledger's record -> the kind of event, in the report's words."""


@dataclass(frozen=True)
class Event:
    """One row of the page's last table.

    Args:
        strategy: name of the run.
        round: number of the round, or ``"end"`` for the closing measurement.
        site: whom it concerns.
        kind: a value of :data:`KINDS`, or a guard of ``EVIDENCE``.
        text: the reason.
    """

    strategy: str
    round: int | str
    site: str
    kind: str
    text: str


def events_of(run: Run) -> Iterator[Event]:
    """The events of a run in the order of its records."""
    records = list(run.rounds)
    if run.end is not None:
        records.append(run.end)

    for record in records:
        number = record.get("round", "end")
        for key, kind in KINDS.items():
            for site, reason in sorted((record.get(key) or {}).items()):
                if key == "not_finite":
                    reason = "dropped measurements: " + ", ".join(reason)
                if key == "dropped":
                    reason = "; ".join(f"{name}: {why}" for name, why in reason.items())
                yield Event(run.name, number, site, kind, str(reason))


def free_riding_of(run: Run) -> Iterator[Event]:
    """What guards found in the updates of a run that no training of the site made."""
    for record in run.rounds:
        for site, verdict in evidence_of(record):
            text = f"{verdict['action']}: {verdict['reason']}"
            yield Event(run.name, record["round"], site, verdict["guard"], text)


def grouped(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each kind of event once for a site, with its rounds and the text of the first.

    Strategies in which the same happened share one entry.

    Args:
        events: of ``report["events"]`` or ``report["free_riding"]``.

    >>> event = {"strategy": "FedCE", "site": "elm", "kind": "missing", "text": "no line"}
    >>> grouped([{**event, "round": number} for number in (0, 1, 2, 5)])[0]["rounds"]
    '0 to 2, 5'
    """
    rounds: dict[tuple[str, str, str], list[int | str]] = {}
    first: dict[tuple[str, str, str], Mapping[str, Any]] = {}
    for event in events:
        key = (event["strategy"], event["site"], event["kind"])
        first.setdefault(key, event)
        rounds.setdefault(key, []).append(event["round"])

    strategies: dict[tuple[str, ...], list[str]] = {}
    for key, event in first.items():
        same = (event["site"], event["kind"], _rounds_words(rounds[key]), event["text"])
        strategies.setdefault(same, []).append(event["strategy"])
    entries = []
    for (site, kind, words, text), names in strategies.items():
        entry = {"strategy": ", ".join(names), "site": site, "kind": kind}
        entries.append({**entry, "rounds": words, "text": text})
    return entries


def _rounds_words(rounds: Sequence[int | str]) -> str:
    """Rounds as ranges."""
    spans: list[list[Any]] = []
    for number in rounds:
        follows = spans and isinstance(number, int) and spans[-1][1] == number - 1
        if follows:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    words = []
    for begin, end in spans:
        words.append(f"{begin}" if begin == end else f"{begin} to {end}")
    return ", ".join(words)
