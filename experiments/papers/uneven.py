# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Uneven federations: one hospital is small, one clinic is of another kind, two have noise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from agreement import pearson
from papers.stronger import CANDIDATES
from reading import (
    MODELS,
    NOTHING,
    BySeed,
    Result,
    Results,
    by_seed,
    hierarchical_difference,
    markdown,
    measurement,
    only,
    pooled,
    read,
    received_and_used,
    shown_name,
    site_means,
    table_of_seeds,
    words,
)
from study import ALONE, Study

from monai_fairfl.statistics.fairness import performance

SMALL = "BIDMC"
UNIFORM = "FedAvg-uniform"
GROUPS = ("corrupted", "clean")


def complete() -> Results:
    """Read the methods of all settings of ``uneven_prostate``, under their own names.

    A method that several settings train has the setting in its name, but for the first.
    """
    found = Results()
    for setting in ("", "float32", "instance_norm"):
        for strategy, results in read("uneven_prostate", setting).items():
            name = strategy
            if name in found:
                name = f"{strategy}, {setting.replace('_', ' ')}"
            found[name] = results
    return found


def prostate() -> str:
    """BIDMC has a quarter of the others' training volumes: Dice, and what is taken."""
    found = complete()
    rows = []
    for name, results in found.items():
        rows.append([shown_name(name), taken(results), taken(results, [SMALL])])
    taken_by_all = markdown(["method", "all sites", SMALL], rows)
    return (
        f"{received_and_used(found, [SMALL])}\n\n"
        f"What the sites take, of all sites and seeds:\n\n{taken_by_all}"
    )


def taken(results: Iterable[Result], sites: Sequence[str] = ()) -> str:
    """Count which models the sites take: the received one, kept, or a candidate of the last mile.

    >>> miles = {"A": {"taken": "adapted"}, "B": {"taken": None}}
    >>> taken([{"last_mile": miles}, {"last_mile": miles}])
    'kept 2, adapted 2'
    """
    counts: Counter[str] = Counter()
    for result in results:
        for site, mile in result.get("last_mile", {}).items():
            if not sites or site in sites:
                counts[mile["taken"] or "kept"] += 1
    shown = [f"{name} {counts[name]}" for name in ("kept", *CANDIDATES) if counts[name]]
    return ", ".join(shown) or NOTHING


def over_uniform() -> str:
    """What fair methods add to uniform weights, which need no method at all, received and used."""
    found = complete()
    rows = []
    for method in ("FedCE", "FedCE-sum", "ShapFed-paper", "FedLWR-paper", "FedLWR-released"):
        row = [shown_name(method)]
        for model in MODELS:
            one, other = (by_seed(found[name], model) for name in (method, UNIFORM))
            for pair in ((one, other), (only(one, SMALL), only(other, SMALL))):
                row.append(words(hierarchical_difference(*pair), signed=True))
        rows.append(row)
    head = ["method"]
    for name in MODELS.values():
        head += [f"mean, {name}", f"{SMALL}, {name}"]
    return markdown(head, rows)


def others() -> str:
    """Each of the other hospitals in turn has a quarter of the training volumes."""
    parts = []
    for small in Study.read("uneven_others").settings:
        dice = received_and_used(read("uneven_others", small), [small])
        parts.append(f"{small} is small. {dice}")
    return "\n\n".join(parts)


def views() -> str:
    """One generated clinic, ebony, has pairs of views side by side, which nobody splits."""
    values = {name: by_seed(results) for name, results in read("uneven_views").items()}
    return table_of_seeds(values, ["ebony"])


def yardstick(name: str) -> str:
    """All volumes in one place, or the masks of the hospitals' own models fused."""
    titles = {
        "dice": "all volumes in one place",
        "majority": "majority of the masks",
        "staple": "STAPLE of the masks",
    }
    found = complete()
    values: dict[str, BySeed] = {
        "training alone": by_seed(found[ALONE]),
        "FedAvg": by_seed(found["FedAvg"]),
    }
    for key, of_seeds in measurement(name).items():
        if key in titles:
            values[titles[key]] = {int(seed): of_seed for seed, of_seed in of_seeds.items()}
    return table_of_seeds(values, [SMALL])


# --- two of ten clients have noisy volumes, and all train by cross-entropy


def corrupted(study: str) -> str:
    """Dice of both groups, gains over FedAvg, and how many times sharper corrupted clients are.

    All clients are tested with the same volumes, corrupted clients with noise in them.
    """
    found = read(study)
    values = {name: of_groups(study, results) for name, results in found.items()}
    rows = []
    for name, of_method in values.items():
        means = site_means(pooled(of_method))
        gains = [NOTHING] * 2
        if name != "FedAvg":
            gains = []
            for group in GROUPS:
                pair = only(of_method, group), only(values["FedAvg"], group)
                gains.append(words(hierarchical_difference(*pair), signed=True))
        shown = [f"{means[group]:.3f}" for group in GROUPS]
        rows.append([shown_name(name), *shown, *gains, _ratios(study, found[name])])
    head = ["method", *(f"{group} clients" for group in GROUPS)]
    head += [f"{group} above FedAvg" for group in GROUPS]
    return markdown([*head, "sharpness, corrupted / clean, each seed"], rows)


def of_groups(study: str, results: Iterable[Result]) -> BySeed:
    """Seed -> group -> test case -> mean Dice over the group's clients, so that it counts once."""
    clients = Study.read(study).arguments["groups"]
    found: dict[Any, dict[str, dict[str, float]]] = {}
    for seed, of_sites in by_seed(results).items():
        found[seed] = {}
        for group in GROUPS:
            first, *_ = clients[group]
            found[seed][group] = {}
            for case in of_sites[first]:
                scores = [of_sites[client][case] for client in clients[group]]
                found[seed][group][case] = float(np.mean(scores))
    return found


def _ratios(study: str, results: Iterable[Result]) -> str:
    """Write how many times sharper corrupted clients are at the end, seed by seed."""
    clients = Study.read(study).arguments["groups"]
    ratios = []
    for result in results:
        means = []
        for group in GROUPS:
            own = [result["closing"][client]["own"] for client in clients[group]]
            if "sharpness" not in own[0]:
                # Ditto's personal models were not measured.
                return NOTHING
            means.append(np.mean([measured["sharpness"] for measured in own]))
        ratios.append(f"{means[0] / means[1]:.1f}")
    return ", ".join(ratios)


# --- what was predicted

Verdict = tuple[bool, str]
"""Whether a prediction came true, and the numbers."""


def predictions() -> str:
    """What was predicted in ``experiments/README.md`` before any of these cells was tested.

    The predictions are of the models that the sites receive; the other column judges those used
    after a last mile.
    """
    rows = []
    for prediction, judge in PREDICTIONS.items():
        rows.append([prediction, *(_shown(judge(model)) for model in MODELS)])
    prediction = "corrupted clients above FedAvg's, clean ones not lower by more than 0.01"
    rows.append([f"FedISM with cross-entropy: {prediction}", _shown(_fedism()), NOTHING])
    return markdown(["predicted", *(f"models {name}" for name in MODELS.values())], rows)


def _shown(verdict: Verdict) -> str:
    came_true, numbers = verdict
    return f"**{'yes' if came_true else 'no'}**: {numbers}"


def _fedce_gains(model: str) -> Verdict:
    found = complete()
    fedce, fedavg = (by_seed(found[name], model) for name in ("FedCE", "FedAvg"))
    worst = hierarchical_difference(fedce, fedavg, np.min)
    mean = hierarchical_difference(fedce, fedavg)
    came_true = worst.estimate >= 0.05 and worst.low > 0 and mean.estimate >= 0
    return came_true, f"worst site {words(worst, signed=True)}, mean {words(mean, signed=True)}"


def _fedce_evens(model: str) -> Verdict:
    return _ahead("FedCE", ("FedAvg", UNIFORM), model, deviation_too=True)


def _fedlwr_helps(model: str) -> Verdict:
    variants = ("paper", "released")
    verdicts = [_ahead(f"FedLWR-{name}", (UNIFORM,), model, False) for name in variants]
    numbers = [f"{name} {shown}" for name, (_, shown) in zip(variants, verdicts)]
    return any(came_true for came_true, _ in verdicts), "<br>".join(numbers)


def _ahead(method: str, others: Sequence[str], model: str, deviation_too: bool) -> Verdict:
    """In two of three seeds, is a method's worst site above that of all others?

    Args:
        method: its name.
        others: those that it is compared with.
        model: that the sites receive or use.
        deviation_too: whether its deviation over sites must be lower, too.
    """
    found = complete()
    values = {name: by_seed(found[name], model) for name in (method, *others)}
    seeds = 0
    numbers = []
    for seed in values[method]:
        of_seed = {name: performance(site_means(each[seed])) for name, each in values.items()}
        one, *rivals = of_seed.values()
        better = all(one.worst > rival.worst for rival in rivals)
        evener = all(one.std < rival.std for rival in rivals)
        seeds += better and (evener or not deviation_too)
        shown = []
        for name, each in of_seed.items():
            shown.append(f"{name} {each.worst:.3f}, std {each.std:.3f}")
        numbers.append(f"seed {seed}: worst {'; '.join(shown)}")
    return seeds >= 2, f"{seeds} seeds; {'<br>'.join(numbers)}"


def _cgsv_rewards(model: str) -> Verdict:
    found = read("uneven_prostate", "instance_norm")
    fairness, null = (100 * _follows_alone(found, name, model) for name in ("CGSV", "CGSV-null"))
    return fairness >= 70 and fairness - null >= 20, f"{fairness:.0f}, null row {null:.0f}"


def _shapfed_follows(model: str) -> Verdict:
    found = read("uneven_prostate")
    names = ("ShapFed-paper", "ShapFed-released", "FedAvg")
    paper, released, fedavg = (_follows_alone(found, name, model) for name in names)
    numbers = f"paper {paper:.2f}, released {released:.2f}; FedAvg {fedavg:.2f}"
    return max(paper, released) >= 0.85, numbers


def _follows_alone(found: Results, method: str, model: str) -> float:
    """Correlate the sites' Dice with that of the models trained alone, over all seeds' cases."""
    alone = site_means(pooled(by_seed(found[ALONE])))
    return pearson(alone, site_means(pooled(by_seed(found[method], model))))


def _fedism() -> Verdict:
    found = read("uneven_corrupted")
    of_methods = [of_groups("uneven_corrupted", found[name]) for name in ("FedISM", "FedAvg")]
    gains = {}
    for group in GROUPS:
        ours, fedavg = (only(each, group) for each in of_methods)
        gains[group] = hierarchical_difference(ours, fedavg)
    came_true = gains["corrupted"].estimate > 0 and gains["clean"].estimate >= -0.01
    numbers = [f"{group} {words(gain, signed=True)}" for group, gain in gains.items()]
    return came_true, ", ".join(numbers)


PREDICTIONS = {
    "FedCE: worst site at least 0.05 above FedAvg's, interval above zero, mean not lower": (
        _fedce_gains
    ),
    "FedCE: deviation lower and worst site higher than FedAvg's and uniform weights' in two of "
    "three seeds": _fedce_evens,
    "Fed-LWR, one of its variants: worst site above that of uniform weights in two of three "
    "seeds": _fedlwr_helps,
    "CGSV with rewards: collaboration fairness at least 70, and 20 above its null row": (
        _cgsv_rewards
    ),
    "ShapFed, one of its variants: sites' Dice correlates with that of training alone by at least "
    "0.85": _shapfed_follows,
}

TABLES: Mapping[str, Any] = {
    "uneven_predictions": predictions,
    "uneven_prostate": prostate,
    "uneven_over_uniform": over_uniform,
    "uneven_pooled": partial(yardstick, "uneven_pooled"),
    "uneven_fusion": partial(yardstick, "uneven_fusion"),
    "uneven_others": others,
    "uneven_views": views,
    "uneven_corrupted": partial(corrupted, "uneven_corrupted"),
    "uneven_corrupted_longer": partial(corrupted, "uneven_corrupted_longer"),
}
