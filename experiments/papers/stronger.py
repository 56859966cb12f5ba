# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Stronger trainings on real images, and what the sites use after their last mile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import tables
from reading import (
    NOT_FOUND,
    NOTHING,
    Result,
    Results,
    by_seed,
    cases,
    hierarchical_difference,
    hierarchical_interval,
    interval_of,
    markdown,
    not_found,
    pooled,
    read,
    received_and_used,
    shares,
    shown_name,
    site_means,
    table_of_seeds,
    used,
    words,
)
from study import RESULTS

from monai_fairfl.statistics.fairness import Interval

Differences = dict[int, dict[str, dict[str, float]]]
"""Seed -> site -> fold -> a difference: one number of each site in each run."""
Used = Callable[[Result], dict[str, float]]
"""A result -> site -> mean Dice of the model that it uses."""
RUINED = 0.02
"""A site that loses more Dice than this is counted as one that lost."""
LOCAL_NORM = "FedAvg, local norm"


# --- what was predicted before any test


def judged(predictions: Sequence[tuple[str, str, bool]]) -> str:
    """Write each prediction, its numbers, and whether it was met."""
    rows = [[what, numbers, "met" if met else "missed"] for what, numbers, met in predictions]
    table = markdown(["predicted", "came out", ""], rows)
    return f"What was predicted before any test, and what came out:\n\n{table}"


def _at_least(
    what: str, results: Sequence[Result], model: str, least: float
) -> tuple[str, str, bool]:
    mean = hierarchical_interval(by_seed(results, model))
    return f"{what} is at least {least}", words(mean), mean.estimate >= least


def _gain(one: Sequence[Result], other: Sequence[Result]) -> Interval:
    return hierarchical_difference(by_seed(one), by_seed(other))


def _of_last_mile(found: Results) -> list[tuple[str, str, bool]]:
    losses = losses_of(found["FedAvg"], found)
    mean = hierarchical_interval(losses)
    losers, number = number_of_losers(losses)
    return [
        (
            "FedAvg: used − the better of FedAvg and alone, lower bound at least -0.005",
            words(mean, signed=True),
            mean.low >= -0.005,
        ),
        (
            f"the same: lower by more than {RUINED} in at most one in ten",
            f"{losers / number:.0%}",
            losers / number <= 0.1,
        ),
    ]


# --- volumes


def strong_prostate() -> str:
    """Dice as received, and with the models used; below, what was predicted."""
    found = read("strong_prostate")
    gain = _gain(found["FedCE-sum"], found["FedAvg"])
    predictions = [
        _at_least("FedAvg's mean Dice as received", found["FedAvg"], "test", 0.85),
        _at_least("FedAvg's mean Dice as used", found["FedAvg"], "test_used", 0.87),
        (
            "FedCE's sum is not lower than FedAvg by more than 0.01",
            words(gain, signed=True),
            gain.estimate >= -0.01,
        ),
        *_of_last_mile(found),
    ]
    return f"{received_and_used(found)}\n\n{judged(predictions)}"


def strong_prostate_fifth() -> str:
    """Volumes that train in place of validating: both shares, then each strategy with a fifth."""
    found = read("strong_prostate_fifth")
    both = {
        "35 % validate": read("strong_prostate")["FedAvg"],
        "20 % validate": found["FedAvg"],
    }
    gain = _gain(*reversed(both.values()))
    of_shares = (
        "as received, more training volumes have the higher mean Dice",
        words(gain, signed=True),
        gain.estimate > 0,
    )
    predictions = [of_shares]
    for strategy, results in found.items():
        what = f"{shown_name(strategy)}: the mean Dice as used"
        predictions.append(_at_least(what, results, "test_used", 0.87))
    return "\n\n".join(
        [
            f"FedAvg. {received_and_used(both, baseline='35 % validate')}",
            f"With 20 % for validation. {received_and_used(found)}",
            judged(predictions),
        ]
    )


def strong_local_norm() -> str:
    """Normalisation layers that stay at the sites, beside layers that all share."""
    shared, local = "shared layers", "local normalisation layers"
    found = {
        shared: read("strong_prostate")["FedAvg"],
        local: read("strong_prostate", "local_norm")["FedAvg"],
    }
    return received_and_used(found, baseline=shared)


# --- photographs


def strong_fundus() -> str:
    """Looks that do not lose a disc: Dice, discs missed, the last mile, what was predicted."""
    found = _with_local_norm("strong_fundus")
    return "\n\n".join(
        [
            received_and_used(found),
            _discs(found),
            f"The last mile, strategy by strategy:\n\n{last_mile('strong_fundus')}",
            judged([*_of_photographs(found), *_of_last_mile(found)]),
        ]
    )


def shipped_fundus() -> str:
    """The photographs as the bundle ships: Dice, discs missed, and what was predicted."""
    found = read("shipped_fundus")
    fedavg, alone = found["FedAvg"], found["Standalone"]
    over_alone = _over(fedavg, alone)
    missing = [_loses_a_disc(*two) for two in zip(fedavg, alone, strict=True)]
    predictions = [
        _at_least("FedAvg's mean Dice", fedavg, "test", 0.92),
        (
            "FedAvg: no clinic below training alone by more than 0.01",
            _of_sites(over_alone),
            min(over_alone.values()) >= -0.01,
        ),
        (
            "FedAvg misses no disc that training alone finds, in at least eight of nine runs",
            f"{missing.count(False)} of {len(missing)}",
            missing.count(False) >= 8,
        ),
    ]
    values = {method: by_seed(results) for method, results in found.items()}
    return "\n\n".join([table_of_seeds(values), _discs(found), judged(predictions)])


def _loses_a_disc(result: Result, alone: Result) -> bool:
    """Whether a run does not find a disc that training alone finds."""
    own = cases([alone], "disc")
    return any(
        dice < NOT_FOUND <= own[site][case]
        for site, of_cases in cases([result], "disc").items()
        for case, dice in of_cases.items()
    )


def _discs(found: Results) -> str:
    """Write how many discs each strategy does not find."""
    rows = []
    for strategy, results in found.items():
        missed = ", ".join(f"{few} of {discs}" for few, discs in _missed(results))
        rows.append([shown_name(strategy), missed])
    return "\n\n".join(
        [
            f"Discs not found (Dice below {NOT_FOUND:g}) as received, seed by seed:",
            markdown(["strategy", "not found"], rows),
        ]
    )


def _with_local_norm(study: str) -> Results:
    found = read(study)
    if study.startswith("strong"):
        found[LOCAL_NORM] = read(study, "local_norm")["FedAvg"]
    return found


def _missed(results: Sequence[Result]) -> list[tuple[int, int]]:
    """Return, seed by seed, how many discs were not found, and of how many."""
    seeds = sorted({result["seed"] for result in results})
    return [not_found([each for each in results if each["seed"] == seed], "disc") for seed in seeds]


def _of_photographs(found: Results) -> list[tuple[str, str, bool]]:
    over_alone = _over(found["FedAvg"], found["Standalone"])
    over_fedavg = _over(found["FedCE-sum"], found["FedAvg"])
    missed = _missed(found["FedAvg"])
    mean = _gain(found["FedCE-sum"], found["FedAvg"])
    weights = [shares(result, "aggregation")["IDRiD"] for result in found["FedCE-sum"]]
    samples = [result["samples"] for result in found["FedCE-sum"]]
    weight = float(np.mean(weights))
    share = float(np.mean([of["IDRiD"] / sum(of.values()) for of in samples]))
    return [
        (
            "FedAvg as received: no site below training alone by more than 0.01",
            _of_sites(over_alone),
            min(over_alone.values()) >= -0.01,
        ),
        (
            "FedAvg misses at most 2 discs with each seed",
            ", ".join(f"{few} of {discs}" for few, discs in missed),
            all(few <= 2 for few, _ in missed),
        ),
        (
            "FedCE's sum is not below FedAvg by more than 0.01 in the mean over sites",
            words(mean, signed=True),
            mean.estimate >= -0.01,
        ),
        (
            "FedCE's sum gives IDRiD more weight than its share of the photographs",
            f"weight {weight:.3f}, share {share:.3f}",
            weight > share,
        ),
        (
            "FedCE's sum: IDRiD not below FedAvg, DrishtiGS1 not by more than 0.01",
            _of_sites(over_fedavg),
            over_fedavg["IDRiD"] >= 0 and over_fedavg["DrishtiGS1"] >= -0.01,
        ),
        (
            "FedCE's sum gains no more than 0.02 anywhere",
            _of_sites(over_fedavg),
            max(over_fedavg.values()) <= 0.02,
        ),
    ]


def _over(one: Sequence[Result], other: Sequence[Result]) -> dict[str, float]:
    """Site -> how far its mean Dice is above that of the other method."""
    first, second = (site_means(pooled(by_seed(results))) for results in (one, other))
    return {site: first[site] - second[site] for site in first}


def _of_sites(means: Mapping[str, float]) -> str:
    return ", ".join(f"{site} {mean:+.3f}" for site, mean in means.items())


# --- the last mile

CANDIDATES = ("adapted", "averaged", "alone", "fused")
"""Of the last mile in the studies. ``"averaged"``, the mean of the models that a site received in
the last five rounds, is no candidate of the package any more."""


def last_mile(study: str) -> str:
    """What every strategy's sites use against what they had; below, what validation said."""
    found = _with_local_norm(study)
    rows = []
    candidates = []
    for strategy, results in found.items():
        if strategy != "Standalone":
            rows.append([strategy, *_used(results, found)])
            candidates += [[strategy, *row] for row in _candidates(results)]
    head = ["strategy", "site × fold × seed", "used − received"]
    head += ["used − the better of alone and FedAvg", f"loses more than {RUINED}", "most lost"]
    below = ["strategy", "candidate", "site × fold × seed that had it", "gain on validation"]
    below += ["gain on test", "taken by", "gain on validation where taken"]
    return "\n\n".join(
        [
            markdown([*head, "taken"], rows),
            "Candidates, against the model that the site would use without a last mile:",
            markdown([*below, "gain on test where taken"], candidates),
        ]
    )


def as_taken(result: Result) -> dict[str, float]:
    """Return every site's mean Dice with the model that it took."""
    return site_means(cases([result], model="test_used"))


def losses_of(results: Sequence[Result], found: Results, used_by: Used = as_taken) -> Differences:
    """Subtract the better of FedAvg's and the own model's mean Dice from that of the used model.

    Args:
        results: of a strategy.
        found: of all strategies of its study.
        used_by: what the sites use.
    """
    baselines = zip(found["FedAvg"], found["Standalone"], strict=True)
    differences: Differences = {}
    for result, two in zip(results, baselines, strict=True):
        received, alone = (site_means(cases([each])) for each in two)
        for site, mean in used_by(result).items():
            of_site = differences.setdefault(result["seed"], {}).setdefault(site, {})
            of_site[f"fold{result['fold']}"] = mean - max(received[site], alone[site])
    return differences


def number_of_losers(differences: Differences) -> tuple[int, int]:
    """Return how many sites, folds and seeds lose more than ``RUINED``, and of how many."""
    values = _flat(differences)
    return int(np.sum(values < -RUINED)), values.size


def _flat(differences: Differences) -> np.ndarray:
    values: list[float] = []
    for sites in differences.values():
        for of_folds in sites.values():
            values += of_folds.values()
    # Without the last bits: a loss of 0.88 - 0.86 is not more than 0.02.
    return np.round(values, 9)


def _used(results: Sequence[Result], found: Results) -> list[Any]:
    gains: Differences = {}
    taken: Counter[str] = Counter()
    asked = {"kept"}
    for result in results:
        received = site_means(cases([result]))
        for site, mean in as_taken(result).items():
            of_site = gains.setdefault(result["seed"], {}).setdefault(site, {})
            of_site[f"fold{result['fold']}"] = mean - received[site]
        for mile in result["last_mile"].values():
            taken[mile["taken"] or "kept"] += 1
            asked.update(mile["gains"])
    losses = losses_of(results, found)
    losers, number = number_of_losers(losses)
    return [
        number,
        words(hierarchical_interval(gains), signed=True),
        words(hierarchical_interval(losses), signed=True),
        f"{losers / number:.0%}",
        f"{_flat(losses).min():+.3f}",
        ", ".join(f"{name} {taken[name]}" for name in (*CANDIDATES, "kept") if name in asked),
    ]


class Candidate(NamedTuple):
    """A candidate of one site: its gain over the model that the site would use without it.

    Args:
        name: of it.
        gain: on validation cases.
        stderr: of that gain; one validation case has none.
        test_gain: on test cases.
        taken: whether the site took it.
    """

    name: str
    gain: float
    stderr: float | None
    test_gain: float
    taken: bool = False


def candidates_of(result: Result) -> dict[str, list[Candidate]]:
    """Site -> its candidates."""
    found: dict[str, list[Candidate]] = {}
    received = site_means(cases([result]))
    for site, mile in result["last_mile"].items():
        found[site] = []
        for name, (gain, stderr) in mile["gains"].items():
            on_test = result["closing"][site][name]["test_score"] - received[site]
            found[site].append(Candidate(name, gain, stderr, on_test, mile["taken"] == name))
    return found


def _candidates(results: Sequence[Result]) -> list[list[Any]]:
    """Write a row for each candidate: its gains over all sites that had it, and where taken."""
    everything = []
    for result in results:
        for of_site in candidates_of(result).values():
            everything += of_site
    rows = []
    for name in CANDIDATES:
        found = [each for each in everything if each.name == name]
        if not found:
            continue
        taken = [each for each in found if each.taken]
        row = [name, len(found), *_mean_gains(found), len(taken)]
        rows.append([*row, *_mean_gains(taken)])
    return rows


def _mean_gains(found: Sequence[Candidate]) -> list[str]:
    if not found:
        return [NOTHING, NOTHING]
    on_validation = fmean(each.gain for each in found)
    return [f"{on_validation:+.3f}", f"{fmean(each.test_gain for each in found):+.3f}"]


# --- other rules for the last mile

Rule = Callable[[Sequence[Candidate]], float]
"""Candidates of a site -> what it gains on test cases by what the rule takes; 0: it keeps."""
FUSED = "fused"
MARGIN = 0.02


def above(errors: float, names: Sequence[str] = CANDIDATES) -> Rule:
    """Take the largest gain of those above so many of their standard errors.

    >>> rule = above(1.0)
    >>> rule([Candidate("adapted", 0.02, 0.01, 0.03), Candidate("alone", 0.04, 0.05, -0.1)])
    0.03
    """

    def rule(candidates: Sequence[Candidate]) -> float:
        found = _best(candidates, errors, names)
        return 0.0 if found is None else found.test_gain

    return rule


def _best(candidates: Sequence[Candidate], errors: float, names: Sequence[str]) -> Candidate | None:
    convincing = []
    for each in candidates:
        if each.name in names and each.stderr is not None and each.gain > errors * each.stderr:
            convincing.append(each)
    return max(convincing, key=lambda each: each.gain, default=None)


def always(name: str) -> Rule:
    """Take one candidate, whatever validation says."""

    def rule(candidates: Sequence[Candidate]) -> float:
        return next((each.test_gain for each in candidates if each.name == name), 0.0)

    return rule


def best_on_test(candidates: Sequence[Candidate]) -> float:
    """Take the best on the test cases, which no site knows: what no rule can exceed."""
    return max([0.0, *(each.test_gain for each in candidates)])


WITHOUT_FUSED = tuple(name for name in CANDIDATES if name != FUSED)
without_fused = above(1.0, WITHOUT_FUSED)
"""Takes what a site takes in a last mile without fused models."""


def unless_worse(candidates: Sequence[Candidate], than_best: bool) -> float:
    """Take the fused model, unless validation finds it more than ``MARGIN`` worse.

    Args:
        candidates: of a site.
        than_best: than what the site takes without it, in place of the received model.
    """
    fused = next(each for each in candidates if each.name == FUSED)
    other = _best(candidates, 1.0, WITHOUT_FUSED)
    least = other.gain if than_best and other is not None else 0.0
    if fused.gain >= max(least, 0.0) - MARGIN:
        return fused.test_gain
    return without_fused(candidates)


RULES: dict[str, Rule] = {
    "keep the received model": lambda candidates: 0.0,
    "gain above 0": above(0.0),
    "**gain above one standard error: the package's rule**": above(1.0),
    "gain above two standard errors": above(2.0),
    "the package's rule, with `adapted` as the only candidate": above(1.0, ["adapted"]),
    "always `adapted`": always("adapted"),
    "best on the test cases, which no site knows": best_on_test,
}
FUSING: dict[str, Rule] = {
    "no fused models": without_fused,
    "fused, unless more than 0.02 worse than what the site takes without it": partial(
        unless_worse, than_best=True
    ),
    "fused, unless more than 0.02 worse than the received model: **the package's rule**": partial(
        unless_worse, than_best=False
    ),
    "always fused": always(FUSED),
}
IMAGES = {
    "uneven_prostate": "volumes (BIDMC trains on one volume)",
    "strong_prostate": "volumes",
    "strong_fundus": "photographs",
}
"""Study with a last mile -> its images."""


def taken_by(rule: Rule) -> Used:
    """Say what sites would use with another rule."""

    def used_by(result: Result) -> dict[str, float]:
        received = site_means(cases([result]))
        candidates = candidates_of(result)
        return {site: mean + rule(candidates[site]) for site, mean in received.items()}

    return used_by


def last_mile_rules() -> str:
    """Would a site have chosen better by another rule? Chosen after the tests.

    A row per rule and study, of FedAvg; the last column is of all strategies. At the end volumes
    and photographs together, of the studies whose hospitals and clinics are as they are.
    """
    rows = []
    together: dict[str, list[tuple[Differences, list[Differences]]]] = {}
    for study, images in IMAGES.items():
        found = read(study)
        for title, rule in RULES.items():
            of_all = []
            for strategy, results in found.items():
                if strategy != "Standalone":
                    of_all.append(losses_of(results, found, taken_by(rule)))
            fedavg = losses_of(found["FedAvg"], found, taken_by(rule))
            rows.append([images, title, *_of_rule(fedavg, of_all)])
            if study != "uneven_prostate":
                together.setdefault(title, []).append((fedavg, of_all))
    for title, of_studies in together.items():
        joint: Differences = {}
        everything = []
        for fedavg, of_all in of_studies:
            everything += of_all
            for seed, of_sites in fedavg.items():
                joint.setdefault(seed, {}).update(of_sites)
        rows.append(["volumes and photographs", title, *_of_rule(joint, everything)])
    head = ["images", "rule", "FedAvg: used − the better of alone and FedAvg"]
    head += [f"FedAvg: losses of more than {RUINED}", "all strategies: such losses"]
    return markdown(head, rows)


def _of_rule(fedavg: Differences, of_all: Sequence[Differences]) -> list[str]:
    cells = [words(hierarchical_interval(fedavg), signed=True)]
    for of_strategies in ([fedavg], of_all):
        losers, number = np.sum([number_of_losers(each) for each in of_strategies], axis=0)
        cells.append(f"{losers} of {number}")
    return cells


def fused_photographs(study: str) -> str:
    """Fused models, with seeds that nobody had looked at: Dice, the last mile, other rules."""
    found = read(study)
    rows = []
    for title, rule in FUSING.items():
        fedavg = losses_of(found["FedAvg"], found, taken_by(rule))
        rows.append([title, *_of_rule(fedavg, [fedavg])[:2]])
    head = ["rule", "used − the better of alone and FedAvg", f"losses of more than {RUINED}"]
    return "\n\n".join(
        [
            received_and_used(found),
            f"The last mile:\n\n{last_mile(study)}",
            judged(_of_last_mile(found)),
            f"Other rules, chosen after the tests:\n\n{markdown(head, rows)}",
        ]
    )


# --- models of uneven_others that were scored again

KINDS = {"validation": "validation", "testing": "test"}
"""Part of a data list -> its name in a table."""


def kept_part() -> str:
    """Which connected part of a mask is kept: the largest, or the one with the surest voxel.

    A row per kind of cases and seed: Dice of both parts, and the volumes that each loses.
    """
    parts = ("largest", "surest")
    rows = []
    for kind, name in KINDS.items():
        for seed in range(3):
            of_models = _scored_again("kept_part", kind, seed)
            row = [name, seed, len(of_models)]
            for part in parts:
                values = np.concatenate(_dice(of_models, part))
                row += [f"{values.mean():.3f}", f"{sum(values < NOT_FOUND)} of {len(values)}"]
            rows.append([*row, _mean_gain(of_models, "surest", "largest")])
    head = ["cases", "seed", "models"]
    for part in parts:
        head += [f"{part} part: mean Dice", f"Dice below {NOT_FOUND}"]
    return markdown([*head, "surest − largest"], rows)


def last_mile_share() -> str:
    """How far towards the adapted model a site should go: not at all, half of the way, or all."""
    rows = []
    for kind, name in KINDS.items():
        of_models = _scored_again("last_mile_share", kind)
        row = [name, len(_dice(of_models, "half"))]
        for share in ("0", "half", "1"):
            row.append(f"{fmean(map(fmean, _dice(of_models, share))):.3f}")
        rows.append([*row, *(_mean_gain(of_models, "half", other) for other in ("0", "1"))])
    head = ["cases", "models", "received", "half of the way", "`adapted`", "half − received"]
    return markdown([*head, "half − `adapted`"], rows)


def _scored_again(name: str, kind: str, seed: int | None = None) -> list[Mapping[str, Any]]:
    """Read of each model: site -> case -> way of scoring -> Dice."""
    used[name] = None
    found = []
    for result in tables.read(RESULTS / name).values():
        if seed in (None, result["seed"]):
            found.append(result.get(kind, {}))
    return found


def _dice(of_models: Iterable[Mapping[str, Any]], way: str) -> list[list[float]]:
    """List the Dice of a site's cases, for each model and site."""
    found = []
    for model in of_models:
        for of_cases in model.values():
            found.append([of_ways[way] for of_ways in of_cases.values()])
    return found


def _mean_gain(of_models: Iterable[Mapping[str, Any]], better: str, other: str) -> str:
    """Write the mean over sites of the gain of each case, which is the mean over models."""
    gains: dict[str, dict[str, list[float]]] = {}
    for model in of_models:
        for site, of_cases in model.items():
            for case, dice in of_cases.items():
                of_case = gains.setdefault(site, {}).setdefault(case, [])
                of_case.append(dice[better] - dice[other])
    means = {}
    for site, of_cases in gains.items():
        means[site] = {case: fmean(values) for case, values in of_cases.items()}
    return words(interval_of(means), signed=True)


TABLES: Mapping[str, Any] = {
    "strong_prostate": strong_prostate,
    "strong_prostate_fifth": strong_prostate_fifth,
    "strong_local_norm": strong_local_norm,
    "strong_fundus": strong_fundus,
    "shipped_fundus": shipped_fundus,
    "last_mile": partial(last_mile, "strong_prostate"),
    "uneven_last_mile": partial(last_mile, "uneven_prostate"),
    "last_mile_rules": last_mile_rules,
    "last_mile_share": last_mile_share,
    "kept_part": kept_part,
    "fused_photographs": partial(fused_photographs, "fused_photographs"),
    "fused_photographs_fifth": partial(fused_photographs, "fused_photographs_fifth"),
}
