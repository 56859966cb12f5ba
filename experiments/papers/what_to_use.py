# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What to use when: a situation, a method and its setting, and what was seen of it here."""

from __future__ import annotations

from functools import partial

import numpy as np
import uneven
from classification.summaries import chosen, spread
from papers import controls_cgsv, last_mile, shapfed_figure5
from papers.cgsv_figure2 import WRONG
from papers.fedce_table1_fundus import MISSED
from papers.fedce_table3 import agree, drops
from papers.fedism_table1 import groups_of
from reading import (
    Result,
    by_fold,
    cases,
    difference,
    hierarchical_difference,
    hierarchical_interval,
    joined,
    markdown,
    measurement,
    over_folds,
    read,
    shares,
    site_means,
    words,
)
from seeds import finished, gains, on_same_cells, scores
from study import Study

from monai_fairfl.statistics.fairness import performance

STUDIES = (
    "prostate",
    "prostate_other_folds",
    "fundus",
    "uneven_prostate",
    "strong_prostate",
    "strong_fundus",
    "quality",
    "quality_volumes",
    "wrong_labels",
    "class_values",
    "six_prostate",
    "six_fundus",
)
MEASUREMENTS = ("controls_cgsv",)
SMALL = "BIDMC"
"""The smallest hospital of `prostate`, with an endorectal coil."""

OF_LAST_MILE = {
    "uneven_prostate": f"volumes, {SMALL} with one for training",
    "strong_prostate": "volumes",
    "strong_fundus": "photographs",
}
"""Study with a last mile -> its images."""


def table() -> str:
    """Write the rows; a number that is not there yet is named."""
    rows = [
        [
            "hospitals with one kind of image of one organ, some dozens of volumes in all",
            "`FedAvg`",
            _together(),
            "[volumes](results/fedce.md#table-1-prostate)",
        ],
        [
            "every hospital may end with a model of its own",
            "any strategy, and [`adapt_epochs`](last_mile.md)",
            _last_mile(),
            "[volumes](results/uneven.md#the-last-mile), "
            "[photographs](results/stronger.md#photographs)",
        ],
        [
            "one of these hospitals is small or unusual",
            '`FedAvg(weighting="uniform")`, before any fair method',
            f"{_uniform()}<br>{_one_volume()}",
            "[uniform weights](results/chance.md#uniform-weights), "
            "[one volume](results/uneven.md#bidmc-has-one-training-volume)",
        ],
        [
            "uniform weights leave that hospital behind",
            "`FedCE()`",
            _fedce(),
            "[volumes](results/fedce.md#table-1-prostate)",
        ],
        [
            "sites that look at different parts of the body, or at other scales",
            "train each alone too: `Standalone`",
            _alone_on_photographs(),
            "[photographs](results/fedce.md#table-1-fundus)",
        ],
        [
            "some hospitals have poor images",
            "`FedGA()` for noisy volumes only, and look at each fold; not `FedISM()`",
            _poor_images(),
            "[noise](results/fedism.md#table-1), " "[photographs](results/fedce.md#table-1-fundus)",
        ],
        [
            "some labels may be wrong",
            "contributions of `CGSV(gamma=None)`, not of `FedCE()`",
            _wrong_labels(),
            "[wrong labels](results/cgsv.md#fig-2)",
        ],
        [
            "which structure of a site is wrong?",
            "class values of `ShapFed()`",
            _wrong_class(),
            "[class values](results/shapfed.md#fig-5)",
        ],
        [
            "who brings more must receive more",
            '`CGSV(gamma=0.15, variant="paper", beta=1.0)`, classification without BatchNorm',
            _rewards(),
            "[rewards](controls.md#tables-1-and-2-accuracy-and-fairness-beside-its-null)",
        ],
        [
            "what was each site worth?",
            "[leave-one-out](valuation.md) by retraining; values of `FedCI()` for a first idea",
            _worth(),
            "[weights and worth](results/fedce.md#table-3)",
        ],
    ]
    return markdown(["your situation", "method and setting", "what was seen", "table"], rows)


def _together() -> str:
    found = joined("prostate", "prostate_other_folds")
    gain = difference(found["FedAvg"], found["Standalone"])
    return f"Dice over training alone {words(gain, signed=True)}"


def _last_mile() -> str:
    over_received = []
    over_better = []
    for name, images in OF_LAST_MILE.items():
        found = finished(Study.read(name))
        alone = found.get("Standalone", {})
        cells = last_mile.with_baselines(found.get("FedAvg", {}), alone, alone)
        if not cells:
            continue
        gained = hierarchical_interval(last_mile.gains_of(cells))
        lost = hierarchical_interval(last_mile.losses_of(cells, cells, alone))
        over_received.append(f"{images} {words(gained, signed=True)}")
        over_better.append(f"{images} {words(lost, signed=True)}")
    return (
        f"FedAvg, Dice of the used model over the received one: {', '.join(over_received)}<br>"
        f"over the better of the received one and the own one: {', '.join(over_better)}"
    )


def _uniform() -> str:
    trained = read("prostate", "uniform")
    uniform, fedavg = trained["FedAvg-uniform"], trained["FedAvg"]
    # Uniform weights were trained on fewer folds than FedCE: only the same folds can be compared.
    found = read("prostate")
    fedce = difference(found["FedCE"], found["FedAvg"], [SMALL])
    folds = len(uniform)
    at_small = words(difference(uniform, fedavg, [SMALL]), signed=True)
    mean = words(difference(uniform, fedavg), signed=True)
    return (
        f"Dice over FedAvg at {SMALL}, {folds} folds: uniform weights {at_small}, FedCE "
        f"{words(fedce, signed=True)}<br>mean over the hospitals, uniform weights: {mean}"
    )


def _one_volume() -> str:
    """Describe the same hospital with a single training volume, before and after a last mile."""
    found = uneven.complete("uneven_prostate")
    shown = []
    for model, name in uneven.MODELS.items():
        fedavg = uneven.only(uneven.by_seed(found["FedAvg"], model), SMALL)
        gains = []
        for strategy, label in {"FedAvg-uniform": "uniform weights", "FedCE": "FedCE"}.items():
            ours = uneven.only(uneven.by_seed(found[strategy], model), SMALL)
            gain = hierarchical_difference(ours, fedavg)
            gains.append(f"{label} {words(gain, signed=True)}")
        shown.append(f"*{name}*: {', '.join(gains)}")
    of_models = "<br>".join(shown)
    return f"Dice over FedAvg at {SMALL}, which trains on one volume:<br>{of_models}"


def _fedce() -> str:
    found = joined("prostate", "prostate_other_folds")
    before = performance(site_means(cases(found["FedAvg"])))
    after = performance(site_means(cases(found["FedCE"])))
    worst = (
        f"worst site: with FedAvg {before.worst_client} {before.worst:.3f}, with FedCE "
        f"{after.worst_client} {after.worst:.3f}"
    )
    return f"{_of_small(found['FedCE'], found['FedAvg'])}<br>{worst}<br>{_fedce_over_uniform()}"


def _fedce_over_uniform() -> str:
    """Describe what FedCE gains at the small hospital over uniform weights."""
    uniform = read("prostate", "uniform")["FedAvg-uniform"]
    gained = words(difference(read("prostate")["FedCE"], uniform, [SMALL]), signed=True)
    of_uneven = []
    found = uneven.complete("uneven_prostate")
    for model, name in uneven.MODELS.items():
        ours, other = (
            uneven.only(uneven.by_seed(found[strategy], model), SMALL)
            for strategy in ("FedCE", "FedAvg-uniform")
        )
        gain = words(hierarchical_difference(ours, other), signed=True)
        of_uneven.append(f"{name} {gain}")
    return (
        f"Dice of FedCE over uniform weights at {SMALL}, {len(uniform)} folds: {gained}; where "
        f"{SMALL} trains on one volume: {', '.join(of_uneven)}"
    )


def _of_small(one: list[Result], other: list[Result]) -> str:
    at_small = words(difference(one, other, [SMALL]), signed=True)
    mean = words(difference(one, other), signed=True)
    return f"Dice over FedAvg at {SMALL} {at_small}, mean {mean}"


def _alone_on_photographs() -> str:
    found = read("fundus")
    loss = difference(found["FedAvg"], found["Standalone"])
    again = difference(read("fundus", "another_seed")["FedAvg"], found["FedAvg"])
    return (
        f"Dice of FedAvg over training alone {words(loss, signed=True)}<br>Dice of FedAvg with "
        f"another seed over FedAvg {words(again, signed=True)}{_with_surer_looks()}"
    )


def _with_surer_looks() -> str:
    """Describe the same clinics with looks that do not lose a disc, on the cells that exist."""
    found = finished(Study.read("strong_fundus"))
    if not {"FedAvg", "Standalone"} <= set(found):
        return ""
    same = on_same_cells({name: found[name] for name in ("FedAvg", "Standalone")})
    loss = hierarchical_interval(gains(scores(same["FedAvg"]), scores(same["Standalone"])))
    return (
        "<br>The same with more rounds and [surer looks](results/stronger.md#photographs): "
        f"FedAvg over training alone {words(loss, signed=True)}"
    )


def _poor_images() -> str:
    shown = []
    for study, images in (("quality_volumes", "Volumes"), ("quality", "Photographs")):
        found = read(study, "noise20")
        corrupted = groups_of(study, "noise20")["corrupted"][:1]
        of_images = []
        for strategy in ("FedGA", "FedISM"):
            compared = found[strategy], found["FedAvg"], corrupted
            gain = words(difference(*compared), signed=True)
            of_images.append(f"{strategy} {gain}, by fold {by_fold(*compared)}")
        shown.append(f"{images}: {'; '.join(of_images)}")
    noisy = "<br>".join(shown)
    return (
        f"Dice over FedAvg of the two noisy clients of ten:<br>{noisy}<br>"
        f"{_fedga_on_clean_photographs()}"
    )


def _fedga_on_clean_photographs() -> str:
    found = read("fundus")
    gain = words(difference(found["FedGA"], found["FedAvg"]), signed=True)
    missed = {}
    for strategy in ("FedGA", "FedAvg"):
        discs = cases(found[strategy], "disc")
        dice = [score for of_site in discs.values() for score in of_site.values()]
        missed[strategy] = sum(score < MISSED for score in dice)
    return (
        f"Dice over FedAvg on the photographs of three clinics, without added noise: FedGA {gain}; "
        f"discs not found: {missed['FedGA']} with FedGA, {missed['FedAvg']} with FedAvg"
    )


def _wrong_labels() -> str:
    found = read("wrong_labels")
    clean = [client for client, wrong in WRONG.items() if wrong == "none"]
    shown = []
    for strategy in ("CGSV", "FedCE"):
        of_clients = []
        for client in ("client03", *clean):
            of_folds = [shares(result)[client] for result in found[strategy]]
            of_clients.append(words(over_folds(of_folds, np.mean)))
        worst, *honest = of_clients
        shown.append(
            f"{strategy}: the client with {WRONG['client03']} wrong labels {worst}, the two clean "
            f"clients {' and '.join(honest)}"
        )
    return f"share of the contribution<br>{'<br>'.join(shown)}"


def _wrong_class() -> str:
    values = shapfed_figure5.class_values()
    honest = len(shapfed_figure5.WRONG)
    scaled = [value / value[honest:].mean(axis=0) for value in values]
    disc = over_folds([float(value[0, 0]) for value in scaled], np.mean)
    cup = over_folds([float(value[0, 1]) for value in scaled], np.mean)
    return (
        f"cups drawn anywhere: value of the cup {words(cup, 2)}, of the disc {words(disc, 2)}; "
        "honest clients 1"
    )


def _rewards() -> str:
    runs = measurement("controls_cgsv")["runs"]
    values, _, _ = controls_cgsv.beside_null(runs, 10, "POW", "received")
    wrongly = chosen(runs, agents=10, partition="POW", method="null: dealt wrongly")
    nulls = [controls_cgsv.fairness_of(run, runs, "received") for run in wrongly]
    return f"fairness {spread(values, 0)}; rewards dealt to the wrong agents {spread(nulls, 0)}"


def _worth() -> str:
    shown = []
    studies = {"six_fundus": "generated clinics", "six_prostate": "generated hospitals"}
    for study, name in studies.items():
        reference = drops(study)
        found = read(study)
        of_study = []
        for strategy in ("FedCI", "FedCE", "FedAvg"):
            estimated = [shares(result) for result in found[strategy]]
            folds = list(zip(estimated, reference, strict=True))
            pearson = over_folds(folds, partial(agree, "Pearson"))
            of_study.append(f"{strategy} {words(pearson, 2)}")
        shown.append(f"{name} (`{study}`): {', '.join(of_study)}")
    return f"Pearson with leave-one-out by retraining<br>{'<br>'.join(shown)}"
