# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What makes runs hard to compare: the warnings at the top of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from monai_fairfl.messages import IN_TRAINING, IN_VALIDATION
from monai_fairfl.report.events import Event
from monai_fairfl.report.partners import names_of
from monai_fairfl.report.run import Run
from monai_fairfl.report.scores import (
    BOUNDARY,
    TESTED,
    Scores,
    empty_labels,
    without_validation_score,
)
from monai_fairfl.report.series import SUSPICIOUS
from monai_fairfl.report.touched import Touched, directions
from monai_fairfl.report.valuations import is_current
from monai_fairfl.run.training_config import training_settings
from monai_fairfl.utils.words import count_words
from monai_fairfl.valuation.free_riders import EVIDENCE

FIELDS_OF_A_NUMBER = {"mean", "value", "stderr", "n"}


def differences_of_groups(
    groups: Sequence[Sequence[Run]], scores: Mapping[str, Scores]
) -> list[str]:
    """What the runs of each group do not have in common.

    Args:
        groups: of runs that may be compared.
        scores: name of a run -> the scores that are shown of it.
    """
    warnings = []
    for group in groups:
        subject = "The runs" if len(groups) == 1 else names_of(group)
        for fact in _different_facts(group, scores):
            warnings.append(
                f"{subject} differ in their {fact}: their scores are not strictly comparable"
            )
        settings = _different_settings(group)
        if settings:
            warnings.append(
                f"{subject} were trained with different settings ({', '.join(settings)}): "
                f"compare them with care"
            )
    return warnings


def _different_facts(runs: Sequence[Run], scores: Mapping[str, Scores]) -> list[str]:
    """What the runs' ledgers have different, in words."""
    facts: dict[str, list[Any]] = {
        "sites": [run.sites for run in runs],
        "seeds": [run.seed for run in runs],
        "numbers of rounds": [len(run.rounds) for run in runs],
        "initial models": [run.start.get("model") for run in runs],
        "training cases": [run.last_reported("cases") for run in runs],
        "images per epoch": [run.last_reported("samples") for run in runs],
        "groups": [run.groups for run in runs],
        "scored cases": [_case_counts(scores[run.name]) for run in runs],
    }
    different = []
    for fact, values in facts.items():
        if any(value != values[0] for value in values):
            different.append(fact)
    return different


def _case_counts(scores: Scores) -> dict[str, int | None]:
    """site -> cases behind its score."""
    return {site: number.n for site, number in scores.by_site.items()}


def _different_settings(runs: Sequence[Run]) -> list[str]:
    """Names of the settings of the training in which the runs differ, sorted.

    Runs without a ``settings.json`` are left out.
    """
    recorded = [_settings(run.config) for run in runs if run.config]
    different = set()
    for settings in recorded:
        for name, value in settings.items():
            if any(value != other.get(name) for other in recorded):
                different.add(name)
    return sorted(different)


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """What decides how a run's sites train, by names that its user knows.

    The folders of the data are left out: the same data may lie elsewhere.
    """
    sections = training_settings(config)
    settings = {**sections["plain"], **sections["overrides"]}
    settings.update({**sections["files"], **sections["scoring"]})
    for site, overrides in sections["sites"].items():
        for name, value in overrides.items():
            settings[f"{name} of {site}"] = value
    return settings


def different_structures(runs: Sequence[Run], measurement: str) -> list[str]:
    """That some sites are scored on other structures than others.

    A mean over disc and cup is not comparable with a score of the disc.

    Args:
        runs: of the report.
        measurement: the one that is shown.
    """
    sites_of: dict[tuple[str, ...], set[str]] = {}
    for run in runs:
        for site, models in run.closing_scores.items():
            score = (models.get("own") or {}).get(measurement)
            if score is not None:
                sites_of.setdefault(_structures(score), set()).add(site)
    if len(sites_of) < 2:
        return []

    labelled = []
    for structures, sites in sorted(sites_of.items()):
        names = ", ".join(structures) or "one structure"
        labelled.append(f"{', '.join(sorted(sites))}: {names}")
    return [
        f"A site's Dice is the mean over the structures that it labels, and the sites label "
        f"different ones ({'; '.join(labelled)})"
    ]


def _structures(score: Any) -> tuple[str, ...]:
    """The structures of a closing score, sorted; empty where it is a single number."""
    if not isinstance(score, Mapping):
        return ()
    return tuple(sorted(set(score) - FIELDS_OF_A_NUMBER))


def sites_without_validation_scores(groups: Sequence[Sequence[Run]]) -> list[str]:
    """Sites that count in no mean on validation cases, since a run has no such score of theirs.

    Args:
        groups: of runs that may be compared.
    """
    warnings = []
    for group in groups:
        for site, names in without_validation_score(group).items():
            warnings.append(
                f"The mean Dice on validation cases is without {site}, which has none in "
                f"{', '.join(names)}"
            )
    return warnings


def sites_without_test_scores(runs: Sequence[Run]) -> list[str]:
    """Sites that report no test score, and why.

    They use their test cases in training or validation, too.
    """
    found = {}
    for run in runs:
        for site in run.sites:
            validation = run.closing(site, IN_VALIDATION)
            training = run.closing(site, IN_TRAINING)
            if validation is None or training is None:
                continue
            found[site] = (
                f"{site} reports no test Dice: of its {validation.n} test cases, it also uses "
                f"{training.value:g} in training and {validation.value:g} in validation"
            )
            if validation.value == validation.n and training.value == 0:
                found[site] = (
                    f"{site}: its evaluator scores its validation cases, so this is validation Dice"
                )
    return [found[site] for site in sorted(found)]


def sites_with_empty_labels(runs: Sequence[Run]) -> list[str]:
    """Sites with test cases that have a surface distance and no Dice: their labels are empty."""
    warnings = {}
    for run in runs:
        for site in run.sites:
            score = run.closing(site, TESTED)
            boundary = run.closing(site, BOUNDARY)
            if boundary is None:
                continue
            empty = empty_labels(None if score is None else score.n, boundary.n)
            if empty:
                warnings[site] = f"{site}: {empty} of {boundary.n} test labels are empty: no Dice"
    return [warnings[site] for site in sorted(warnings)]


def outdated_valuations(run: Run) -> list[str]:
    """Valuations of another end of the run, which are not shown."""
    warnings = []
    for valuation in run.valuations:
        if not is_current(valuation, run):
            warnings.append(
                f"{run.name}: {valuation['name']} is not shown, because the run has trained more "
                f"rounds since; value the run again, with --resume True"
            )
    return warnings


def suspicious_sites(
    run: Run, flagged: Mapping[str, int], free_riding: Sequence[Event]
) -> list[str]:
    """Sites whose free-rider score stands out, or whose updates no training of theirs made.

    Args:
        run: in which they do.
        flagged: site -> round of its first flag.
        free_riding: what guards found in the run's updates.
    """
    warnings = []
    for site, number in flagged.items():
        warnings.append(
            f"In {run.name}, the free-rider score of {site} was {SUSPICIOUS}, the third of them "
            f"round {number}. Honest sites that are unlike the others score high, too: this is a "
            f"reason to ask, not a proof"
        )
    rounds_of: dict[tuple[str, str], list[int | str]] = {}
    for event in free_riding:
        rounds_of.setdefault((event.site, event.kind), []).append(event.round)
    for (site, guard), rounds in rounds_of.items():
        warnings.append(
            f"In {run.name}, in {count_words(len(rounds), 'round')}, first in round {rounds[0]}, "
            f"the update of {site} {EVIDENCE[guard]}"
        )
    return warnings


def limited_reports(run: Run, touched: Mapping[str, Touched]) -> list[str]:
    """Sites whose own reports a limit changed: false reports, or those of an unusual site.

    Args:
        run: in which it did.
        touched: site -> what guards and limits did with it.
    """
    limited = []
    for site, found in touched.items():
        if found.limited:
            rounds = f"{len(found.limited)} of {len(run.rounds)} rounds"
            limited.append(f"{site} in {rounds} ({directions(asdict(found))})")
    if not limited:
        return []
    return [
        f"In {run.name}, what a site reported of itself was far from the others' reports and was "
        f"limited: {', '.join(limited)}. A limit acts on false reports and on the honest reports "
        f"of unusual sites alike: ask these sites how they validate"
    ]
