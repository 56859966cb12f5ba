# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What did not go as planned: absences, guards, free riders, and what to know of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from monai_fairfl.messages import IN_TRAINING, IN_VALIDATION
from monai_fairfl.report.collect import Run
from monai_fairfl.report.contributions import is_current
from monai_fairfl.report.partners import different_settings, names_of
from monai_fairfl.report.scores import Entry

KINDS = {
    "missing": "missing",
    "notes": "note",
    "not_finite": "not finite",
    "dropped": "dropped",
}
"""Key of a ledger's record -> the kind of event, in the report's words."""

ARRIVED = ("quarantined: ", "shares one weight with ")
"""How the reasons begin for which a site's update is missing though it arrived."""


def events_of(run: Run) -> Iterator[dict[str, Any]]:
    """The events of a run in the order of its records.

    Each has ``strategy``, the run's name; ``round``, a number or ``"end"``; ``site``; ``kind``, a
    value of :data:`KINDS` or the name of a guard; and ``text``, the reason.
    """
    for record in [*run.rounds, *([run.end] if run.end is not None else [])]:
        about = {"strategy": run.name, "round": record.get("round", "end")}
        for site, verdicts in sorted(record.get("verdicts", {}).items()):
            for verdict in verdicts:
                text = f"{verdict['action']}: {verdict['reason']}"
                yield {**about, "site": site, "kind": verdict["guard"], "text": text}
        for key, kind in KINDS.items():
            for site, reason in sorted(record[key].items()):
                if isinstance(reason, dict):
                    reason = "; ".join(f"{name}: {why}" for name, why in reason.items())
                if isinstance(reason, list):
                    reason = ", ".join(reason)
                # What arrived is an event of the guard that refused it.
                if key != "missing" or not reason.startswith(ARRIVED):
                    yield {**about, "site": site, "kind": kind, "text": str(reason)}


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
    """Site -> what guards did with its update -> guard -> rounds in which it did so.

    Sites that were left alone are not in it.
    """
    found: dict[str, dict[str, dict[str, list[int]]]] = {}
    for record in (record for run in runs for record in run.rounds):
        for site, verdicts in record["verdicts"].items():
            # A flag changes nothing; a guard that acts twice in a round is counted once.
            acted = {v["guard"]: v["action"] for v in verdicts if v["action"] != "flag"}
            for guard, action in acted.items():
                act = "update refused" if action == "quarantine" else "update changed"
                of_site = found.setdefault(site, {}).setdefault(act, {})
                of_site.setdefault(guard, []).append(record["round"])
    return found


def touched_words(touched: Mapping[str, Mapping[str, Sequence[int]]], rounds: int) -> list[str]:
    """What guards did with one site, in words.

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
    }
    differing = [fact for fact, found in facts.items() if any(one != found[0] for one in found)]
    if differing := differing + different_settings(runs):
        yield f"{names_of(runs)} differ in {', '.join(differing)}: compare their scores with care"
