# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What did not go as planned: absences, guards and limits, free riders, and what to know of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from monai_fairfl.messages import IN_TRAINING, IN_VALIDATION
from monai_fairfl.report.collect import Run
from monai_fairfl.report.contributions import is_current
from monai_fairfl.report.partners import different_settings, names_of
from monai_fairfl.report.scores import Entry
from monai_fairfl.valuation.free_riders import evidence_of

KINDS = {
    "missing": "missing",
    "guards": "guard",
    "notes": "note",
    "not_finite": "not finite",
    "dropped": "dropped",
}
"""Key of a ledger's record -> the kind of event, in the report's words."""

CLIPPED = " clipped to "
"""In the note that a limit of reports leaves (``clip_reports``)."""

REFUSED, CHANGED, LIMITED = "update refused", "update changed", "own report limited"
"""What guards and limits do with a site."""

OFTEN = 0.25
"""A site that was refused or limited in a larger part of the rounds does not help to choose."""


def events_of(run: Run) -> Iterator[dict[str, Any]]:
    """The events of a run in the order of its records.

    Each has ``strategy``, the run's name; ``round``, a number or ``"end"``; ``site``; ``kind``, a
    value of :data:`KINDS`; and ``text``, the reason.
    """
    for record in [*run.rounds, *([run.end] if run.end is not None else [])]:
        about = {"strategy": run.name, "round": record.get("round", "end")}
        for key, kind in KINDS.items():
            for site, reason in sorted((record.get(key) or {}).items()):
                if isinstance(reason, dict):
                    reason = "; ".join(f"{name}: {why}" for name, why in reason.items())
                if isinstance(reason, list):
                    reason = ", ".join(reason)
                yield {**about, "site": site, "kind": kind, "text": str(reason)}


def free_riding_of(run: Run) -> Iterator[dict[str, Any]]:
    """What guards found in updates that no training of the site made; ``kind`` is the guard."""
    for record in run.rounds:
        for site, verdict in evidence_of(record):
            text = f"{verdict['action']}: {verdict['reason']}"
            about = {"strategy": run.name, "round": record["round"], "site": site}
            yield {**about, "kind": verdict["guard"], "text": text}


def grouped(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each kind of event once for a site, with its rounds and the text of the first.

    >>> event = {"strategy": "FedCE", "site": "elm", "kind": "missing", "text": "no line"}
    >>> grouped([{**event, "round": number} for number in (0, 1, 5)])[0]["rounds"]
    [0, 1, 5]
    """
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for event in events:
        key = (event["strategy"], event["site"], event["kind"])
        found.setdefault(key, {**event, "rounds": []})["rounds"].append(event["round"])
    return list(found.values())


def touched_of(runs: Sequence[Run]) -> dict[str, dict[str, dict[str, list[int]]]]:
    """Site -> :data:`REFUSED`, .. -> guard -> rounds in which it did so to what the site sent.

    Sites that were left alone are not in it.
    """
    found: dict[str, dict[str, dict[str, list[int]]]] = {}
    for record in (record for run in runs for record in run.rounds):
        acts = [(s, LIMITED, "clip_reports") for s, n in record["notes"].items() if CLIPPED in n]
        for site, verdicts in record["verdicts"].items():
            # A flag changes nothing; a guard that acts twice in a round is counted once.
            acted = {v["guard"]: v["action"] for v in verdicts if v["action"] != "flag"}
            for guard, action in acted.items():
                acts.append((site, REFUSED if action == "quarantine" else CHANGED, guard))
        for site, act, guard in acts:
            of_site = found.setdefault(site, {}).setdefault(act, {})
            of_site.setdefault(guard, []).append(record["round"])
    return found


def often_touched(runs: Sequence[Run]) -> set[str]:
    """Sites whose update was refused, or whose reports were limited, often in any of these runs.

    What they report of themselves must not decide which run is shown.
    """
    sites = set()
    for run in runs:
        for site, touched in touched_of([run]).items():
            for act in (REFUSED, LIMITED):
                rounds = set().union(*touched.get(act, {}).values())
                if len(rounds) > OFTEN * len(run.rounds):
                    sites.add(site)
    return sites


def touched_words(touched: Mapping[str, Mapping[str, Sequence[int]]], rounds: int) -> list[str]:
    """What guards and limits did with one site, in words.

    >>> touched_words({"update refused": {"Noise": [0, 1]}}, 2)
    ['update refused in 2 of 2 rounds (Noise)']
    """
    words = []
    for act, of_guards in touched.items():
        for guard, numbers in of_guards.items():
            words.append(f"{act} in {len(numbers)} of {rounds} rounds ({guard})")
    return words


def warnings_of(entries: Sequence[Entry], groups: Sequence[Sequence[Entry]]) -> list[str]:
    """What a reader must know before comparing, a sentence each without its full stop."""
    runs = [run for entry in entries for run in entry.runs]
    lines = [line for group in groups for line in _differences(group)]
    labels: dict[str, set[str]] = {}
    for run in runs:
        for row in run.table:
            if row.measurement == f"own:{entries[0].measurement}":
                labels.setdefault(row.site, set()).add(row.label)
    words = [f"{site}: {', '.join(sorted(of - {'mean'}))}" for site, of in sorted(labels.items())]
    if len({frozenset(of) for of in labels.values()}) > 1:
        # A mean over disc and cup is no score of the disc.
        lines.append(
            f"A site's Dice is the mean over what it labels, which differs ({'; '.join(words)})"
        )
    for run in runs:
        for site in run.sites:
            validation, training = run.closing(site, IN_VALIDATION), run.closing(site, IN_TRAINING)
            if validation is not None and training is not None:
                lines.append(
                    f"{site} reports no test Dice: of its {validation.n} test cases, it also uses "
                    f"{training.value:g} in training and {validation.value:g} in validation"
                )
        outdated = [one["name"] for one in run.valuations if not is_current(one, run)]
        if outdated:
            why = "because the run has trained more rounds since: value it again"
            lines.append(f"{run.name}: {', '.join(outdated)} is not shown, {why}")
    # Those of a site are the same in every run.
    return list(dict.fromkeys(lines))


def _differences(group: Sequence[Entry]) -> Iterator[str]:
    """What the entries of a group do not have in common."""
    runs = [entry.run for entry in group]
    facts: dict[str, list[Any]] = {
        "sites": [run.sites for run in runs],
        "numbers of rounds": [len(run.rounds) for run in runs],
        "initial models": [run.start.get("model") for run in runs],
        "images per epoch": [run.last_reported("samples") for run in runs],
        "scored cases": [{s: number.n for s, number in e.scores.items()} for e in group],
    }
    differing = [fact for fact, found in facts.items() if any(one != found[0] for one in found)]
    if differing := differing + different_settings(runs):
        yield f"{names_of(runs)} differ in {', '.join(differing)}: compare their scores with care"
