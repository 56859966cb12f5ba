# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What did not go as planned: absences, guards and limits, free riders, and what to know of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from monai_fairfl.messages import IN_TRAINING, IN_VALIDATION
from monai_fairfl.report.collect import Run
from monai_fairfl.report.contributions import is_current
from monai_fairfl.report.partners import names_of, settings_warnings
from monai_fairfl.report.scores import Entry
from monai_fairfl.valuation.free_riders import evidence_of, free_rider_history

KINDS = {
    "missing": "missing",
    "guards": "guard",
    "notes": "note",
    "not_finite": "not finite",
    "dropped": "dropped",
}
"""Key of a ledger's record -> the kind of event, in the report's words."""

LIMITED = " clipped to "
"""In the note that a limit of reports leaves (``clip_reports``)."""

OFTEN = 0.25
"""A site that was refused or limited in a larger part of the rounds does not help to choose."""

FACTOR = 5.0
ROUNDS = 3
"""A free-rider score above so many times the median of the others', in so many rounds running, is
flagged. Both were fixed beforehand. Honest sites whose images are unlike the others' are, too.
"""


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


def free_rider_scores(run: Run) -> tuple[dict[str, list[dict[str, Any]]], dict[str, int]]:
    """site -> free-rider score by round, and site -> round in which it was first flagged.

    Of the rounds that averaged and measured ``global_score`` and ``local_score``.
    """
    history = free_rider_history(run.rounds, factor=FACTOR, rounds=ROUNDS)
    points = {}
    for site, scores in history.scores.items():
        known = [(n, score) for n, score in zip(history.rounds, scores) if score is not None]
        points[site] = [{"round": number, "value": score} for number, score in known]
    return points, history.flagged


def grouped(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each kind of event once for a site, with its rounds and the text of the first.

    >>> event = {"strategy": "FedCE", "site": "elm", "kind": "missing", "text": "no line"}
    >>> grouped([{**event, "round": number} for number in (0, 1, 2, 5)])[0]["rounds"]
    '0 to 2, 5'
    """
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    spans: dict[tuple[str, str, str], list[list[Any]]] = {}
    for event in events:
        key = (event["strategy"], event["site"], event["kind"])
        found.setdefault(key, dict(event))
        of_event = spans.setdefault(key, [])
        number = event["round"]
        if of_event and number != "end" and of_event[-1][1] == number - 1:
            of_event[-1][1] = number
        else:
            of_event.append([number, number])
    for key, of_event in spans.items():
        words = [str(first) if first == last else f"{first} to {last}" for first, last in of_event]
        found[key]["rounds"] = ", ".join(words)
    return list(found.values())


def touched_of(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Site -> what guards and limits did with it; sites that they left alone are not in it.

    Returns:
        ``refused``: guard -> rounds in which it kept the site's update out of the model;
        ``changed``: guard -> rounds in which it acted otherwise; ``limited``: rounds in which a
        number that the site measured itself was limited.
    """
    found: dict[str, dict[str, Any]] = {}
    for record in (record for run in runs for record in run.rounds):
        limited = [site for site, note in record["notes"].items() if LIMITED in str(note)]
        for site in {*record["verdicts"], *limited}:
            # A flag changes nothing; a guard that acts twice in a round is counted once.
            verdicts = record["verdicts"].get(site, ())
            acted = {v["guard"]: v["action"] for v in verdicts if v["action"] != "flag"}
            if acted or site in limited:
                found.setdefault(site, {"refused": {}, "changed": {}, "limited": []})
            for guard, action in acted.items():
                what = "refused" if action == "quarantine" else "changed"
                found[site][what].setdefault(guard, []).append(record["round"])
            if site in limited:
                found[site]["limited"].append(record["round"])
    return found


def often_touched(runs: Sequence[Run]) -> set[str]:
    """Sites whose update was refused, or whose reports were limited, often in any of these runs.

    What they report of themselves must not decide which run is shown.
    """
    sites = set()
    for run in runs:
        for site, touched in touched_of([run]).items():
            refused = {number for rounds in touched["refused"].values() for number in rounds}
            if max(len(refused), len(touched["limited"])) > OFTEN * len(run.rounds):
                sites.add(site)
    return sites


def touched_words(touched: Mapping[str, Any], rounds: int) -> list[str]:
    """What guards and limits did with one site, in words.

    >>> touched_words({"refused": {"Noise": [0, 1]}, "changed": {}, "limited": [1]}, 2)
    ['update refused in 2 of 2 rounds (Noise)', 'own report limited in 1 of 2 rounds']
    """
    words = []
    for what in ("refused", "changed"):
        for guard, numbers in touched[what].items():
            words.append(f"update {what} in {len(numbers)} of {rounds} rounds ({guard})")
    if touched["limited"]:
        words.append(f"own report limited in {len(touched['limited'])} of {rounds} rounds")
    return words


def warnings_of(entries: Sequence[Entry], groups: Sequence[Sequence[Entry]]) -> list[str]:
    """What a reader must know before comparing, a sentence each without its full stop."""
    runs = [run for entry in entries for run in entry.runs]
    lines = [line for group in groups for line in _differences(group, len(groups))]
    lines += _different_structures(runs, entries[0].measurement)
    lines += [line for run in runs for line in _scored_otherwise(run)]
    for run in runs:
        outdated = [one["name"] for one in run.valuations if not is_current(one, run)]
        if outdated:
            why = "because the run has trained more rounds since: value it again"
            lines.append(f"{run.name}: {', '.join(outdated)} is not shown, {why}")
    # Those of a site are the same in every run.
    return list(dict.fromkeys(lines))


def _differences(group: Sequence[Entry], groups: int) -> Iterator[str]:
    """What the entries of a group do not have in common."""
    runs = [entry.run for entry in group]
    subject = "The runs" if groups == 1 else names_of(runs)
    facts: dict[str, list[Any]] = {
        "sites": [run.sites for run in runs],
        "numbers of rounds": [len(run.rounds) for run in runs],
        "initial models": [run.start.get("model") for run in runs],
        "images per epoch": [run.last_reported("samples") for run in runs],
        "groups": [run.start.get("groups") or {} for run in runs],
        "scored cases": [{s: number.n for s, number in e.scores.items()} for e in group],
    }
    differing = [fact for fact, found in facts.items() if any(one != found[0] for one in found)]
    if differing:
        yield f"{subject} differ in their {', '.join(differing)}: compare their scores with care"
    yield from settings_warnings(runs, subject)


def _different_structures(runs: Sequence[Run], measurement: str) -> Iterator[str]:
    """That sites label other structures: a mean over disc and cup is no score of the disc."""
    labels: dict[str, set[str]] = {}
    for run in runs:
        for row in run.table:
            if row.measurement == f"own:{measurement}":
                labels.setdefault(row.site, set()).add(row.label)
    sites_of: dict[tuple[str, ...], list[str]] = {}
    for site, found in sorted(labels.items()):
        sites_of.setdefault(tuple(sorted(found - {"mean"})), []).append(site)
    if len(sites_of) > 1:
        words = [f"{', '.join(s)}: {', '.join(of) or 'one class'}" for of, s in sites_of.items()]
        yield (
            "A site's Dice is the mean over the structures that it labels, and the sites label "
            f"different ones ({'; '.join(words)})"
        )


def _scored_otherwise(run: Run) -> Iterator[str]:
    """Sites whose test cases are used elsewhere too."""
    for site in run.sites:
        validation, training = run.closing(site, IN_VALIDATION), run.closing(site, IN_TRAINING)
        if validation is not None and training is not None:
            yield (
                f"{site} reports no test Dice: of its {validation.n} test cases, it also uses "
                f"{training.value:g} in training and {validation.value:g} in validation"
            )
