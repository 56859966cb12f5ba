# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What did not go as planned: absences, guards, free riders, and what to know of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from monai_fairfl.messages import IN_TRAINING, IN_VALIDATION
from monai_fairfl.report.collect import Run
from monai_fairfl.report.partners import different_settings, names_of
from monai_fairfl.report.scores import Entry

KINDS = ("missing", "notes", "not_finite", "dropped")
"""Keys of a ledger's record that are kinds of events."""

ARRIVED = ("quarantined: ", "shares one weight with ")
"""How the reasons begin for which a site's update is missing though it arrived."""


def events_of(run: Run) -> Iterator[dict[str, Any]]:
    """The events of a run in the order of its records.

    Each has ``strategy``, the run's name; ``round``, a number or ``"end"``; ``site``; ``kind``,
    one of :data:`KINDS` or the name of a guard; and ``text``, the reason.
    """
    for record in filter(None, [*run.rounds, run.end]):
        about = {"strategy": run.name, "round": record.get("round", "end")}
        for site, verdicts in sorted(record.get("verdicts", {}).items()):
            for verdict in verdicts:
                text = f"{verdict['action']}: {verdict['reason']}"
                yield {**about, "site": site, "kind": verdict["guard"], "text": text}
        for kind in KINDS:
            for site, reason in sorted(record.get(kind, {}).items()):
                if isinstance(reason, dict):
                    reason = "; ".join(f"{name}: {why}" for name, why in reason.items())
                if isinstance(reason, list):
                    reason = ", ".join(reason)
                # What arrived is an event of the guard that refused it.
                if kind != "missing" or not reason.startswith(ARRIVED):
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


def touched_of(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Site -> what guards did with its updates, in words; without sites that were left alone."""
    records = [record for run in runs for record in run.rounds]
    counts: Counter[tuple[str, str, str]] = Counter()
    for record in records:
        for site, verdicts in record["verdicts"].items():
            # A flag changes nothing; a guard that acts twice in a round is counted once.
            acted = {v["guard"]: v["action"] for v in verdicts if v["action"] != "flag"}
            for guard, action in acted.items():
                act = "refused" if action == "quarantine" else "changed"
                counts[site, act, guard] += 1
    words: dict[str, list[str]] = {}
    for (site, act, guard), number in counts.items():
        text = f"update {act} in {number} of {len(records)} rounds ({guard})"
        words.setdefault(site, []).append(text)
    return words


def warnings_of(entries: Sequence[Entry], groups: Sequence[Sequence[Entry]]) -> list[str]:
    """What a reader must know before comparing, a sentence each without its full stop."""
    lines = []
    for group in groups:
        of_group = [entry.run for entry in group]
        facts: dict[str, list[Any]] = {
            "sites": [run.sites for run in of_group],
            "numbers of rounds": [len(run.rounds) for run in of_group],
            "initial models": [run.start.get("model") for run in of_group],
        }
        differing = [name for name, found in facts.items() if any(v != found[0] for v in found)]
        if differing := differing + different_settings(of_group):
            lines.append(
                f"{names_of(of_group)} differ in {', '.join(differing)}: compare their scores with "
                "care"
            )
    runs = [run for entry in entries for run in entry.runs]
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
    # Those of a site are the same in every run.
    return list(dict.fromkeys(lines))
