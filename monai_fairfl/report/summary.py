# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""From runs to ``report.json``: one entry for each strategy, and one row for each hospital."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from monai_fairfl import __version__
from monai_fairfl.messages import ADAPTED_EPOCHS, CANDIDATES, Estimate, chosen, gain_name, to_json
from monai_fairfl.report.collect import Number, Run
from monai_fairfl.report.contributions import (
    credit_of,
    details_of,
    dice_points,
    estimates_contributions,
    is_current,
    is_weight,
    over_runs,
    points_of,
    similarity_of,
)
from monai_fairfl.report.events import (
    events_of,
    free_rider_scores,
    free_riding_of,
    often_touched,
    touched_of,
    warnings_of,
)
from monai_fairfl.report.hospitals import decision_of, headline
from monai_fairfl.report.partners import (
    WhyNot,
    differences,
    partners_of,
    why_not_judged,
)
from monai_fairfl.report.scores import (
    DDOF,
    DURING_TRAINING,
    Entry,
    difference,
    entry_of,
    left_behind,
    shown_measurement,
    validation_means,
)
from monai_fairfl.statistics import fairness
from monai_fairfl.strategies.registry import shipped

SETTINGS = ("bundle", "engine", "package", "rounds", "local_epochs", "overrides", "device")
"""Keys of ``settings.json`` that the page shows."""


def summarise_runs(runs: Sequence[Run]) -> dict[str, Any]:
    """The report of runs by themselves.

    Tables show one measurement for all finished runs: ``test_score`` where each has one, else
    ``score``, else the last round's ``global_score``. A run without it shows its last
    ``global_score`` and is not compared. Runs are compared within their group only, of the same
    data, split and seed.

    Args:
        runs: of :func:`~monai_fairfl.report.collect.load_runs`.
    """
    warnings: list[str] = []
    measurement = shown_measurement(runs)
    entry = {run.name: entry_of(run, measurement, warnings) for run in runs}
    groups = [[entry[run.name] for run in group] for group in partners_of(runs, warnings)]
    why_not_alone = {}
    for group in groups:
        comparable = [found for found in group if found.measurement == measurement]
        if measurement == DURING_TRAINING:
            # Models that are still in training are compared after the most rounds.
            most = max((found.after_rounds for found in comparable), default=0)
            comparable = [found for found in comparable if found.after_rounds == most]
        sites = {site for found in group for site in found.run.sites}
        for found in group:
            found.comparable = found in comparable and set(found.scores) == sites
            find_references(found, comparable if found in comparable else [])
            if found.alone is None and not found.run.is_standalone:
                why_not_alone[found.name] = _why_not_alone(found.run, group, runs)
    if any(run.is_standalone for run in runs):
        for name, why in why_not_alone.items():
            warnings.append(f"What {name} gained over training alone is not known: {why}")
    return summarise(groups, measurement, warnings, why_not_alone, list(entry))


def find_references(entry: Entry, candidates: Sequence[Entry]) -> None:
    """Set the entries of training alone and of FedAvg against which an entry is measured."""
    for other in reversed(candidates):
        if other.run.is_standalone and not entry.run.is_standalone:
            entry.alone = other
        if other.run.strategy == "FedAvg" and entry.run.strategy not in ("FedAvg", "Standalone"):
            entry.fedavg = other


def _why_not_alone(run: Run, group: Sequence[Entry], runs: Sequence[Run]) -> str:
    """Why there is no run of training alone to measure a run against."""
    alone = [other for other in runs if other.is_standalone]
    if not alone:
        return "Standalone was not run"
    in_group = [entry.name for entry in group if entry.run.is_standalone]
    if in_group:
        return f"{in_group[0]} has no comparable score"
    differing = differences(run, alone[0])
    if not differing:
        return f"it is not recorded whether {alone[0].name} is of its data and split"
    return f"{alone[0].name} has another {' and another '.join(differing)}"


def summarise(
    groups: Sequence[Sequence[Entry]],
    measurement: str,
    warnings: list[str],
    why_not_alone: Mapping[str, str] | None = None,
    order: Sequence[str] = (),
) -> dict[str, Any]:
    """All numbers of a report.

    Args:
        groups: of entries that may be compared with each other, and with no others.
        measurement: the one that the tables show.
        warnings: so far.
        why_not_alone: name of an entry -> why it is not measured against training alone.
        order: names of the entries as they are shown; empty: as in the groups.

    Returns:
        What ``report.json`` holds, plain JSON. ``strategies`` has an entry for each name, with its
        ``sites``; ``decision`` the row of each hospital about the strategy ``focus``.
    """
    entries = [entry for group in groups for entry in group]
    # Standalone first, the others as they were given.
    entries.sort(key=lambda entry: order.index(entry.name) if order else 0)
    runs = [run for entry in entries for run in entry.runs]
    doubted: dict[str, set[str]] = {}
    means: dict[str, float | None] = {}
    for group in groups:
        of_group = often_touched([run for entry in group for run in entry.runs])
        doubted |= {entry.name: of_group for entry in group}
        means |= validation_means(group, of_group, warnings)

    not_judged = {entry.name: _not_judged(entry) for entry in entries}
    strategies = {}
    for entry in entries:
        found = _strategy(entry, not_judged[entry.name])
        about = {"no_standalone": (why_not_alone or {}).get(entry.name)}
        strategies[entry.name] = {**found, **about, "validation_mean": means[entry.name]}

    sites = sorted({site for run in runs for site in run.sites})
    of_groups = [dict(run.start.get("groups") or {}) for run in runs]
    focus = _focus(groups, strategies, doubted)
    report = {
        "version": __version__,
        "measurement": measurement,
        "ddof": DDOF,
        "compared": [[entry.name for entry in group] for group in groups],
        "first_look": _first_look(not_judged),
        "focus": focus,
        "doubted": sorted(doubted[focus]) if focus is not None else [],
        "sites": {site: _site_data(site, entries) for site in sites},
        "groups": of_groups[0] if all(of_run == of_groups[0] for of_run in of_groups) else {},
        "strategies": strategies,
        "free_riding": [event for run in runs for event in free_riding_of(run)],
        "events": [event for run in runs for event in events_of(run)],
        "warnings": [*warnings_of(entries, groups), *warnings],
    }
    report["decision"] = decision_of(report, {entry.name: entry for entry in entries})
    report["overview"] = " ".join(headline(report))
    plain: dict[str, Any] = to_json(report)
    return plain


def _not_judged(entry: Entry) -> list[WhyNot]:
    """Why no verdict may be given on runs of an entry; empty where all may be judged."""
    alone = entry.alone.runs if entry.alone is not None else ()
    reasons = []
    for run in entry.runs:
        yardstick = [
            a for a in alone if len(alone) == 1 or (a.seed, a.fold) == (run.seed, run.fold)
        ]
        values = list(entry.values.values())
        if len(entry.runs) > 1:
            closing = [run.closing(site, entry.measurement) for site in run.sites]
            values = [number.value for number in closing if number is not None]
        mean = sum(values) / len(values) if values else None
        reasons.append(why_not_judged(run, yardstick[0] if yardstick else None, mean))
    return [reason for reason in reasons if reason is not None]


def _first_look(not_judged: Mapping[str, Sequence[WhyNot]]) -> list[dict[str, Any]]:
    """The strategies that are not judged, those with the same reason together.

    ``full_run`` has ``rounds`` and ``local_epochs`` of the full run; ``None`` where another
    training would not help, or it is not known.
    """
    alike: dict[str, dict[str, Any]] = {}
    for name, reasons in not_judged.items():
        for why, full in reasons:
            found = alike.setdefault(why, {"strategies": [], "full_run": None, "why": why})
            found["strategies"] = [*dict.fromkeys([*found["strategies"], name])]
            if full is not None:
                found["full_run"] = {"rounds": full.rounds, "local_epochs": full.local_epochs}
    return list(alike.values())


def _strategy(entry: Entry, not_judged: Sequence[WhyNot]) -> dict[str, Any]:
    """What ``report.json`` has of one entry."""
    run, runs = entry.run, entry.runs
    single = len(runs) == 1
    free_riders = [free_rider_scores(one) for one in runs]
    alone = entry.alone.values if entry.alone is not None else {}
    known = shipped().get(run.strategy)
    layers = None
    for record in run.rounds:
        if any(isinstance(of_layer, Mapping) for of_layer in record["aggregation"].values()):
            layers = len(record["aggregation"])
    collaboration = None
    if len(alone) > 1 and set(alone) == set(entry.values):
        pearson, p_value = fairness.performance_fairness_pearson(alone, entry.values)
        distance = fairness.performance_distance(alone, entry.values)
        collaboration = {"pearson": pearson, "p_value": p_value, "euclid": distance}
    performance = fairness.performance(entry.values, ddof=DDOF) if entry.scores else None
    return {
        "strategy": run.strategy,
        "method": run.method,
        "given": _as_given(run),
        "run": run.path.resolve().name,
        "runs": [one.name for one in runs],
        "seed": run.seed if single else sorted({str(one.seed) for one in runs}),
        "fold": run.fold if single else None,
        "judged": not not_judged,
        "not_judged": not_judged[0][0] if not_judged else None,
        "rounds": len(run.rounds),
        "rounds_of_runs": sum(len(one.rounds) for one in runs),
        "planned_rounds": (
            run.config["rounds"] if isinstance(run.config.get("rounds"), int) else None
        ),
        "finished": all(one.end is not None for one in runs),
        "ledger_heads": {one.name: one.head for one in runs},
        "measurement": entry.measurement,
        "after_rounds": entry.after_rounds,
        "performance": asdict(performance) if performance is not None else None,
        "collaboration": collaboration,
        "layers_averaged": layers,
        "additive": known.additive if known else None,
        "estimates_contributions": estimates_contributions(run),
        "own_is_weight": is_weight(run),
        "personal": run.personal,
        "flagged": free_riders[0][1],
        "sites": {site: _site_result(entry, site, not not_judged) for site in run.sites},
        "series": {
            "dice": over_runs([dice_points(one) for one in runs]),
            "weights": over_runs([points_of(one, "weight") for one in runs]),
            "contributions": over_runs([points_of(one, "contribution") for one in runs]),
            "train_loss": over_runs([points_of(one, "train_loss") for one in runs]),
            "free_rider_scores": over_runs([scores for scores, _ in free_riders]),
        },
        "details": details_of(run) if single else {"by_round": {}, "last_round": {}},
        "valuations": [v for v in run.valuations if is_current(v, run)] if single else [],
        "credit": _mean_credit([credit_of(one) for one in runs]),
        "standalone": entry.alone.name if entry.alone is not None else None,
        "fedavg": entry.fedavg.name if entry.fedavg is not None else None,
        "comparable": entry.comparable,
        "guards": run.start.get("guards"),
        "touched": touched_of(runs),
        "similarity": similarity_of(run) if single else None,
        "settings": {key: run.config[key] for key in SETTINGS if run.config.get(key) is not None},
    }


def _as_given(run: Run) -> str:
    """The strategy as a command takes it: its name, with its arguments where it has any."""
    configuration = run.start.get("configuration") or {}
    words = [f"{name}={value!r}" for name, value in configuration.items() if name != "_target_"]
    return f'"{run.strategy}({", ".join(words)})"' if words else run.strategy


def _mean_credit(credits: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, Any]:
    """Rule -> site -> share; over several runs the mean of those that have one."""
    found: dict[str, dict[str, float]] = {}
    for rule in dict.fromkeys(name for credit in credits for name in credit):
        of_runs = [credit[rule] for credit in credits if rule in credit]
        found[rule] = {}
        for site in dict.fromkeys(site for shares in of_runs for site in shares):
            known = [shares[site] for shares in of_runs if site in shares]
            found[rule][site] = sum(known) / len(known)
    return found


def _site_result(entry: Entry, site: str, judged: bool) -> dict[str, Any]:
    """What a strategy gives a site; ``None`` where it is not known."""
    run = entry.run
    single = len(entry.runs) == 1
    score = entry.scores.get(site)
    gain = difference(entry, entry.alone, site)
    if gain is not None and entry.alone is not None:
        gain["alone"] = entry.alone.scores[site].value
    weights = run.series(site, "weight") if single else []
    weight = {"round": weights[-1].round, "value": weights[-1].value} if weights else None
    behind = None
    if judged and not run.is_standalone:
        behind = left_behind(site, entry.scores, gain)
    return {
        "score": _plain(score),
        "global_model": _plain(run.closing(site, entry.measurement, "global")) if single else None,
        "gain": gain,
        "left_behind": behind,
        "last_mile": _last_mile(run, site, entry.measurement, score) if single else None,
        "against_fedavg": difference(entry, entry.fedavg, site),
        "boundary": _plain(run.closing(site, "test_hd95")) if single else None,
        "aggregation_weight": weight,
    }


def _plain(number: Number | None) -> dict[str, Any] | None:
    return None if number is None else number._asdict()


def _last_mile(
    run: Run, site: str, measurement: str, score: Number | None
) -> dict[str, Any] | None:
    """The last mile of a site; ``None`` where there was none.

    ``candidates``: name -> its ``gain`` on validation cases over the model that the site would use,
    its ``score`` and ``epochs`` of further training; ``taken``, the candidate that the site takes;
    ``used``, the Dice of the model that it uses then.
    """
    candidates: dict[str, dict[str, Any]] = {}
    gains = {}
    for name in CANDIDATES:
        gain = run.closing(site, gain_name(name), name)
        if gain is None:
            continue
        epochs = run.closing(site, ADAPTED_EPOCHS, name)
        gains[name] = Estimate(gain.value, gain.stderr, gain.n or 0)
        candidates[name] = {
            "gain": _plain(gain),
            "score": _plain(run.closing(site, measurement, name)),
            "epochs": None if epochs is None else round(epochs.value),
        }
    if not candidates:
        return None
    taken = chosen(gains)
    used = _plain(score) if taken is None else candidates[taken]["score"]
    return {"candidates": candidates, "taken": taken, "used": used}


def _site_data(site: str, entries: Sequence[Entry]) -> dict[str, int | None]:
    """Training cases, images of an epoch and scored cases; ``None`` where runs differ."""
    counts: dict[str, int | None] = {}
    for name, key in (("cases", "cases"), ("images", "samples")):
        known = {run.last_reported(key).get(site) for entry in entries for run in entry.runs}
        known.discard(None)
        counts[name] = known.pop() if len(known) == 1 else None
    scored = [entry.scores[site].n for entry in entries if site in entry.scores]
    counts["scored"] = min((n for n in scored if n is not None), default=None)
    return counts


def _focus(
    groups: Sequence[Sequence[Entry]],
    strategies: Mapping[str, Any],
    doubted: Mapping[str, set[str]],
) -> str | None:
    """The federated strategy that the report is about; it is never chosen on test cases.

    Those with a score of every site go first: means over other sites are of other patients. Then
    finished ones do. Of several groups it is the first that has Standalone, else the first: the
    best of several seeds would be chosen by chance. Of these it is the one with the best mean on
    validation cases. Where guards or limits often refused what a site sent, guarded runs go first:
    the others took the same in unseen.
    """
    candidates = [e for group in groups for e in group if not e.run.is_standalone]
    for wanted in ("comparable", "finished"):
        candidates = [e for e in candidates if strategies[e.name][wanted]] or candidates
    of_groups = [[entry for entry in group if entry in candidates] for group in groups]
    of_groups = [group for group in of_groups if group]
    of_groups.sort(key=lambda group: all(entry.alone is None for entry in group))
    if not of_groups:
        return None

    def preference(entry: Entry) -> tuple[bool, float]:
        found = strategies[entry.name]
        mean = found["validation_mean"]
        guarded = bool(doubted[entry.name]) and bool(found["guards"])
        return guarded, -math.inf if mean is None else mean

    return max(of_groups[0], key=preference).name
