# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The first screen: a row for each hospital, what it should do, and sentences for all of them.

A terminal shows the same in about a dozen lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from monai_fairfl.report.contributions import contributions_of
from monai_fairfl.report.scores import CASES_OF, MARGIN, VERDICTS, Entry, better_model, verdict_of
from monai_fairfl.utils.tables import count_words, text_of_table
from monai_fairfl.valuation.free_riders import EVIDENCE

OFTEN = 0.25
"""A hospital that is missing in a larger part of the rounds is asked why."""

LAST_MILE = {
    "adapted": "the model trained further",
    "alone": "the model trained alone",
    "fused": "the model fused with the one trained alone",
}
"""Candidate of the last mile -> what it is called."""

ADVICE = {
    "better": "Use the federation's model",
    "as_good": "Use either model: they are equally good",
    "hard": f"Add its images: no model here is more than {MARGIN} better for it",
    "not_compared": "Run Standalone too, to know the gain over training alone",
    "cannot_tell": "Score more cases with this package: these cannot tell",
}
"""Verdict -> what it asks for, where that depends on nothing else."""


def decision_of(
    report: Mapping[str, Any], name: str | None, entries: Mapping[str, Entry]
) -> dict[str, Any]:
    """The first screen: ``strategy``, ``why`` this one, those ``shown``, a row a hospital."""
    strategies = report["strategies"]
    strategy = strategies.get(name, {"sites": {}, "touched": {}, "valuations": []})
    # The columns: training alone, FedAvg, and the one that it is about.
    shown = [strategy.get("standalone"), strategy.get("fedavg"), name]
    group: Sequence[str] = next((names for names in report["compared"] if name in names), [])
    contributions = {} if name is None else contributions_of(entries[name])
    # First a valuation in which no hospital's own scores count for itself.
    current = sorted(strategy["valuations"], key=lambda one: one.get("judged_by") != "others")
    worth = current[0] if current else {"name": None, "values": {}}
    hospitals = {}
    for site in report["sites"]:
        score = strategy["sites"].get(site, {}).get("score")
        verdict = verdict_of(report, name, site)
        hospitals[site] = {
            "verdict": verdict,
            "n": score and score["n"],
            "contribution": contributions.get(site),
            "worth": worth["values"].get(site),
            "guards": strategy["touched"].get(site, []),
            "advice": list(_advice(report, name, site, verdict)),
        }
    means = [f"{other} {dice_words(strategies[other]['validation_mean'])}" for other in group]
    why = f"This is about {name}. Mean Dice on validation cases: {', '.join(means)}"
    if name is None:
        why = "No federation is in this report, so nothing is compared with training alone"
    return {
        "strategy": name,
        "valuation": worth["name"],
        "shown": [other for other in shown if other is not None] or list(strategies),
        "why": f"{why}.",
        "hospitals": hospitals,
    }


def headline(report: Mapping[str, Any]) -> list[str]:
    """Is the federation worth it? Sentences for the consortium; none where nothing is judged."""
    name = report["decision"]["strategy"]
    if name is None or report["strategies"][name]["not_judged"]:
        return []
    strategy = report["strategies"][name]

    def clear(key: str, sign: int) -> str:
        """The hospitals whose interval is above 0, or below, with their differences."""
        words = []
        for site, result in strategy["sites"].items():
            found = result[key]
            if found and found["within_noise"] is False and found["value"] * sign > 0:
                words.append(f"{site} ({interval_words(found)})")
        return ", ".join(words)

    sentences = []
    alone = strategy["standalone"] and "training alone"
    for other, key in ((strategy["fedavg"], "against_fedavg"), (alone, "gain")):
        if other is not None:
            worse = f" and loses to it at {clear(key, -1)}" if clear(key, -1) else ""
            sentences.append(f"{name} beats {other} at {clear(key, 1) or 'no hospital'}{worse}.")
    verdicts = [row["verdict"] for row in report["decision"]["hospitals"].values()]
    words = [f"{verdicts.count(v)} {t.lower()}" for v, (t, _) in VERDICTS.items() if v in verdicts]
    sentences.append(f"Of {count_words(len(verdicts), 'hospital')}: {', '.join(words)}.")
    if not isinstance(strategy["seed"], list):
        sentences.append(
            "One seed: another may differ; repeat with several by monai-fairfl compare."
        )
    return sentences


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
    # Adding 0.0 turns -0.0 into 0.0.
    known = [found[end] for end in ("low", "high") if found[end] is not None]
    value, *ends = (f"{round(number, 3) + 0.0:+.3f}" for number in (found["value"], *known))
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
    if name is None:
        yield "Run a federation too, such as FedCE, to have something to compare"
        return
    strategy = report["strategies"][name]
    result = strategy["sites"].get(site)
    if result is None:
        return
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
        words = f"{gain['value']:+.3f} on {count_words(gain['n'], 'validation case')}"
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
    >>> print(*[line.strip() for line in text.splitlines() if line.strip()][-3:], sep="\\n")
    elm    0.800    not judged yet
    oak    0.600    not judged yet
    Mean of the hospitals: FedAvg 0.700.
    """
    shown = report["decision"]["shown"]
    rows = []
    for site, hospital in report["decision"]["hospitals"].items():
        scores = [report["strategies"][name]["sites"].get(site, {}).get("score") for name in shown]
        cells = [dice_words(score and score["value"]) for score in scores]
        rows.append([site, *cells, VERDICTS[hospital["verdict"]][0].lower()])
    means = []
    for name, found in report["strategies"].items():
        if found["performance"] is not None:
            means.append(f"{name} {found['performance']['mean']:.3f}")
    lines = [*report["first_look"], *report["headline"]]
    lines.append(text_of_table(["Dice", *shown, "Verdict"], rows))
    lines.append(f"Mean of the hospitals: {', '.join(means) or 'not known'}.")
    notes = len(report["warnings"]) + len(report.get("notes", ()))
    lines += [f"{count_words(notes, 'note')}: see the page."] if notes else []
    for name, why in report["failed"].items():
        lines.append(f"{name} failed and is not in this report: {why}")
    return "\n".join(lines)
