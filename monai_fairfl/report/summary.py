# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""From runs to the numbers of the report: plain JSON, everything else in this folder only words or
draws it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from monai_fairfl import __version__
from monai_fairfl.protocol.values import IN_TRAINING, IN_VALIDATION, to_json
from monai_fairfl.report.collect import Number, Run
from monai_fairfl.report.comparison import DDOF, LEFT_BEHIND, collaboration, gains, left_behind
from monai_fairfl.report.details import details_of
from monai_fairfl.report.judging import Judgement, first_look, judge, learnt
from monai_fairfl.report.partners import differences, group_of_each
from monai_fairfl.report.scores import (
    Shown,
    comparable,
    scores_of,
    shown_measurement,
    validation_mean,
)
from monai_fairfl.report.series import (
    FREE_RIDER_RULE,
    SUSPICIOUS,
    contribution_series,
    dice_series,
    events,
    free_rider_series,
    weight_series,
)
from monai_fairfl.run_folder.records import training_settings
from monai_fairfl.statistics import fairness
from monai_fairfl.strategies.catalogue import shipped


def summarise(runs: Sequence[Run]) -> dict[str, Any]:
    """All numbers of the report.

    Tables show one measurement for all finished runs: ``test_score`` where each has one, else
    ``score``, else the last round's ``global_score``. A run without it (unfinished) shows its last
    ``global_score`` and is not compared. Runs are compared within their group only, of the same
    data, split and seed. Only full runs are judged.

    Args:
        runs: of :func:`~monai_fairfl.report.collect.load_runs`.

    Returns:
        Plain JSON; ``report["strategies"][name]["sites"][site]`` holds a site's score, gain,
        contribution, and whether it is left behind.
    """
    shown = shown_measurement(runs)
    warnings: list[str] = []
    groups = [dict(run.start.get("groups") or {}) for run in runs]
    sites = sorted({site for run in runs for site in run.sites})
    scores = {run.name: scores_of(run, shown, warnings) for run in runs}
    partners = _partners(runs, warnings)
    differ = []
    for members in partners:
        subject = "The runs" if len(partners) == 1 else _names(members)
        differ += _differences(members, scores, subject)
    warnings = differ + _structures(runs, shown) + _no_tests(runs) + warnings
    same = {
        name
        for members in partners
        for name in comparable({m.name: scores[m.name] for m in members}, shown)
    }
    judgements: dict[str, Judgement] = {}
    strategies = {}
    for run in runs:
        members = next(members for members in partners if run in members)
        yardstick, unknown = _yardstick(run, members, runs, same)
        alone = {} if yardstick is None else scores[yardstick.name].numbers
        judgements[run.name] = _judgement(run, yardstick, scores[run.name])
        strategies[run.name] = _strategy(run, scores[run.name], alone, shown, judgements[run.name])
        strategies[run.name] |= {
            "standalone": yardstick and yardstick.name,
            "no_standalone": unknown,
        }
        if unknown is not None and any(other.strategy == "Standalone" for other in runs):
            warnings.append(
                f"What {run.name} gained over training alone is not known, because {unknown}"
            )
        for valuation in run.valuations:
            if not _is_current(valuation, run):
                hint = "run the same command with it and --resume True"
                warnings.append(
                    f"{run.name}: {valuation['name']} is of another end of this run and not shown; {hint}"
                )
        for site, number in strategies[run.name]["flagged"].items():
            looks = f"In {run.name}, the free-rider score of {site} was {SUSPICIOUS}, the third of them round {number}"
            warnings.append(
                f"{looks}. So are honest sites' that are unlike the others: a reason to ask, not a proof"
            )
        of_group = {site for member in members for site in member.sites}
        strategies[run.name]["comparable"] = (
            run.name in same and set(scores[run.name].numbers) == of_group
        )
    return to_json(
        {
            "version": __version__,
            "measurement": shown,
            "ddof": DDOF,
            "left_behind_rule": LEFT_BEHIND,
            "free_rider_rule": FREE_RIDER_RULE,
            "standalone": next((run.name for run in runs if run.strategy == "Standalone"), None),
            "compared": [[run.name for run in members] for members in partners],
            "first_look": first_look(runs, judgements),
            "focus": _focus(strategies, {run.name: validation_mean(run) for run in runs}, partners),
            "sites": {
                site: _site(site, runs) | {"scored": _scored(site, scores)} for site in sites
            },
            "groups": (
                groups[0] if all(of == groups[0] for of in groups) else {}
            ),  # else a column would mix sites
            "strategies": strategies,
            "events": [event for run in runs for event in events(run)],
            "warnings": warnings,
        }
    )


def _partners(runs: Sequence[Run], warnings: list[str]) -> list[list[Run]]:
    """The runs in groups that may be compared, in the order of ``runs``; several groups are a
    warning.
    """
    group_of = group_of_each(runs, warnings)
    groups: dict[int, list[Run]] = {}
    for run in runs:
        groups.setdefault(group_of[run.name], []).append(run)
    if len(groups) > 1:
        told = "; ".join(_names(members) for members in groups.values())
        warnings.append(
            f"Only runs of the same data, split and seed are compared with each other: {told}"
        )
    return list(groups.values())


def _yardstick(
    run: Run, members: Sequence[Run], runs: Sequence[Run], same: Collection[str]
) -> tuple[Run | None, str | None]:
    """The Standalone run against which ``run`` is measured, or the reason why there is none."""
    if run.strategy == "Standalone":
        return None, None
    others = [other for other in runs if other.strategy == "Standalone"]
    if not others:
        return None, "Standalone was not run"
    of_group = [other for other in others if other in members]
    if not of_group:
        differ = differences(run, others[0])
        if not differ:
            return None, f"it is not recorded whether {others[0].name} is of its data and split"
        return None, f"{others[0].name} has another {' and another '.join(differ)}"
    usable = [other for other in of_group if other.name in same]
    if not usable or run.name not in same:
        return None, f"{of_group[0].name} has no comparable score"
    return usable[0], None


def _judgement(run: Run, yardstick: Run | None, mine: Shown) -> Judgement:
    """Whether a verdict may be given: on a full run, against a full run, with a model that has
    learnt.
    """
    found = judge(run)
    if found.why_not is None and yardstick is not None and not judge(yardstick).trained:
        found = Judgement(
            f"{yardstick.name}, with which it is compared, is no full run", found.full
        )
    values = [number.value for number in mine.numbers.values()]
    return learnt(found, sum(values) / len(values) if values else None)


def _names(runs: Sequence[Run]) -> str:
    return ", ".join(run.name for run in runs)


def _strategy(
    run: Run, mine: Shown, alone: Mapping[str, Number], shown: str, judgement: Judgement
) -> dict[str, Any]:
    numbers = mine.numbers
    values = {site: number.value for site, number in numbers.items()}
    weights, layers = weight_series(run)
    contributions, (suspicion, flagged) = contribution_series(run), free_rider_series(run)
    gained = gains(numbers, {site: number for site, number in alone.items() if site in numbers})
    judged = judgement.why_not is None
    behind = {}
    if judged and run.strategy != "Standalone":
        behind = {site: left_behind(site, numbers, gained.get(site)) for site in run.sites}
    kind = shipped().get(run.strategy)
    estimates = (
        kind.estimates if kind else None
    )  # a strategy of somebody's own may estimate anything
    return {
        "strategy": run.strategy,
        "method": run.method,
        "run": run.path.resolve().name,
        "seed": run.seed,
        "fold": run.fold,
        "judged": judged,
        "not_judged": judgement.why_not,
        "rounds": len(run.rounds),
        "planned_rounds": run.planned,
        "finished": run.end is not None,
        "ledger_head": run.head,
        "chain_verified": True,  # reading it would have failed
        "measurement": mine.measurement,
        "after_rounds": mine.after_rounds,
        "performance": asdict(fairness.performance(values, ddof=DDOF)) if values else None,
        "collaboration": collaboration(values, alone),
        "layers_averaged": layers,
        "estimates": estimates,
        "estimates_contributions": estimates != "",
        "personal": run.personal,
        "flagged": flagged,
        "sites": {
            site: {
                "score": asdict(numbers[site]) if site in numbers else None,
                "global_model": _asdict(run.final(site, shown, "global")),
                "gain": gained.get(site),
                "contribution": contributions[site][-1] if contributions.get(site) else None,
                "aggregation_weight": weights[site][-1] if weights.get(site) else None,
                "left_behind": behind.get(site),
            }
            for site in run.sites
        },
        "series": {
            "dice": dice_series(run),
            "weights": weights,
            "contributions": contributions,
            "free_rider_scores": suspicion,
        },
        "details": details_of(run),
        "valuations": [valuation for valuation in run.valuations if _is_current(valuation, run)],
    }


def _is_current(valuation: Mapping[str, Any], run: Run) -> bool:
    """Whether a valuation is of the model that the run ended with; it may have gone on since."""
    return run.end is not None and valuation.get("model", run.end.get("model")) == run.end.get(
        "model"
    )


def _focus(
    strategies: Mapping[str, Mapping[str, Any]],
    validation: Mapping[str, float | None],
    partners: Sequence[Sequence[Run]],
) -> str | None:
    """The federated strategy that the sentences speak of: best mean on validation cases, never
    chosen on test cases.

    Of those with a score of every site, where there are any: means over other sites are of other
    patients. Of several groups the first that has Standalone, else the first: the best of several
    seeds would be chosen by chance.
    """
    federated = [name for name, found in strategies.items() if found["strategy"] != "Standalone"]
    whole = [name for name in federated if strategies[name]["comparable"]] or federated
    candidates = [name for name in whole if strategies[name]["finished"]] or whole
    of_groups = [[run.name for run in members if run.name in candidates] for members in partners]
    with_yardstick = [
        names for names in of_groups if any(strategies[name]["standalone"] for name in names)
    ]
    candidates = next(iter(with_yardstick or filter(None, of_groups)), [])
    return max(
        candidates,
        key=lambda name: (validation[name] is not None, validation[name] or 0.0),
        default=None,
    )


def _site(site: str, runs: Sequence[Run]) -> dict[str, int | None]:
    """Cases and images per epoch, as the site last reported them; ``None`` where its runs differ."""
    found: dict[str, int | None] = {}
    for name, key in (("cases", "cases"), ("images", "samples")):
        reported = {_told(run, key).get(site) for run in runs} - {None}
        found[name] = reported.pop() if len(reported) == 1 else None
    return found


def _scored(site: str, scores: Mapping[str, Shown]) -> int | None:
    """Cases behind the site's shown Dice: the fewest of all runs."""
    known = [of.numbers[site].n for of in scores.values() if site in of.numbers]
    return min((n for n in known if n is not None), default=None)


def _told(run: Run, key: str) -> dict[str, int]:
    """What each site last told of its training data."""
    return {
        site: number
        for record in run.rounds
        for site, number in record.get(key, {}).items()
        if number
    }


def _differences(runs: Sequence[Run], scores: Mapping[str, Shown], subject: str) -> list[str]:
    """What makes the runs, all of one group, hard to compare."""
    found = []
    facts: dict[str, list[Any]] = {
        "sites": [run.sites for run in runs],
        "seeds": [run.start.get("seed") for run in runs],
        "numbers of rounds": [len(run.rounds) for run in runs],
        "initial models": [run.start.get("model") for run in runs],
        "training cases": [_told(run, "cases") for run in runs],
        "images per epoch": [_told(run, "samples") for run in runs],
        "groups": [run.start.get("groups") or {} for run in runs],
        "scored cases": [
            {site: number.n for site, number in scores[run.name].numbers.items()} for run in runs
        ],
    }
    for what, values in facts.items():
        if any(value != values[0] for value in values):
            found.append(
                f"{subject} have different {what}: their scores are not strictly comparable"
            )
    asked = [_asked(run.config) for run in runs if run.config]
    differ = sorted(
        {key for one in asked for key in one if any(one[key] != other.get(key) for other in asked)}
    )
    if differ:
        found.append(
            f"{subject} were trained with different settings ({', '.join(differ)}): compare them with care"
        )
    return found


def _asked(config: Mapping[str, Any]) -> dict[str, Any]:
    """What decides how a run's sites train, by a name that its user knows; data may lie elsewhere."""
    found = training_settings(config)
    of_sites = {
        f"{key} of {site}": value
        for site, given in found["sites"].items()
        for key, value in given.items()
    }
    return {**found["plain"], **found["files"], **found["overrides"], **of_sites}


def _structures(runs: Sequence[Run], shown: str) -> list[str]:
    """That some sites are scored on other structures than others: a mean over disc and cup is not
    one over the disc.
    """
    found: dict[tuple[str, ...], set[str]] = {}
    for run in runs:
        for site, models in ((run.end or {}).get("scores") or {}).items():
            score = (models.get("own") or {}).get(shown)
            if score is None:
                continue
            names = (
                tuple(sorted(set(score) - {"mean", "value", "stderr", "n"}))
                if isinstance(score, Mapping)
                else ()
            )
            found.setdefault(names, set()).add(site)
    if len(found) < 2:
        return []
    told = [
        f"{', '.join(sorted(sites))}: {', '.join(names) or 'one structure'}"
        for names, sites in sorted(found.items())
    ]
    return [
        f"A site's Dice is the mean over the structures that it labels, and these differ ({'; '.join(told)})"
    ]


def _no_tests(runs: Sequence[Run]) -> list[str]:
    """Sites whose test cases are used in training or validation, which therefore report no test
    score.
    """
    only_validation: set[str] = set()
    found = {}
    for run in runs:
        for site in run.sites:
            validation, training = run.final(site, IN_VALIDATION), run.final(site, IN_TRAINING)
            if validation is None or training is None:
                continue
            if validation.value == validation.n and training.value == 0:
                only_validation.add(site)
            else:
                found[site] = (
                    f"{site}: of its {validation.n} test cases, {training.value:g} are used in training and "
                    f"{validation.value:g} in validation, so it reports no test Dice"
                )
    lines = [found[site] for site in sorted(found)]
    if len(only_validation) == 1:
        lines += [
            f"{only_validation.pop()}: its evaluator scores its validation cases, so this is validation Dice"
        ]
    elif only_validation:
        names = ", ".join(sorted(only_validation))
        lines += [
            f"{names}: their evaluator scores their validation cases, so this is validation Dice"
        ]
    return lines


def _asdict(number: Number | None) -> dict[str, Any] | None:
    return None if number is None else asdict(number)
