# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""One row for each hospital: what the person who decides must know.

The rows are made of the report's numbers, so that they can be made again from ``report.json``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from monai_fairfl.report.advice import advice_for
from monai_fairfl.report.contribution import Contribution, Contributions
from monai_fairfl.report.contributions import contributions_of, contributor_of
from monai_fairfl.report.own_contributions import earlier_round
from monai_fairfl.report.results import is_comparison, runs_of
from monai_fairfl.report.touched import rounds_looked_at, touched_words
from monai_fairfl.report.verdicts import reason_of, verdict_of

BEST_MEAN = "which has the best mean Dice on validation cases"
"""Why a report is about a run, unless guards decide."""


@dataclass(frozen=True)
class Hospital:
    """One row; ``None`` where a number is not known.

    Args:
        verdict: a key of :data:`~monai_fairfl.report.verdicts.VERDICTS`.
        reason: behind what it is, in words; empty where the verdict is not about that.
        alone: Dice of the model that it trained alone.
        fedavg: Dice with FedAvg, where the row is about another strategy.
        federation: Dice of the model that it would use after the federation.
        n: cases behind this.
        difference: a :class:`~monai_fairfl.report.comparison.Gain`, and ``seeds``: the least and
            the largest difference over the seeds, where there are several.
        contribution: what it contributed; its words name the strategy where that is another one.
        weight: of its update in the last average that it was in.
        weight_round: of this average; ``None`` where it is the run's last round.
        guards: what guards and limits did with what it sent, in words.
        advice: what it should do, most urgent first.
    """

    verdict: str
    reason: str = ""
    alone: float | None = None
    fedavg: float | None = None
    federation: float | None = None
    n: int | None = None
    difference: Mapping[str, Any] | None = None
    contribution: Contribution | None = None
    weight: float | None = None
    weight_round: int | None = None
    guards: Sequence[str] = ()
    advice: Sequence[str] = ()


@dataclass(frozen=True)
class Decision:
    """The first screen of the report.

    Args:
        strategy: that it is about; ``None`` where no federation ran.
        fedavg: the run of FedAvg beside it; ``None`` where there is none.
        why: this one, in a sentence.
        contributions: where the contributions come from, which may be another strategy, or why
            there are none.
        hospitals: name -> its row.
    """

    strategy: str | None
    fedavg: str | None
    why: str
    contributions: Contributions
    hospitals: dict[str, Hospital]


def decision_of(report: Mapping[str, Any], name: str | None) -> Decision:
    """The rows of all hospitals about one strategy.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returned.
        name: of the strategy, ``report["focus"]`` as a rule; ``None`` without one.
    """
    contributions = contributions_of(report, contributor_of(report, name))
    hospitals = {}
    for site in report["sites"]:
        hospitals[site] = _hospital(report, name, site, contributions)
    fedavg = None if name is None else report["strategies"][name]["fedavg"]
    return Decision(name, fedavg, why_this_one(report, name), contributions, hospitals)


def why_this_one(report: Mapping[str, Any], name: str | None) -> str:
    """Why the report is about this strategy."""
    if name is None:
        return (
            "No federation is in this report, so there is nothing to compare with training alone."
        )
    federated = []
    for group in report["compared"]:
        if name not in group:
            continue
        for other in group:
            if report["strategies"][other]["strategy"] != "Standalone":
                federated.append(other)
    several = " of this data, split and seed" if len(report["compared"]) > 1 else ""
    if len(federated) < 2:
        return f"This is about {name}, the only federation{several}."

    reason = BEST_MEAN
    doubted = report["doubted"]
    guarded = [other for other in federated if report["strategies"][other]["guards"]]
    if doubted and name in guarded and len(guarded) < len(federated):
        reason = (
            "because guards or limits often acted in it: the runs without guards accepted the same "
            "updates unseen, or were not attacked"
        )
    means = []
    chosen = report["strategies"][name]
    for other in federated:
        found = report["strategies"][other]
        # An unfinished run, or one of fewer sites, could not be chosen.
        is_alike = all(found[key] == chosen[key] for key in ("comparable", "finished"))
        if is_alike and found["validation_mean"] is not None:
            means.append(f"{other} {found['validation_mean']:.3f}")
    if reason == BEST_MEAN and not means:
        reason = "the first of them: no run has scores on validation cases"
    shown = f" Validation Dice: {', '.join(means)}." if means else ""
    if means and doubted:
        shown += f" It excludes {', '.join(doubted)}, whose own scores may be wrong."
    return f"This is about {name}{several}, {reason}.{shown}"


def _hospital(
    report: Mapping[str, Any], name: str | None, site: str, contributions: Contributions
) -> Hospital:
    """The row of one hospital."""
    verdict = verdict_of(report, name, site)
    contribution = contributions.sites.get(site)
    advice = advice_for(report, name, site, verdict, contribution, contributions.strategy)
    if contribution is not None and name not in (None, contributions.strategy):
        # The row is about another strategy, which may weigh otherwise.
        contribution = _of_another(contributions.strategy, contribution)
    alone = _dice_of(report, _standalone_of(report, name), site)
    if name is None or site not in report["strategies"][name]["sites"]:
        return Hospital(verdict, alone=alone, contribution=contribution, advice=advice)

    strategy = report["strategies"][name]
    result = strategy["sites"][site]
    score = result["score"] or {"value": None, "n": None}
    weight = None
    weight_round = None
    newest = result["aggregation_weight"]
    if newest is not None:
        weight = newest["value"]
        weight_round = earlier_round(strategy, newest)
    difference = None
    if result["gain"] is not None:
        difference = {**result["gain"], "seeds": _over_seeds(report, name, site)}
    return Hospital(
        verdict=verdict,
        reason=reason_of(report, name, site),
        alone=alone,
        fedavg=_dice_of(report, strategy["fedavg"], site),
        federation=score["value"],
        n=score["n"],
        difference=difference,
        contribution=contribution,
        weight=weight,
        weight_round=weight_round,
        guards=touched_words(strategy["touched"].get(site), rounds_looked_at(strategy)),
        advice=advice,
    )


def _of_another(strategy: str | None, contribution: Contribution) -> Contribution:
    """A contribution whose words name the strategy that it is of.

    >>> _of_another("FedCE", Contribution.unknown("no weight")).words
    'with FedCE: no weight'
    """
    if not contribution.words:
        return contribution
    return replace(contribution, words=f"with {strategy}: {contribution.words}")


def _standalone_of(report: Mapping[str, Any], name: str | None) -> str | None:
    """The run of training alone against which ``name`` is measured."""
    found: str | None = report["standalone"]
    if name is not None:
        found = report["strategies"][name]["standalone"]
    return found


def _dice_of(report: Mapping[str, Any], name: str | None, site: str) -> float | None:
    """What the site reaches in a run."""
    if name is None:
        return None
    score = report["strategies"][name]["sites"].get(site, {}).get("score")
    return None if score is None else float(score["value"])


def _over_seeds(report: Mapping[str, Any], name: str, site: str) -> list[float] | None:
    """The least and the largest gain over the seeds, ``None`` for one seed.

    In a comparison they are of the cases of its rows. Else each seed's is the mean over its folds.
    """
    if is_comparison(report):
        gains = report["strategies"][name]["sites"][site]["gain_of_seeds"]
        return [min(gains), max(gains)] if len(gains) > 1 else None
    runs = runs_of(report)
    values: dict[str, list[float]] = {}
    for repeat in report["strategies"][name]["repeats"]:
        other = runs[repeat]
        gain = other["sites"].get(site, {}).get("gain")
        if gain is not None:
            values.setdefault(str(other["seed"]), []).append(gain["value"])
    if len(values) < 2:
        return None
    of_seeds = [mean(found) for found in values.values()]
    return [min(of_seeds), max(of_seeds)]
