# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""From runs to ``report.json``: one entry for each strategy, and one row for each hospital."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from monai_fairfl import __version__
from monai_fairfl.messages import CANDIDATES, Estimate, chosen, gain_name, to_json
from monai_fairfl.report import contributions, events, scores
from monai_fairfl.report.collect import Number, Run
from monai_fairfl.report.hospitals import decision_of, first_look_lines, headline
from monai_fairfl.report.partners import partners_of, why_not_full
from monai_fairfl.report.scores import DURING_TRAINING, Entry
from monai_fairfl.statistics import fairness

SETTINGS = ("bundle", "engine", "package", "rounds", "local_epochs", "overrides", "device")
"""Keys of ``settings.json`` that the page shows."""

SERIES = ("dice", "train_loss", "weight", "contribution", "free_rider_score")
"""Measurements whose numbers are listed round by round."""


def summarise_runs(runs: Sequence[Run]) -> dict[str, Any]:
    """The report of runs by themselves.

    Tables show one measurement for all finished runs, ``test_score`` or ``score``, see
    :func:`~monai_fairfl.report.scores.shown_measurement`. A run without it shows its newest
    ``global_score`` and is not compared. Runs are compared within their group only, of the same
    data, split and seed.

    Args:
        runs: of :func:`~monai_fairfl.report.collect.load_runs`.
    """
    warnings: list[str] = []
    measurement = scores.shown_measurement(runs)
    entry = {run.name: scores.entry_of(run, measurement, warnings) for run in runs}
    groups = [[entry[run.name] for run in group] for group in partners_of(runs, warnings)]
    for group in groups:
        # Models that are still in training are compared with none.
        comparable = [e for e in group if e.measurement == measurement != DURING_TRAINING]
        sites = {site for found in group for site in found.run.sites}
        for found in group:
            found.comparable = found in comparable and set(found.scores) == sites
            find_references(found, comparable if found in comparable else [])
    return summarise(list(entry.values()), groups, measurement, warnings)


def find_references(entry: Entry, candidates: Sequence[Entry]) -> None:
    """Set the entries of training alone and of FedAvg against which an entry is measured."""
    for other in reversed(candidates):
        if other.run.is_standalone and not entry.run.is_standalone:
            entry.alone = other
        if other.run.strategy == "FedAvg" and entry.run.strategy not in ("FedAvg", "Standalone"):
            entry.fedavg = other


def summarise(
    entries: Sequence[Entry],
    groups: Sequence[Sequence[Entry]],
    measurement: str,
    warnings: list[str],
) -> dict[str, Any]:
    """All numbers of a report.

    Args:
        entries: as they are shown.
        groups: of entries that may be compared with each other, and with no others.
        measurement: the one that the tables show.
        warnings: so far.

    Returns:
        What ``report.json`` holds, plain JSON. ``strategies`` has an entry for each name, with its
        ``sites``; ``decision`` the row of each hospital about one of them.
    """
    runs = [run for entry in entries for run in entry.runs]
    means: dict[str, float | None] = {}
    for group in groups:
        means |= scores.validation_means(group)
    strategies = {entry.name: _strategy(entry, means[entry.name]) for entry in entries}
    focus = _focus(groups, strategies)
    sites = sorted({site for run in runs for site in run.sites})
    report = {
        "version": __version__,
        "measurement": measurement,
        "ddof": scores.DDOF,
        "compared": [[entry.name for entry in group] for group in groups],
        "sites": {site: _site_data(site, entries) for site in sites},
        "strategies": strategies,
        "events": [event for run in runs for event in events.events_of(run)],
        "warnings": [*events.warnings_of(entries, groups), *warnings],
    }
    report["decision"] = decision_of(report, focus, {entry.name: entry for entry in entries})
    report |= {"headline": [*headline(report)], "first_look": first_look_lines(report)}
    plain: dict[str, Any] = to_json(report)
    return plain


def _not_judged(entry: Entry) -> str | None:
    """Why no verdict may be given on an entry; ``None`` for full runs that have learnt enough."""
    alone = entry.alone.runs if entry.alone is not None else ()
    for run in entry.runs:
        if why := why_not_full(run):
            return why
        closing = [run.closing(site, entry.measurement) for site in run.sites]
        values = [number.value for number in closing if number is not None]
        assert run.full_run is not None  # else it is not full
        if not values:
            return "its mean Dice is unknown"
        least, found = run.full_run.mean_dice, fmean(values)
        if not found >= least:
            return f"its mean Dice is {found:.3f}, and nothing is judged below {least:g}"
    for run in alone:
        if why_not_full(run):
            return f"{run.name}, with which it is compared, is not a full run"
    return None


def _strategy(entry: Entry, validation_mean: float | None) -> dict[str, Any]:
    """What ``report.json`` has of one entry."""
    run, runs = entry.run, entry.runs
    single = len(runs) == 1
    not_judged = _not_judged(entry)
    values = {site: number.value for site, number in entry.scores.items()}
    return {
        "strategy": run.strategy,
        "runs": [one.name for one in runs],
        "seed": run.seed if single else sorted({str(one.seed) for one in runs}),
        "fold": run.fold if single else None,
        "judged": not_judged is None,
        "not_judged": not_judged,
        "rounds": len(run.rounds),
        "rounds_of_runs": sum(len(one.rounds) for one in runs),
        "finished": all(one.end is not None for one in runs),
        "ledger_heads": {one.name: one.head for one in runs},
        "measurement": entry.measurement,
        "validation_mean": validation_mean,
        "performance": asdict(fairness.performance(values, scores.DDOF)) if values else None,
        "flagged": run.free_riders.flagged,
        "sites": {s: _site_result(entry, s, not_judged is None) for s in run.sites},
        "series": {key: contributions.points_of(runs, key) for key in SERIES},
        "valuations": [v for v in run.valuations if contributions.is_current(v, run)],
        "credit": contributions.credit_of(runs),
        "standalone": entry.alone.name if entry.alone is not None else None,
        "fedavg": entry.fedavg.name if entry.fedavg is not None else None,
        "comparable": entry.comparable,
        "touched": events.touched_of(runs),
        "similarity": contributions.similarity_of(run) if single else None,
        "settings": {key: run.config[key] for key in SETTINGS if run.config.get(key) is not None},
    }


def _site_result(entry: Entry, site: str, judged: bool) -> dict[str, Any]:
    """What a strategy gives a site; ``None`` where it is not known."""
    gain = scores.difference(entry, entry.alone, site)
    single = len(entry.runs) == 1
    data = entry.run.data.get(site)
    behind = judged and not entry.run.is_standalone and scores.left_behind(site, entry.scores, gain)
    return {
        "score": _plain(entry.scores.get(site)),
        "gain": gain,
        "left_behind": behind,
        "last_mile": _last_mile(entry, site) if single else None,
        "against_fedavg": scores.difference(entry, entry.fedavg, site),
        "boundary": _plain(entry.run.closing(site, "test_hd95")) if single else None,
        # Names of files stay in data.json.
        "data": data and {**data, "refused": Counter(data["refused"].values()), "notes": None},
    }


def _plain(number: Number | None) -> dict[str, Any] | None:
    return None if number is None else number._asdict()


def _last_mile(entry: Entry, site: str) -> dict[str, Any] | None:
    """The last mile of a site; ``None`` where there was none.

    ``candidates``: name -> its ``gain`` on validation cases over the model that the site would use,
    and its ``score``; ``taken``, the candidate that the site takes; ``used``, the Dice of the model
    that it uses then.
    """
    candidates: dict[str, dict[str, Any]] = {}
    gains = {}
    for name in CANDIDATES:
        gain = entry.run.closing(site, gain_name(name), name)
        if gain is not None:
            gains[name] = Estimate(gain.value, gain.stderr, gain.n or 0)
            score = entry.run.closing(site, entry.measurement, name)
            candidates[name] = {"gain": _plain(gain), "score": _plain(score)}
    if not candidates:
        return None
    taken = chosen(gains)
    used = _plain(entry.scores.get(site)) if taken is None else candidates[taken]["score"]
    return {"candidates": candidates, "taken": taken, "used": used}


def _site_data(site: str, entries: Sequence[Entry]) -> dict[str, int | None]:
    """Training cases and images of an epoch; ``None`` where runs differ."""
    counts = {}
    for name, key in (("cases", "cases"), ("images", "samples")):
        known = {run.last_reported(key).get(site) for one in entries for run in one.runs} - {None}
        counts[name] = known.pop() if len(known) == 1 else None
    return counts


def _focus(groups: Sequence[Sequence[Entry]], strategies: Mapping[str, Any]) -> str | None:
    """The federated strategy that the report is about; it is never chosen on test cases.

    Those with a score of every site go first: means over other sites are of other patients. Then
    finished ones do. Of several groups it is the first that has Standalone, else the first: the
    best of several seeds would be chosen by chance. Of these it is the one with the best mean on
    validation cases.
    """

    def preference(place: tuple[int, Entry]) -> tuple[Any, ...]:
        number, entry = place
        found = strategies[entry.name]
        mean = found["validation_mean"]
        first = (entry.comparable, found["finished"], entry.alone is not None, -number)
        return *first, -math.inf if mean is None else mean

    federated = [(n, e) for n, group in enumerate(groups) for e in group if not e.run.is_standalone]
    return max(federated, key=preference)[1].name if federated else None
