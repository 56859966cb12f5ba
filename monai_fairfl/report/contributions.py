# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Who contributed what: an answer for each hospital, in numbers and words, or why there is none.

Several sources may have one. What other sites or the server measured goes before what was computed
afterwards, and this before what the method itself estimates.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import Any

from monai_fairfl.report.comparison import half_width
from monai_fairfl.report.credit import own_rule, shares_of, when_words
from monai_fairfl.report.valuations import decay_of
from monai_fairfl.statistics.agreement import together_words

ADDITIVE = ("share", "Shapley value", "Dice lost")
"""How the texts of contributions begin whose shares can be compared with shares of the images."""

LEAST_RATIO = 0.07
"""A share below this part of the images' share is next to nothing."""

WEIGHT_BY = "Weight by"
"""How the source begins where contributions are nothing but weights."""

UNDIVIDED = "its value is also that of hospitals that a guard counted as one with it"
"""Words of a value of several hospitals; the page of one hospital names no other."""

ELSEWHERE = "its value lacks the rounds in which a guard counted it as one with others"
"""Words of the value of one of these others."""

SAME = 1e-9
"""A contribution that is no further from the weight than this is the weight."""

COARSE = "too coarse to tell: judges or rounds disagree on the sign"
"""Words of a value whose sign is not known."""

JUDGED = (
    "Only the updates of the judged rounds are valued: a hospital that reports false scores may "
    "still send useful updates, and an honest but unusual hospital may get a negative value. With "
    "few validation cases at each judge, and few judged rounds, the number is coarse."
)
"""How far the value by judges goes."""

NEAR = 0.1
"""By which part a ratio may differ from 1 and still be called the same."""

NORMAL = 1.96
"""Standard errors on each side of a 95 % interval."""

TIMES = {
    0.1: "a tenth of",
    0.2: "a fifth of",
    0.25: "a quarter of",
    1 / 3: "a third of",
    0.5: "half",
    2 / 3: "two thirds of",
    0.75: "three quarters of",
    0.8: "four fifths of",
    1.25: "one and a quarter times",
    1.5: "one and a half times",
    2.0: "twice",
    2.5: "two and a half times",
    3.0: "three times",
    4.0: "four times",
    5.0: "five times",
    6.0: "six times",
    7.0: "seven times",
    8.0: "eight times",
    9.0: "nine times",
    10.0: "ten times",
}
"""Ratio -> how it is called."""


@dataclass(frozen=True)
class Contribution:
    """What one hospital contributed.

    Args:
        value: in the unit of the source; ``None`` where it has none.
        share: of the sum over the hospitals, negative values counted as 0; ``None`` without one.
            Of a single round's values it is over the hospitals that have one in this round.
        images: its share of the images of the same hospitals; ``None`` where it is not known.
        ratio: ``share`` over ``images``, or over an even share; ``None`` where it means nothing.
        least: smallest value, see ``range_of``; ``None`` without a range.
        most: largest one.
        range_of: what the range is over: rounds, judges, or seeds.
        interval: whether the range is a 95 % interval, which only repeats give.
        words: for a reader.
        round: that the value is of; ``None`` where it is the run's last, or of no single round.
    """

    value: float | None
    share: float | None
    images: float | None
    ratio: float | None
    least: float | None
    most: float | None
    range_of: str
    interval: bool
    words: str
    round: int | None = None


@dataclass(frozen=True)
class Contributions:
    """What a run says of all hospitals.

    Args:
        strategy: whose numbers they are; ``None``: there is no answer.
        source: where the numbers come from, as a column's title; ``None``: there is no answer.
        meaning: what they are, or why there are none and what would give them, in sentences.
        sites: hospital -> its contribution; empty without an answer.
        together: which hospitals count as one, in sentences that name them: for the report on all
            hospitals, and not for the page of one.
    """

    strategy: str | None
    source: str | None
    meaning: str
    sites: dict[str, Contribution]
    together: str = ""


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


def contributions_of(report: Mapping[str, Any], name: str | None) -> Contributions:
    """Who contributed what to the run ``name``.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returned.
        name: of the federated strategy; ``None`` without one.
    """
    if name is None:
        return Contributions(
            None, None, "No hospital contributed to another: each trained alone.", {}
        )
    strategy = report["strategies"][name]
    rules = {rule["name"]: rule for rule in strategy["credit"]}

    for title in ("Judged by the other sites", "Judged by the server"):
        if title in rules and any(_is_judged(item) for item in rules[title]["judged"].values()):
            return _by_judges(name, strategy, rules[title], rules["Images"]["shares"])
    # With a decay, a value is no longer in Dice: one without comes first.
    for valuation in sorted(strategy["valuations"], key=lambda each: decay_of(each) is not None):
        if valuation["name"] in rules:
            return _by_valuation(name, strategy, valuation, rules)
    if own_shares(strategy):
        return _by_method(report, name, rules["Images"]["shares"])
    return Contributions(None, None, _why_none(strategy), {})


def contributor_of(report: Mapping[str, Any], name: str | None) -> str | None:
    """The strategy that says who contributed what: ``name`` itself where it does.

    Else it is the one that validates best of those that do, on the same data, split and seed; where
    none does, it is ``name``. Which model one uses, and what says who contributed, are two
    questions.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returned.
        name: of the strategy that the report is about; ``None`` without one.
    """
    if name is None or contributions_of(report, name).source is not None:
        return name
    best = name
    best_mean = -math.inf
    for group in report["compared"]:
        if name not in group:
            continue
        for other in group:
            found = report["strategies"][other]
            mean_dice = found["validation_mean"]
            if mean_dice is None:
                mean_dice = -math.inf
            answers = found["strategy"] != "Standalone"
            answers = answers and contributions_of(report, other).source is not None
            if answers and (best == name or mean_dice > best_mean):
                best = other
                best_mean = mean_dice
    return best


def ratio_words(ratio: float, of: str = "its share of the images") -> str:
    """How much more than its part a hospital carries.

    >>> ratio_words(2.1), ratio_words(0.95)
    ('twice its share of the images', 'its share of the images')
    >>> ratio_words(0.01), ratio_words(14.2)
    ('next to nothing', '14 times its share of the images')
    """
    if ratio < LEAST_RATIO:
        return "next to nothing"
    if abs(ratio - 1) <= NEAR:
        return of
    if ratio > 10.5:
        return f"{ratio:.0f} times {of}"
    nearest = min(TIMES, key=lambda times: abs(math.log(ratio / times)))
    return f"{TIMES[nearest]} {of}"


def range_words(contribution: Mapping[str, Any]) -> str:
    """The number of a contribution with its range, which is named as what it is.

    >>> found = {"value": 0.54, "share": 0.54, "least": 0.37, "most": 0.54, "range_of": "rounds"}
    >>> range_words({**found, "interval": False})
    '0.54; over rounds 0.37 to 0.54'
    >>> range_words({**found, "interval": False, "round": 4})
    '0.54 in round 4; over rounds 0.37 to 0.54'
    >>> range_words({**found, "interval": True, "range_of": "3 seeds"})
    '0.54 (95 % interval over 3 seeds: 0.37 to 0.54)'
    """
    is_share = contribution["share"] is not None
    is_share = is_share and abs(contribution["share"] - contribution["value"]) < 0.05
    is_share = is_share and not contribution["range_of"].startswith("judge")
    digits = 2 if is_share else 4
    # Adding 0.0 turns -0.0 into 0.0.
    value = f"{round(contribution['value'], digits) + 0.0:.{digits}f}"
    if contribution.get("round") is not None:
        value += f" in round {contribution['round']}"
    if contribution["least"] is None or contribution["most"] is None:
        return value
    ends = f"{contribution['least']:.{digits}f} to {contribution['most']:.{digits}f}"
    if contribution["interval"]:
        return f"{value} (95 % interval over {contribution['range_of']}: {ends})"
    return f"{value}; over {contribution['range_of']} {ends}"


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


def _is_judged(credit: Mapping[str, Any]) -> bool:
    return credit["value"] is not None


def _by_judges(
    name: str, strategy: Mapping[str, Any], rule: Mapping[str, Any], images: Mapping[str, float]
) -> Contributions:
    """What others measured; the range is that of leaving out one judge, or one round."""
    range_of = "judges, each left out once"
    if rule["name"] == "Judged by the server":
        range_of = "judged rounds, each left out once"
    images = _images_among(images, rule["shares"]) if rule["by_images"] else {}
    sites = {}
    for site in strategy["sites"]:
        credit = rule["judged"].get(site)
        if credit is None:
            continue
        if credit["value"] is None:
            sites[site] = _unknown(f"not judged: {credit['reason']}")
            continue
        found = _contribution(
            credit["value"],
            rule["shares"].get(site),
            images.get(site),
            len(rule["shares"]),
            least=credit["least"],
            most=credit["most"],
            range_of=range_of,
        )
        ranges = [(credit["least"], credit["most"]), rule["by_round"].get(site)]
        if any(_holds_zero(ends) for ends in ranges):
            found = replace(found, ratio=None, words=COARSE)
        sites[site] = found
    words = f"For {name}: {rule['meaning']} The range is over {range_of}. {JUDGED}"
    return Contributions(name, rule["name"], words, sites)


def _holds_zero(ends: Sequence[float | None] | None) -> bool:
    """Whether judges, or rounds, do not even agree on the sign of a value."""
    if ends is None:
        return False
    least, most = ends
    return least is not None and most is not None and least <= 0 <= most


def _by_valuation(
    name: str,
    strategy: Mapping[str, Any],
    valuation: Mapping[str, Any],
    rules: Mapping[str, Any],
) -> Contributions:
    """What a valuation computed afterwards."""
    rule = rules[valuation["name"]]
    images = _images_among(rules["Images"]["shares"], valuation["values"])
    # Of hospitals that count as one, the first has the value of all in these rounds.
    together: Mapping[str, Sequence[str]] = valuation.get("together") or {}
    others = {site for of_first in together.values() for site in of_first}
    sites = {}
    for site in strategy["sites"]:
        value = valuation["values"].get(site)
        if value is None:
            continue
        share = rule["shares"].get(site)
        found = _contribution(value["value"], share, images.get(site), len(rule["shares"]))
        if value["value"] < 0:
            words = _negative_words(valuation, value["value"], value.get("stderr"))
            found = replace(found, words=words)
        if together:
            # Shares of the images are of each hospital alone, and so not to be compared.
            words = found.words if value["value"] < 0 else ""
            if site in together:
                words = UNDIVIDED
            elif site in others:
                words = ELSEWHERE
            found = replace(found, images=None, ratio=None, words=words)
        sites[site] = found
    words = f"For {name}: {rule['meaning']}"
    sentences = " ".join(f"{sentence}." for sentence in together_words(together))
    return Contributions(name, "Valued afterwards", words, sites, sentences)


def _negative_words(valuation: Mapping[str, Any], value: float, stderr: float | None) -> str:
    """What a negative value of a valuation says, and whether it is apart from 0."""
    values = [abs(found["value"]) for found in valuation["values"].values()]
    if stderr is not None and abs(value) <= NORMAL * stderr:
        return "its value is negative, but its error includes 0: next to nothing"
    if abs(value) <= LEAST_RATIO * mean(values):
        return "next to nothing"
    if valuation["method"] == "leave_one_out":
        return "its value is negative: the others do better without it"
    return "its value is negative: on average, groups of the others are worse with it"


def _by_method(report: Mapping[str, Any], name: str, images: Mapping[str, float]) -> Contributions:
    """What the method itself estimates; an interval over seeds where it ran with several."""
    strategy = report["strategies"][name]
    counted = own_shares(strategy)
    repeats = _repeats_of(report, name)
    only_weights = is_weight(strategy)
    verb, what = ("weighs", "weight") if only_weights else ("carries", "contribution")
    sites = {}
    for site, result in strategy["sites"].items():
        newest = result["contribution"]
        if site in repeats.values:
            sites[site] = _over_repeats(strategy, site, repeats, images, verb)
            continue
        if repeats.number:
            words = f"no {what} that counts in any of {repeats.number} {repeats.unit}"
            sites[site] = _unknown(words)
            continue
        if newest is None:
            continue
        found = _in_its_round(strategy, site, images, verb)
        if site not in counted:
            words = f"no {what} after round {newest['round']}"
            found = replace(found, share=None, ratio=None, words=words)
        sites[site] = found

    unit = strategy["estimates"] or ""
    rounds = {strategy["sites"][site]["contribution"]["round"] for site in counted}
    when = when_words(rounds, strategy["rounds"])
    over = _over_words(sites)
    has_shares = any(found.share is not None for found in sites.values()) and not repeats.number
    if has_shares and (len(rounds) > 1 or len(counted) < len(strategy["sites"])):
        over += " Shares are among the hospitals that have a value in the same round."
    if only_weights:
        words = (
            f"{name} uses its own weights as contributions: how much each hospital's update counts "
            f"in the average, in {when}. They say whom {name} favours. They do not say "
            "what a hospital is worth to the others: a hospital that does not resemble the others, "
            "or whose labels are wrong, also gets a high weight."
        )
        return Contributions(name, f"{WEIGHT_BY} {name}", f"{words}{over}", sites)
    words = f"{name} estimates contributions; these are from {when}: {unit}."
    if not unit:
        words = f"{name} has contributions of its own; these are from {when}."
    return Contributions(name, f"By {name}", f"{words}{over}", sites)


def _in_its_round(
    strategy: Mapping[str, Any], site: str, images: Mapping[str, float], verb: str
) -> Contribution:
    """A hospital's newest contribution beside those of the same round; the range is over rounds."""
    newest = strategy["sites"][site]["contribution"]
    values = [point["value"] for point in strategy["series"]["contributions"][site]]
    about: dict[str, Any] = {}
    if len(values) > 1:
        about = {"least": min(values), "most": max(values), "range_of": "rounds"}
    together = values_of_round(strategy, newest["round"])
    found = _among(strategy, site, together, images, verb=verb, **about)
    return replace(found, round=earlier_round(strategy, newest))


def _over_repeats(
    strategy: Mapping[str, Any],
    site: str,
    repeats: _Repeats,
    images: Mapping[str, float],
    verb: str,
) -> Contribution:
    """The mean over seeds with its 95 % interval, or the mean over folds with their range.

    Folds share training cases, so that they give no interval. One value has neither. Where the
    hospital counts in some only, the words say in how many.
    """
    values = repeats.values[site]
    count = len(values)
    means = {other: mean(of_other) for other, of_other in repeats.values.items()}
    about: dict[str, Any] = {}
    if count > 1:
        about = {"least": min(values), "most": max(values), "range_of": f"{count} {repeats.unit}"}
    if count > 1 and repeats.unit == "seeds":
        width = half_width(stdev(values) / math.sqrt(count), count) or 0.0
        about |= {"least": means[site] - width, "most": means[site] + width, "interval": True}
    found = _among(strategy, site, means, images, verb=verb, **about)
    if count < repeats.number:
        some = f"in {count} of {repeats.number} {repeats.unit}"
        found = replace(found, words=f"{found.words}, {some}" if found.words else some)
    return found


def _among(
    strategy: Mapping[str, Any],
    site: str,
    together: Mapping[str, float],
    images: Mapping[str, float],
    **about: Any,
) -> Contribution:
    """A hospital's contribution, and its share among some hospitals where these can have shares.

    Args:
        strategy: that estimates.
        site: one of ``together``.
        together: hospital -> value.
        images: hospital -> its share of all images.
        about: the range and the verb, as for :func:`_contribution`.
    """
    unit = strategy["estimates"] or ""
    share = None
    if unit.startswith(ADDITIVE) or abs(sum(together.values()) - 1) < 0.02:
        share = shares_of(together)[site]
    of_images = _images_among(images, together).get(site)
    return _contribution(together[site], share, of_images, len(together), **about)


def _images_among(images: Mapping[str, float], hospitals: Collection[str]) -> dict[str, float]:
    """Shares of the images among some hospitals; those whose images are not known are left out.

    Args:
        images: hospital -> its share of all images.
        hospitals: among whom the contributions are shared out.

    >>> _images_among({"ash": 0.25, "elm": 0.25, "oak": 0.5}, ["ash", "elm"])
    {'ash': 0.5, 'elm': 0.5}
    """
    known = {site: images[site] for site in hospitals if images.get(site)}
    total = sum(known.values())
    return {site: share / total for site, share in known.items()}


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


def _repeats_of(report: Mapping[str, Any], name: str) -> _Repeats:
    """The contributions of each seed; in a comparison of one seed, those of each fold.

    Args:
        report: whose ``"runs"``, where it has any, are the trainings behind its strategies. With
            several seeds and folds, a seed's contribution is the mean over its folds.
        name: of the strategy.
    """
    runs = report.get("runs", report["strategies"])
    names = report["strategies"][name]["repeats"]
    values: dict[str, dict[str, list[float]]] = {}
    for repeat in names:
        other = runs[repeat]
        of_seed = values.setdefault(str(other["seed"]), {})
        for site in own_shares(other):
            value = other["sites"][site]["contribution"]["value"]
            of_seed.setdefault(site, []).append(value)
    if len(names) > 1 and len(values) == 1 and "runs" in report:
        [of_each_fold] = values.values()
        return _Repeats(of_each_fold, len(names), "folds")
    if len(values) < 2:
        return _Repeats({}, 0)
    found: dict[str, list[float]] = {}
    for of_seed in values.values():
        for site, of_folds in of_seed.items():
            found.setdefault(site, []).append(mean(of_folds))
    return _Repeats(found, len(values))


def _contribution(
    value: float,
    share: float | None,
    images: float | None,
    number: int,
    least: float | None = None,
    most: float | None = None,
    range_of: str = "",
    interval: bool = False,
    verb: str = "carries",
) -> Contribution:
    """A contribution with its ratio and words; ``number`` is how many hospitals share the sum."""
    ratio = None
    words = ""
    if share is not None and images:
        ratio = share / images
        words = f"{verb} {ratio_words(ratio)}"
    elif share is not None and number > 1:
        ratio = share * number
        words = f"{verb} {ratio_words(ratio, 'an even share')}"
    if value < 0:
        words = "its value is negative"
        if least is not None and most is not None and least <= 0 <= most:
            words = "its value is negative, but its range includes 0: next to nothing"
    return Contribution(value, share, images, ratio, least, most, range_of, interval, words)


def _unknown(words: str) -> Contribution:
    return Contribution(None, None, None, None, None, None, "", False, words)


def _why_none(strategy: Mapping[str, Any]) -> str:
    """Why a run does not say who contributed what, and what would."""
    if strategy["estimates_contributions"]:
        return f"{strategy['method']} recorded no contribution in this run."
    ways: Sequence[str] = (
        "add a strategy that estimates contributions, such as FedCE",
        "let the other hospitals judge with --cross_evaluate_every 5 (five hospitals or more)",
        "record updates and value the run afterwards",
    )
    return (
        f"{strategy['strategy']} does not estimate contributions: its weights say how much each "
        f"update counted, not what it was worth. To get an answer, do one of these: "
        f"{'; '.join(ways)}."
    )
