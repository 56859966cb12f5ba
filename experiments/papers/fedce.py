# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedCE (Jiang et al., CVPR 2023): Tables 1 to 5 and Figs 2 to 9, on real and generated images."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache, partial
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np
from agreement import Agreement, agreement, pearson
from figures import PALETTE, lines, panels
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from numpy.typing import NDArray
from reading import (
    DRAWS,
    NOT_FOUND,
    NOTHING,
    SUMMARY,
    Result,
    Results,
    cases,
    dice_table,
    difference,
    interval_of,
    joined,
    markdown,
    measurement,
    over_folds,
    read,
    shares,
    shown_name,
    site_means,
    summary_cells,
    words,
)
from scipy.signal import savgol_filter
from scipy.stats import pearsonr, rankdata
from study import Study

from monai_fairfl import normalise
from monai_fairfl.statistics.fairness import Interval

GENERATED = ("six_prostate", "six_fundus")
REAL = ("prostate", "fundus")
ALL_FOLDS = ("prostate", "prostate_other_folds")
BySite = Mapping[str, float]
Items = frozenset[tuple[str, float]]


# --- Table 1: Dice


def table1_prostate() -> str:
    """The strategies that were trained on all four folds, then all of them on the first two."""
    return (
        f"All four folds:\n\n{dice_table(joined(*ALL_FOLDS))}\n\n"
        f"The first two folds, all methods:\n\n{dice_table(read('prostate'))}"
    )


def table1_fundus() -> str:
    """A row per strategy; below, how many discs were missed altogether."""
    results = read("fundus")
    return f"{dice_table(results, ('disc', 'cup'))}\n\n{missed(results)}"


def table1_control() -> str:
    """Generated hospitals: does augmentation close the gap by itself? The papers train without."""
    parts = []
    for study in GENERATED:
        for setting, name in {
            "": "as everywhere else",
            "no_augmentation": "without augmentation",
        }.items():
            results = read(study, setting)
            parts += [f"`{study}`, {name}:", dice_table(results)]
            if study == "six_fundus":
                parts.append(missed(results))
    return "\n\n".join(parts)


def missed(results: Results) -> str:
    """How many discs of every site were not found, a row per strategy."""
    discs = {strategy: cases(found, "disc") for strategy, found in results.items()}
    first = next(iter(discs.values()))
    rows = []
    for strategy, found in discs.items():
        missed_at = []
        for site in first:
            missed_at.append(sum(dice < NOT_FOUND for dice in found[site].values()))
        rows.append([shown_name(strategy), *missed_at, sum(missed_at)])
    sites = [f"{site} ({len(scores)})" for site, scores in first.items()]
    head = ["strategy", *sites, "all"]
    return f"Discs not found (Dice below {NOT_FOUND:g}):\n\n{markdown(head, rows)}"


# --- Table 2: who gains what


def table2() -> str:
    """Pearson's correlation of sites' Dice alone and with a strategy, times 100, and Euclid.

    The Euclidean distance is in points of Dice; intervals are over cases.
    """
    head = ["strategy"]
    rows: dict[str, list[str]] = {}
    for study in REAL:
        head += [f"{study}, Pearson", f"{study}, p", f"{study}, Euclid"]
        results = read(study)
        alone = cases(results["Standalone"])
        for strategy, of_folds in results.items():
            if strategy != "Standalone":
                row = rows.setdefault(strategy, [shown_name(strategy)])
                row += _gain_follows(alone, cases(of_folds))
    return markdown(head, rows.values())


def _gain_follows(alone: Mapping[str, BySite], found: Mapping[str, BySite]) -> list[str]:
    of_sites = site_means(found)
    correlation = pearsonr(list(site_means(alone).values()), [of_sites[s] for s in alone])
    gained = [of_sites[site] - mean for site, mean in site_means(alone).items()]
    distance = float(100 * np.linalg.norm(gained))
    means = _redrawn(alone, found)
    of_alone, of_found = means[..., 0], means[..., 1]
    pearsons = 100 * pearsonr(of_alone, of_found, axis=1).statistic
    distances = 100 * np.linalg.norm(of_alone - of_found, axis=1)
    drawn = np.stack([pearsons, distances], axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    return [
        words(Interval(100 * correlation.statistic, low[0], high[0]), 1),
        f"{correlation.pvalue:.2f}",
        words(Interval(distance, low[1], high[1]), 1),
    ]


def _redrawn(alone: Mapping[str, BySite], found: Mapping[str, BySite]) -> NDArray[np.float64]:
    """Each site's two means of the same cases, drawn with replacement: draw x site x 2."""
    pairs = []
    for site, scores in found.items():
        pairs.append(np.array([[alone[site][case], dice] for case, dice in scores.items()]))
    drawn = _drawn_cases(tuple(len(pair) for pair in pairs))
    means = [pair[of_site].mean(axis=1) for pair, of_site in zip(pairs, drawn)]
    return np.stack(means, axis=1)


@cache
def _drawn_cases(numbers: tuple[int, ...]) -> list[NDArray[np.int64]]:
    """Draw cases of sites with so many: draw x case of each site. All strategies have the same."""
    rng = np.random.default_rng(0)
    draws = [[rng.integers(number, size=number) for number in numbers] for _ in range(DRAWS)]
    return [np.array(of_site) for of_site in zip(*draws)]


# --- Tables 3 to 5: contributions beside leave-one-out by retraining


def table3() -> str:
    """Do a method's shares over its last ten rounds agree with leave-one-out by retraining?

    The reference is the drop in mean test Dice of FedAvg trained without a site. Both are averaged
    over folds; intervals are over folds drawn with replacement. FedCI's contributions are Shapley
    values summed from the first round on, from which its weights follow: both have a row.
    """
    return "\n\n".join(f"`{study}`:\n\n{_agreement_table(study)}" for study in GENERATED)


def table3_real() -> str:
    """What leaving out a real hospital costs, beside every method's share for it."""
    study = "real_leave_one_out"
    drops_of_folds = drops(study)
    methods = read(study)
    rows = []
    for site in drops_of_folds[0]:
        drops_of_site = [drops_of_fold[site] for drops_of_fold in drops_of_folds]
        by_fold = ", ".join(f"{drop:+.3f}" for drop in drops_of_site)
        row = [site, words(over_folds(drops_of_site), signed=True), by_fold]
        for results in methods.values():
            row.append(f"{fmean([shares(result)[site] for result in results]):.0%}")
        rows.append(row)
    head = ["hospital", "drop in Dice without it", "fold by fold"]
    head += [f"share, {method}" for method in methods]
    return f"{markdown(head, rows)}\n\n{_agreement_table(study)}"


def tables4_5() -> str:
    """What a site is worth by leave-one-out, beside its share of the images.

    A drop is that of the mean test Dice over all sites, of the mean over structures; the paper
    adds the drops of disc and cup.
    """
    rows = []
    for study in GENERATED:
        drops_of_folds = drops(study)
        worth = _shares(_mean_of(drops_of_folds))
        results = read(study, "leave_one_out")["FedAvg"]
        images = _mean_of([result["samples"] for result in results])
        for site, number in images.items():
            drop = over_folds([fold[site] for fold in drops_of_folds])
            share = f"{number / sum(images.values()):.0%}"
            rows.append([study, site, share, f"{worth[site]:.0%}", words(drop, 4, signed=True)])
    head = ["study", "site", "share of images", "share of leave-one-out"]
    return markdown([*head, "drop in Dice without it"], rows)


def drops(study: str) -> list[dict[str, float]]:
    """Return the drop in mean test Dice, in each fold, when FedAvg is trained without a site."""
    drops_of_folds = []
    for result in read(study, "leave_one_out")["FedAvg"]:
        valuation = next(iter(result["valuations"].values()))
        drops_of_folds.append({site: found["value"] for site, found in valuation["values"].items()})
    return drops_of_folds


def _mean_of(vectors: Sequence[BySite]) -> dict[str, float]:
    """Average each site's values over folds."""
    return {site: fmean([vector[site] for vector in vectors]) for site in vectors[0]}


def _agreement_table(study: str) -> str:
    """A row per method: how far its contributions agree with the drops of this study."""
    reference = drops(study)
    rows = []
    for strategy, results in read(study).items():
        if strategy == "Standalone":
            continue
        estimates = {shown_name(strategy): [shares(result) for result in results]}
        if strategy == "FedCI":
            of_weights = [shares(result, "aggregation") for result in results]
            estimates["FedCI, its weights"] = of_weights
        for name, estimated in estimates.items():
            folds = list(zip(estimated, reference, strict=True))
            row = [name]
            for measure in AGREEMENTS:
                row.append(words(over_folds(folds, partial(agree, measure)), 2))
            rows.append(row)
    return markdown(["strategy", *AGREEMENTS], rows)


def _shares(values: BySite) -> BySite:
    """Each site's part of the sum; one below 0 counts as 0."""
    return dict(zip(values, normalise(list(values.values())).tolist(), strict=True))


def agree(measure: str, folds: Sequence[tuple[BySite, BySite]]) -> float:
    """Compute one measure of agreement between the means over these folds."""
    estimated = _mean_of([estimate for estimate, _ in folds])
    lost = _mean_of([drop for _, drop in folds])
    if measure == "Spearman":
        return pearson(*(rankdata([side[site] for site in lost]) for side in (estimated, lost)))
    if not any(drop > 0 for drop in lost.values()):
        return float("nan")
    # A site whose absence helps counts as 0.
    found = _agreement(frozenset(estimated.items()), frozenset(_shares(lost).items()))
    value = float(getattr(found, AGREEMENTS[measure]))
    return value / 100 if measure == "Pearson" else value


@cache
def _agreement(estimated: Items, lost: Items) -> Agreement:
    """Of one draw of folds; three columns take a measure of it."""
    return agreement(dict(estimated), dict(lost))


AGREEMENTS = {"Pearson": "pearson", "Spearman": "", "Euclid": "euclidean", "cosine": "cosine"}
"""Title of a column -> its name in the package's ``agreement``."""


# --- Figs 2 and 3


def figure2() -> Figure:
    """The hospitals' images differ: histograms of intensity between percentiles 0.5 and 99.5."""
    found = measurement("fedce_figure2")
    drawn, axes = panels(REAL, across=2, share=False)
    for axis, task in zip(axes, REAL):
        for site, density in found[task].items():
            axis.plot((np.arange(len(density)) + 0.5) / len(density), density, label=site)
        axis.set_xlabel("intensity, scaled")
        axis.set_ylabel("density")
        axis.legend(fontsize=6)
    return drawn


OF_FIGURE3 = (
    ("FedAvg", "FedCE", "FedCE-sum", "CGSV", "CFFL", "FedCI", "qFedAvg"),
    ("FedAvg", "FedCE", "FedLWR", "ShapFed", "FedISM", "FedGA", "FairFed"),
)


def figure3() -> Figure:
    """Mean validation Dice over sites and folds by round, Savitzky-Golay smoothed (11, cubic)."""
    contents = list(product(REAL, OF_FIGURE3))
    drawn, axes = panels([study for study, _ in contents], across=2)
    for axis, (study, names) in zip(axes, contents):
        results = read(study)
        smoothed = {}
        for name in names:
            scores = [list(result["global_score"].values()) for result in results[name]]
            smoothed[shown_name(name)] = savgol_filter(np.mean(scores, axis=(0, 1)), 11, 3)
        lines(axis, smoothed, "rounds done", "validation Dice", first=0)
        axis.set_ylim(0.3, 0.95)
        axis.legend(fontsize=6, loc="lower right", ncols=2)
    return drawn


# --- Figs 4 and 7: free riders

RIDES = ("free_rider_controlled", "free_rider_dealt", "free_rider_fundus", "free_rider")
FORMS = ("product", "dissimilarity")
NOBODY = "nobody"
"""The setting without a rider."""
FIRST_ROUNDS = 10


def figures4_7() -> str:
    """A site repeats one image: is it found, and is anybody else accused?

    The rider's score divided by the highest of the others', mean over rounds 3 to 10 and over
    folds, for FedCE's product, for the product with the dissimilarity, and for the cosine with the
    global update alone (divided by the lowest of the others': a rider should be low). In brackets:
    the smallest and largest fold. A flag is a score above five times the median of the others in
    three rounds running, as fixed beforehand.
    """
    rows = []
    for study in RIDES:
        for rider in Study.read(study).settings:
            results = read(study, rider)["FedCE"]
            row = [study, rider]
            row += [_ratio(results, form, rider) for form in (*FORMS, "cosine")]
            row += [_flags(results, form, rider) for form in FORMS]
            rows.append(row)
    head = ["study", "rider", *FORMS, "cosine", *(f"flagged by {form}" for form in FORMS)]
    return markdown(head, rows)


def figures4_7_by_round() -> Figure:
    """FedCE's free-rider score by round, first fold of free_rider_controlled, a panel a rider."""
    riders = list(Study.read(RIDES[0]).settings)
    drawn, axes = panels([f"rider: {rider}" for rider in riders], across=4)
    for axis, rider in zip(axes, riders):
        scores = read(RIDES[0], rider)["FedCE"][0]["free_riders"]["product"]["scores"]
        lines(axis, scores, y="score")
    axes[0].legend(fontsize=6)
    return drawn


def _scores(result: Result, form: str) -> dict[str, np.ndarray]:
    """Return the scores of every site by round."""
    if form == "cosine":
        # Product and dissimilarity are cos and 1 - cos times the same gap.
        products, others = (_scores(result, each) for each in FORMS)
        with np.errstate(invalid="ignore"):
            return {site: value / (value + others[site]) for site, value in products.items()}
    scores = result["free_riders"][form]["scores"]
    return {site: np.array(values, float) for site, values in scores.items()}


def _ratio(results: Sequence[Result], form: str, rider: str) -> str:
    if rider == NOBODY:
        return NOTHING
    ratios = []
    for result in results:
        means = {}
        for site, values in _scores(result, form).items():
            means[site] = float(np.nanmean(values[2:FIRST_ROUNDS]))
        of_rider = means.pop(rider)
        most = min(means.values()) if form == "cosine" else max(means.values())
        ratios.append(of_rider / most)
    return f"{np.mean(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"


def _flags(results: Sequence[Result], form: str, rider: str) -> str:
    """Describe in which folds and rounds the rider was flagged first, and who else was flagged.

    Rounds are counted from 1; of others the number of folds is given.
    """
    rounds = []
    accused: Counter[str] = Counter()
    for result in results:
        flagged = dict(result["free_riders"][form]["flagged"])
        if rider in flagged:
            rounds.append(str(flagged.pop(rider) + 1))
        accused.update(flagged.keys())
    names = [f"{site} in {_counted(folds, 'fold')}" for site, folds in accused.most_common()]
    if rider == NOBODY:
        return f"wrongly: {', '.join(names)}" if names else "nobody"
    others = f"wrongly: {', '.join(names)}" if names else "nobody else"
    if not rounds:
        return f"rider in no fold; {others}"
    noun = "round" if len(rounds) == 1 else "rounds"
    folds = f"{len(rounds)} of {_counted(len(results), 'fold')}"
    return f"rider in {folds}: {noun} {', '.join(rounds)}; {others}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def rider_ranks() -> str:
    """In how many runs has the rider the highest of six scores, and its mean rank, by round.

    If scores said nothing of riding, it would in one run of six, and its mean rank would be 3.5.
    """
    rows = []
    for study, form in product(RIDES, FORMS):
        of_runs = []
        for rider in Study.read(study).settings:
            if rider != NOBODY:
                for result in read(study, rider)["FedCE"]:
                    of_runs.append(_ranks(_scores(result, form), rider))
        row = [study, form, str(len(of_runs))]
        for of_round in np.array(of_runs).T:
            known = of_round[np.isfinite(of_round)]
            row.append(f"{np.mean(known == 1):.0%} ({known.mean():.1f})")
        rows.append(row)
    rounds = [f"round {number}" for number in range(1, FIRST_ROUNDS + 1)]
    return markdown(["study", "score", "runs", *rounds], rows)


def _ranks(scores: Mapping[str, np.ndarray], rider: str) -> list[float]:
    """Rank the rider in each of the first rounds: 1 for the highest score.

    A rank is NaN where the rider has no score, as when a guard kept it out of the round.
    """
    ranks = []
    for number in range(FIRST_ROUNDS):
        of_rider = scores[rider][number]
        higher = [site for site, values in scores.items() if values[number] > of_rider]
        ranks.append(np.nan if np.isnan(of_rider) else len(higher) + 1.0)
    return ranks


# --- Figs 5, 6, 8 and 9


def figure5() -> str:
    """Do the others' contributions keep their proportions when one site is left out?

    The paper shows that they do: they change by less than 1 %. Shares of the run with all sites,
    without the one left out and divided by their sum, beside those of the run without it; means
    over folds.
    """
    rows = []
    for study, whole in zip(("without_one", "without_one_fundus"), GENERATED):
        with_all = [shares(result) for result in read(whole)["FedCE"]]
        for setting in Study.read(study).settings:
            without = [shares(result) for result in read(study, setting)["FedCE"]]
            folds = list(zip(with_all, without, strict=True))
            changes = _changes(folds)
            site = max(changes, key=lambda each: abs(changes[each]))
            rows.append(
                [
                    whole,
                    setting.removeprefix("without_"),
                    words(over_folds(folds, _pearson), 2),
                    words(over_folds(folds, _mean_change), 3),
                    f"{site}, {changes[site]:+.3f}",
                ]
            )
    head = ["study", "left out", "Pearson", "mean change of a share", "largest change"]
    return markdown(head, rows)


Folds = Sequence[tuple[BySite, BySite]]


def _expected_and_found(folds: Folds) -> tuple[dict[str, float], dict[str, float]]:
    """Average the others' shares over folds: of the run with all sites, rescaled; and without."""
    with_all = _mean_of([whole for whole, _ in folds])
    found = _mean_of([without for _, without in folds])
    sum_of_others = sum(with_all[site] for site in found)
    return {site: with_all[site] / sum_of_others for site in found}, found


def _pearson(folds: Folds) -> float:
    expected, found = _expected_and_found(folds)
    return pearson(expected, found)


def _changes(folds: Folds) -> dict[str, float]:
    expected, found = _expected_and_found(folds)
    return {site: found[site] - expected[site] for site in found}


def _mean_change(folds: Folds) -> float:
    return float(np.mean(np.abs(list(_changes(folds).values()))))


MODES = {"cos": "FedCE-cos", "err": "FedCE-err", "multi": "FedCE", "sum": "FedCE-sum"}


def figure6() -> str:
    """The two terms alone, their product, their sum: mean Dice, deviation, worst site.

    On the real images product and sum alone were trained; of `prostate` all four folds.
    """
    rows = []
    for folds in (*((study,) for study in GENERATED), ALL_FOLDS, ("fundus",)):
        results = joined(*folds)
        for mode, strategy in MODES.items():
            if strategy in results:
                found = cases(results[strategy])
                gain = words(difference(results[strategy], results["FedAvg"]), signed=True)
                rows.append([folds[0], mode, *summary_cells(found, interval_of(found)), gain])
    return markdown(["study", "mode", *SUMMARY, "gain over FedAvg"], rows)


SIDE = 64
"""Pixels of the pictures of Figs 8 and 9."""
OUTLINED = ("Standalone", "FedAvg", "FedCE", "CGSV", "FedLWR", "ShapFed", "FedISM")


def figures8_9() -> Figure:
    """Outlines on a test image of every generated hospital: truth white, prediction coloured.

    The middle slice of the first test volume of one fold, and its first test photograph, before
    smaller parts are removed; real images are not published here.
    """
    found = measurement("fedce_figures8_9")
    rows = [(site, shown) for study in GENERATED for site, shown in found[study].items()]
    size = (1.1 * len(OUTLINED), 1.15 * len(rows))
    drawn, grid = plt.subplots(len(rows), len(OUTLINED), figsize=size, layout="constrained")
    for (site, shown), axes in zip(rows, grid):
        image = _decoded(shown["image"]).reshape(SIDE, SIDE)
        for method, axis in zip(OUTLINED, axes):
            axis.imshow(image.T, cmap="gray", interpolation="none")
            for number, masks in enumerate(zip(shown["truth"], shown[method])):
                for mask, colour in zip(masks, ("white", PALETTE[1 + 3 * number])):
                    bits = np.unpackbits(_decoded(mask)).reshape(SIDE, SIDE)
                    axis.contour(bits.T, [0.5], colors=colour, linewidths=0.8)
            axis.set_axis_off()
            if axes is grid[0]:
                axis.set_title(method, fontsize=7)
        axes[0].set_title(site if axes is not grid[0] else f"{site}: {OUTLINED[0]}", fontsize=7)
    return drawn


def _decoded(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), np.uint8)


TABLES: Mapping[str, Any] = {
    "fedce_table1_prostate": table1_prostate,
    "fedce_table1_fundus": table1_fundus,
    "fedce_table1_control": table1_control,
    "fedce_table2": table2,
    "fedce_table3": table3,
    "fedce_table3_real": table3_real,
    "fedce_tables4_5": tables4_5,
    "fedce_figures4_7": figures4_7,
    "fedce_rider_ranks": rider_ranks,
    "fedce_figure5": figure5,
    "fedce_figure6": figure6,
}
FIGURES: Mapping[str, Any] = {
    "fedce_figure2": figure2,
    "fedce_figure3": figure3,
    "fedce_figures4_7": figures4_7_by_round,
    "fedce_figures8_9": figures8_9,
}
