# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The first screen: a row for each hospital, what it should do, and sentences for all of them.

A terminal shows the same in about a dozen lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from monai_fairfl.report.contributions import contributions_of
from monai_fairfl.report.scores import (
    CASES_OF,
    MARGIN,
    VERDICTS,
    Entry,
    better_model,
    called,
    verdict_of,
)
from monai_fairfl.utils.tables import count_words, text_of_table
from monai_fairfl.valuation.free_riders import EVIDENCE

FIRST = 3
"""A sentence names so many hospitals, and counts the others."""

OFTEN = 0.25
"""A hospital that is missing in a larger part of the rounds is asked why."""

LAST_MILE = {
    "adapted": "the model trained further on its own images",
    "alone": "the model trained alone",
    "fused": "the model fused with the one trained alone",
}
"""Candidate of the last mile -> what it is called."""

ADVICE = {
    "better": "Use the federation's model",
    "as_good": "Use either model: they are equally good",
    "hard": f"Add its images: no model here is more than {MARGIN} better for it",
    "not_compared": "Run Standalone too, to know the gain over training alone",
}
"""Verdict -> what it asks for, where that depends on nothing else."""


def decision_of(
    report: Mapping[str, Any], name: str | None, entries: Mapping[str, Entry]
) -> dict[str, Any]:
    """The first screen: ``strategy``, those ``shown``, a row a hospital."""
    strategies = report["strategies"]
    strategy = strategies.get(name, {"sites": {}, "touched": {}, "valuations": []})
    # The columns: training alone, FedAvg, and the one that it is about, or else the second best.
    shown = [strategy.get("standalone"), strategy.get("fedavg"), name]
    group: Sequence[str] = next((names for names in report["compared"] if name in names), [])
    if shown[1] is None:
        others = [other for other in group if other not in shown and entries[other].comparable]
        means = [(strategies[other]["validation_mean"] or 0.0, other) for other in others]
        shown += [other for _, other in sorted(means)[-1:]]
    contributions = {} if name is None else contributions_of(entries[name])
    # First a valuation in which no hospital's own scores count for itself.
    current = sorted(strategy["valuations"], key=lambda one: one.get("judged_by") != "others")
    worth = current[0] if current else {"name": None, "values": {}}
    intervals = worth.get("intervals") or {}
    hospitals = {}
    for site in report["sites"]:
        verdict = verdict_of(report, name, site)
        value = worth["values"].get(site)
        hospitals[site] = {
            "verdict": verdict,
            "contribution": contributions.get(site),
            "worth": value and {**value, "interval": intervals.get(site)},
            "guards": strategy["touched"].get(site, []),
            "advice": list(_advice(report, name, site, verdict)),
        }
    return {
        "strategy": name,
        "valuation": worth["name"],
        "shown": [other for other in shown if other is not None] or list(strategies),
        "hospitals": hospitals,
    }


def headline(report: Mapping[str, Any]) -> Iterator[str]:
    """Is the federation worth it, and who is left behind? Of what is not judged only the means."""
    name, strategies = report["decision"]["strategy"], report["strategies"]
    if name is None:
        yield "No federation is in this report: run one too, such as FedCE, to compare."
        return
    strategy = strategies[name]
    means = []
    for other in next(names for names in report["compared"] if name in names):
        if strategies[other]["comparable"]:
            means.append(f"{strategies[other]['performance']['mean']:.3f} {called(other)}")
    if means:
        yield f"Mean Dice of the {len(strategy['sites'])} hospitals: {', '.join(means)}."
    if strategy["not_judged"]:
        return

    for key, other in (("gain", strategy["standalone"]), ("against_fedavg", strategy["fedavg"])):
        clear: dict[str, list[str]] = {}
        for site, result in strategy["sites"].items():
            found = result[key]
            if found and found["within_noise"] is False:
                word = "better" if found["value"] > 0 else "worse"
                clear.setdefault(word, []).append(f"{site} ({interval_words(found)})")
        for word, sites in sorted(clear.items()):
            if len(sites) > FIRST:
                sites[FIRST:] = [f"{len(sites) - FIRST} more"]
            yield f"{name} is shown to be {word} than {called(other)} at {', '.join(sites)}."
        if other is not None and not clear:
            yield (
                f"At no hospital do the {CASES_OF[strategy['measurement']]} cases show that {name} "
                f"is better or worse than {called(other)}."
            )
    rows = report["decision"]["hospitals"].items()
    behind = [site for site, row in rows if row["verdict"] == "left_behind"]
    none = "No hospital is shown to be left behind."
    far = ", far below the others or training alone"
    yield f"Left behind: {', '.join(behind)}{far}." if behind else none
    scores = [result["score"] for result in strategy["sites"].values() if result["score"]]
    counts = sorted({score["n"] for score in scores if score["n"]})
    seeds = strategy["seed"]
    words = [count_words(len(seeds), "seed") if isinstance(seeds, list) else "one training"]
    if counts:
        most = f" to {counts[-1]}" if counts[1:] else ""
        words.append(f"{CASES_OF[strategy['measurement']]} cases a hospital: {counts[0]}{most}")
    again = "" if isinstance(seeds, list) else " Another seed may differ: monai-fairfl compare."
    yield f"How sure? From {'; '.join(words)}.{again}"


def dice_words(value: float | None) -> str:
    """A Dice as a table shows it.

    >>> dice_words(0.81234), dice_words(None)
    ('0.812', '–')
    """
    return "–" if value is None else f"{value:.3f}"


def interval_words(found: Mapping[str, Any]) -> str:
    """A difference with the ends of its interval, where they are known.

    >>> interval_words({"value": 0.02, "low": -0.011, "high": 0.05})
    '+0.020, -0.011 to +0.050'
    >>> interval_words({"value": -0.0001, "low": None, "high": None})
    '+0.000'
    """
    known = [found[key] for key in ("value", "low", "high") if found[key] is not None]
    # Adding 0.0 turns -0.0 into 0.0.
    value, *ends = (f"{round(number, 3) + 0.0:+.3f}" for number in known)
    return f"{value}, {' to '.join(ends)}" if ends else value


def first_look_lines(report: Mapping[str, Any]) -> list[str]:
    """What is not judged, and why; empty where everything is."""
    reasons: dict[str, list[str]] = {}
    for name, found in report["strategies"].items():
        if found["not_judged"]:
            reasons.setdefault(found["not_judged"], []).append(name)
    lines = [f"{', '.join(names)}: {why}." for why, names in reasons.items()]
    what = "This is a first look: no hospital is called better, worse or left behind."
    return [what, *lines] if lines else []


def _advice(report: Mapping[str, Any], name: str | None, site: str, verdict: str) -> Iterator[str]:
    """What the hospital should do, most urgent first; sentences without a full stop."""
    if name is None or site not in report["strategies"][name]["sites"]:
        return
    strategy = report["strategies"][name]
    result = strategy["sites"][site]
    # What guards found in its updates, and whether it was often missing.
    sent, missed = set(), set()
    for event in report["events"]:
        if event["site"] == site and event["strategy"] in strategy["runs"]:
            if event["kind"] in EVIDENCE:
                sent.add((event["strategy"], event["round"]))
            elif event["kind"] == "missing" and event["round"] != "end":
                missed.add((event["strategy"], event["round"]))
    if sent:
        rounds = count_words(len(sent), "round")
        yield f"Ask {site} what it sent: in {rounds}, its update came from no training of its own"
    if len(missed) > OFTEN * strategy["rounds_of_runs"]:
        rounds = f"{len(missed)} of {strategy['rounds_of_runs']} rounds"
        yield f"Find out why {site} was missing in {rounds}"

    data = result["data"]
    if data and data["outside"] and VERDICTS[verdict][1] != "good":
        yield (
            f"Set a field_of_view above {data['field_of_view']:g}, or crop its volumes: the organ "
            f"leaves it in {data['outside']} of {data['cases']} cases, and in one "
            f"{data['least_seen']:.0%} of it is seen"
        )

    # What the verdict asks for; that nothing is judged is said once, at the top.
    cases = CASES_OF[strategy["measurement"]]
    mile = result["last_mile"]
    if verdict == "no_score" and strategy["rounds"]:
        yield f"Find out why no {cases} case of {site} has a score in every run"
    elif verdict != "not_judged" and mile is not None and mile["taken"] is not None:
        gain = mile["candidates"][mile["taken"]]["gain"]
        words = f"{gain['value']:+.3f} over {name} on {count_words(gain['n'], 'validation case')}"
        less = result["score"]["value"] - (mile["used"] or result["score"])["value"]
        if less > MARGIN:
            words += f", but its {cases} Dice is {less:.3f} lower"
        yield f"{'Doubt' if less > MARGIN else 'Use'} {LAST_MILE[mile['taken']]}: {words}"
    elif verdict in ("left_behind", "worse"):
        better = better_model(report, name, site)
        if better is not None and better[0] != strategy["standalone"]:
            yield f"Look at {better[0]}: a model of it reaches {better[1]:.3f} here"
        else:
            yield "Use the model that it trained alone"
            if mile is None:
                yield "Or let it train this one further: monai-fairfl adapt"
    elif verdict == "cannot_tell":
        gain = result["gain"]["value"]
        guess = f"{name if gain > 0 else 'training alone'} is the better guess"
        either = f"use {name} or training alone"
        yield f"Test more cases; until then {either if abs(gain) < MARGIN else guess}"
    elif verdict in ADVICE:
        yield ADVICE[verdict]


# ---- the report in a terminal


def as_text(report: Mapping[str, Any]) -> str:
    """The report of runs, or a comparison over seeds, in about a dozen lines.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` or
            :func:`~monai_fairfl.report.write_comparison` returned.

    >>> from tempfile import TemporaryDirectory
    >>> from monai_fairfl.report import write_report
    >>> from monai_fairfl.run import Ledger
    >>> scores = {"elm": {"own": {"test_score": 0.8}}, "oak": {"own": {"test_score": 0.6}}}
    >>> with TemporaryDirectory() as folder:
    ...     ledger = Ledger(f"{folder}/ledger.jsonl")
    ...     ledger.append({"kind": "start", "strategy": "FedAvg", "clients": [*scores], "seed": 0})
    ...     ledger.append({"kind": "end", "scores": scores})
    ...     text = as_text(write_report([folder]))
    >>> print(*[line.strip() for line in text.splitlines() if line.strip()][-2:], sep="\\n")
    elm    0.800    not judged yet
    oak    0.600    not judged yet
    """
    shown = report["decision"]["shown"]
    rows = []
    for site, hospital in report["decision"]["hospitals"].items():
        scores = [report["strategies"][name]["sites"].get(site, {}).get("score") for name in shown]
        cells = [dice_words(score and score["value"]) for score in scores]
        rows.append([site, *cells, VERDICTS[hospital["verdict"]][0].lower()])
    lines = [*report["first_look"], *report["headline"]]
    lines.append(text_of_table(["Dice", *map(called, shown), "Verdict"], rows))
    notes = len(report["warnings"]) + len(report.get("notes", ()))
    lines += [f"{count_words(notes, 'note')}: see the page."] if notes else []
    for name, why in report["failed"].items():
        lines.append(f"{name} failed and is not in this report: {why}")
    return "\n".join(lines)
