# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Who contributed what by a method's own contributions, or by its weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import Any

from monai_fairfl.report.comparison import half_width
from monai_fairfl.report.contribution import Contribution, Contributions, images_among
from monai_fairfl.report.credit import own_rule, shares_of, when_words
from monai_fairfl.report.results import is_comparison, runs_of

WEIGHT_BY = "Weight by"
"""How the source begins where contributions are nothing but weights."""

VERBS = {"weight": "weighs", "contribution": "carries"}
"""What a hospital does with its share."""

SAME = 1e-9
"""A contribution that is no further from the weight than this is the weight."""


def by_method(report: Mapping[str, Any], name: str, images: Mapping[str, float]) -> Contributions:
    """What the method itself estimates.

    The range is over seeds or folds where the method ran with several, and else over rounds.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returned.
        name: of the strategy.
        images: hospital -> its share of all images.
    """
    strategy = report["strategies"][name]
    repeats = _repeats_of(report, name)
    only_weights = is_weight(strategy)
    what = "weight" if only_weights else "contribution"
    sites = {}
    for site in strategy["sites"]:
        if repeats.number:
            sites[site] = _over_repeats(strategy, site, repeats, images, what)
        elif strategy["sites"][site]["contribution"] is not None:
            sites[site] = _in_its_round(strategy, site, images, what)

    source = f"{WEIGHT_BY} {name}" if only_weights else f"By {name}"
    words = _meaning_words(name, strategy) + _over_words(sites)
    shown = any(found.share is not None for found in sites.values()) and not repeats.number
    counted = own_shares(strategy)
    if shown and (len(_rounds_of(strategy)) > 1 or len(counted) < len(strategy["sites"])):
        words += " Shares are among the hospitals that have a value in the same round."
    return Contributions(name, source, words, sites)


def _meaning_words(name: str, strategy: Mapping[str, Any]) -> str:
    """What a method's contributions are, and of which rounds these are."""
    when = when_words(_rounds_of(strategy), strategy["rounds"])
    if is_weight(strategy):
        return (
            f"{name} uses its own weights as contributions: how much each hospital's update counts "
            f"in the average, in {when}. They say whom {name} favours. They do not say "
            "what a hospital is worth to the others: a hospital that does not resemble the others, "
            "or whose labels are wrong, also gets a high weight."
        )
    return f"{name} has contributions of its own; these are from {when}."


def _rounds_of(strategy: Mapping[str, Any]) -> set[int]:
    """The rounds of the contributions that count."""
    return {strategy["sites"][site]["contribution"]["round"] for site in own_shares(strategy)}


def own_shares(strategy: Mapping[str, Any]) -> Mapping[str, float]:
    """hospital -> share by the method's own contributions, of those whose last one counts.

    Args:
        strategy: one of ``report["strategies"]``.
    """
    for rule in strategy["credit"]:
        if rule["name"] == own_rule(strategy["method"]):
            shares: Mapping[str, float] = rule["shares"]
            return shares
    return {}


def is_weight(strategy: Mapping[str, Any]) -> bool:
    """Whether a method's contributions are nothing but its weights, as FedCE's are.

    Args:
        strategy: one of ``report["strategies"]``.
    """
    series = strategy["series"]
    known = False
    for site, contributions in series["contributions"].items():
        weights = {point["round"]: point["value"] for point in series["weights"].get(site) or []}
        for point in contributions:
            weight = weights.get(point["round"])
            if weight is None or abs(point["value"] - weight) > SAME:
                return False
            known = True
    return known


def values_of_round(strategy: Mapping[str, Any], number: int) -> dict[str, float]:
    """hospital -> contribution in a round, of those that have one in it.

    Args:
        strategy: one of ``report["strategies"]``.
        number: of the round.
    """
    values = {}
    for site, points in strategy["series"]["contributions"].items():
        # From the end: mostly the last round is asked for.
        for point in reversed(points):
            if point["round"] == number:
                values[site] = point["value"]
            if point["round"] <= number:
                break
    return values


def earlier_round(strategy: Mapping[str, Any], point: Mapping[str, Any]) -> int | None:
    """The round of a hospital's newest number; ``None`` where that is the run's last round.

    Args:
        strategy: one of ``report["strategies"]``.
        point: of a weight or a contribution.
    """
    number: int = point["round"]
    return number if number < strategy["rounds"] - 1 else None


@dataclass(frozen=True)
class _Repeats:
    """Contributions of several trainings of a strategy.

    Args:
        values: hospital -> its contribution of each seed in which it counts, or of each fold.
        number: of the seeds or folds; 0 where there is one training.
        unit: what they are.
    """

    values: Mapping[str, Sequence[float]]
    number: int
    unit: str = "seeds"


def _repeats_of(report: Mapping[str, Any], name: str) -> _Repeats:
    """The contributions of each seed; in a comparison of one seed, those of each fold.

    Args:
        report: whose ``"runs"``, where it has any, are the trainings behind its strategies. With
            several seeds and folds, a seed's contribution is the mean over its folds.
        name: of the strategy.
    """
    runs = runs_of(report)
    names = report["strategies"][name]["repeats"]
    values: dict[str, dict[str, list[float]]] = {}
    for repeat in names:
        other = runs[repeat]
        of_seed = values.setdefault(str(other["seed"]), {})
        for site in own_shares(other):
            value = other["sites"][site]["contribution"]["value"]
            of_seed.setdefault(site, []).append(value)
    if len(names) > 1 and len(values) == 1 and is_comparison(report):
        [of_each_fold] = values.values()
        return _Repeats(of_each_fold, len(names), "folds")
    if len(values) < 2:
        return _Repeats({}, 0)
    found: dict[str, list[float]] = {}
    for of_seed in values.values():
        for site, of_folds in of_seed.items():
            found.setdefault(site, []).append(mean(of_folds))
    return _Repeats(found, len(values))


def _in_its_round(
    strategy: Mapping[str, Any], site: str, images: Mapping[str, float], what: str
) -> Contribution:
    """A hospital's newest contribution beside those of the same round; the range is over rounds."""
    newest = strategy["sites"][site]["contribution"]
    values = [point["value"] for point in strategy["series"]["contributions"][site]]
    about: dict[str, Any] = {}
    if len(values) > 1:
        about = {"least": min(values), "most": max(values), "range_of": "rounds"}
    together = values_of_round(strategy, newest["round"])
    found = _among(strategy, site, together, images, what, **about)
    if site not in own_shares(strategy):
        words = f"no {what} after round {newest['round']}"
        found = replace(found, share=None, ratio=None, words=words)
    return replace(found, round=earlier_round(strategy, newest))


def _over_repeats(
    strategy: Mapping[str, Any],
    site: str,
    repeats: _Repeats,
    images: Mapping[str, float],
    what: str,
) -> Contribution:
    """The mean over seeds with its 95 % interval, or the mean over folds with their range.

    Folds share training cases, so that they give no interval. One value has neither. Where the
    hospital counts in some only, the words say in how many.
    """
    all_repeats = f"{repeats.number} {repeats.unit}"
    if site not in repeats.values:
        return Contribution.unknown(f"no {what} that counts in any of {all_repeats}")
    values = repeats.values[site]
    count = len(values)
    means = {other: mean(of_other) for other, of_other in repeats.values.items()}
    about: dict[str, Any] = {}
    if count > 1:
        about = {"least": min(values), "most": max(values), "range_of": f"{count} {repeats.unit}"}
    if count > 1 and repeats.unit == "seeds":
        width = half_width(stdev(values) / math.sqrt(count), count) or 0.0
        about |= {"least": means[site] - width, "most": means[site] + width, "interval": True}
    found = _among(strategy, site, means, images, what, **about)
    if count < repeats.number:
        some = f"in {count} of {all_repeats}"
        found = replace(found, words=f"{found.words}, {some}" if found.words else some)
    return found


def _among(
    strategy: Mapping[str, Any],
    site: str,
    together: Mapping[str, float],
    images: Mapping[str, float],
    what: str,
    **about: Any,
) -> Contribution:
    """A hospital's contribution, and its share among some hospitals where these can have shares.

    Args:
        strategy: that estimates.
        site: one of ``together``.
        together: hospital -> value.
        images: hospital -> its share of all images.
        what: a key of :data:`VERBS`.
        about: the range, as for :meth:`Contribution.of_value`.
    """
    share = None
    if strategy["additive"] or abs(sum(together.values()) - 1) < 0.02:
        share = shares_of(together)[site]
    of_images = images_among(images, together).get(site)
    return Contribution.of_value(
        together[site], share, of_images, len(together), verb=VERBS[what], **about
    )


def _over_words(sites: Mapping[str, Contribution]) -> str:
    """What the ranges are over; empty where there are none."""
    ranges = {found.range_of for found in sites.values() if found.range_of}
    of_repeats = " or ".join(sorted(ranges - {"rounds"}))
    if any(found.interval for found in sites.values()):
        return f" The mean and the 95 % interval are over {of_repeats}."
    if of_repeats:
        return f" The mean and the range are over {of_repeats}; it is not a confidence interval."
    if ranges:
        return " The range is over the rounds; it is not a confidence interval."
    return ""
