# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What to use when: a situation, a method and its setting, and what was seen of it here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import uneven
from classification.summaries import chosen, each, spread
from papers import controls_cgsv, last_mile, shapfed_figure5, uneven_predictions
from papers.cgsv_figure2 import WRONG
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
    not_found,
    over_folds,
    read,
    shares,
    site_means,
    words,
)
from seeds import Cells, finished, gains, on_same_cells, scores, seeds_and_folds
from study import Study

STUDIES = (
    "prostate",
    "prostate_other_folds",
    "fundus",
    "uneven_prostate",
    "strong_prostate",
    "strong_fundus",
    "fused_photographs",
    "fused_photographs_fifth",
    "quality",
    "quality_volumes",
    "wrong_labels",
    "class_values",
    "six_prostate",
    "six_fundus",
    "real_leave_one_out",
)
MEASUREMENTS = ("controls_cgsv",)
SMALL = "BIDMC"
"""The smallest hospital of `prostate`, with an endorectal coil."""
FUSED = {
    "fused_photographs": "photographs, with fused models",
    "fused_photographs_fifth": "photographs, with fused models, a fifth for validation",
}
"""Study whose sites may take a fused model in the last mile -> its images."""


def table() -> str:
    """Write the rows; a number that is not there yet is named."""
    rows = [
        [
            "hospitals with one kind of image of one organ, some dozens of volumes in all",
            "`FedAvg`",
            "real volumes, four folds",
            _together(),
            "[volumes](results/fedce.md#table-1-prostate)",
        ],
        [
            "every hospital may end with a model of its own",
            "`FedAvg` with [`adapt_epochs`](last_mile.md); on photographs with "
            "[`adapt_fuse`](last_mile.md#fused-models), too",
            _images_of_last_mile(),
            _last_mile(),
            "[one volume](results/uneven.md#the-last-mile), "
            "[volumes](results/stronger.md#the-last-mile), "
            "[photographs](results/stronger.md#photographs), "
            "[fused models](results/stronger.md#fused-models)",
        ],
        [
            "one hospital is small",
            '`FedAvg(weighting="uniform")`, before any fair method',
            "real volumes, two folds; the last line: three seeds",
            _uniform(),
            "[uniform weights](results/chance.md#uniform-weights), "
            "[one volume](results/uneven.md#bidmc-has-one-training-volume)",
        ],
        [
            "uniform weights leave that hospital behind",
            "`FedCE()`, as a trial: no gain over uniform weights is shown",
            "real volumes, four folds; the last line: three seeds",
            _fedce(),
            "[volumes](results/fedce.md#table-1-prostate), "
            "[one volume](results/uneven.md#fedce-or-uniform-weights)",
        ],
        [
            "the sites' images differ in field of view or scale",
            "train each alone too: `Standalone`",
            "real photographs, three folds; the last three lines: three seeds each",
            _alone_on_photographs(),
            "[photographs](results/fedce.md#table-1-fundus), "
            "[another seed](results/chance.md#seeds), "
            "[surer looks](results/stronger.md#photographs), "
            "[other seeds](results/stronger.md#fused-models), [more training photographs]"
            "(results/stronger.md#fused-models-and-more-training-photographs)",
        ],
        [
            "some hospitals have noisy images",
            "`FedGA()` for volumes only, most of whose gain is in one fold of three; not "
            "`FedISM()`",
            "ten clients, two of them with added noise: generated volumes, or photographs of one "
            "clinic, dealt to them; the last line: three real clinics",
            _noisy_images(),
            "[noise](results/fedism.md#table-1), [photographs](results/fedce.md#table-1-fundus)",
        ],
        [
            "some labels may be wrong",
            "train with `CGSV(gamma=None)` and read its contributions, not those of `FedCE()`",
            "photographs of one clinic, dealt to five clients",
            _wrong_labels(),
            "[wrong labels](results/cgsv.md#fig-2)",
        ],
        [
            "in which structure are a site's labels wrong?",
            "class values of `ShapFed()`",
            "photographs of one clinic, dealt to five clients",
            _wrong_class(),
            "[class values](results/shapfed.md#fig-5)",
        ],
        [
            "who brings more must receive more",
            '`CGSV(gamma=0.15, variant="paper", beta=1.0)`, classification without BatchNorm only',
            "pictures of digits, dealt by a power law; real volumes",
            _rewards(),
            "[rewards](controls.md#tables-1-and-2-accuracy-and-fairness-beside-its-null), "
            "[volumes](results/uneven.md#what-was-predicted)",
        ],
        [
            "what was each site worth?",
            "[leave-one-out](valuation.md) by retraining",
            "generated clinics and hospitals, six each; four real hospitals",
            _worth(),
            "[weights and worth](results/fedce.md#table-3)",
        ],
    ]
    head = ["your situation", "method and setting", "images", "what was seen", "table"]
    return markdown(head, rows)


def _together() -> str:
    found = joined("prostate", "prostate_other_folds")
    gain = difference(found["FedAvg"], found["Standalone"])
    return f"Dice, minus that of training alone: {words(gain, signed=True)}"


def _last_mile_cells() -> dict[str, tuple[Cells, Cells]]:
    """Images -> the finished cells of FedAvg, and those of training alone."""
    found = {}
    for name, images in {**last_mile.IMAGES, **FUSED}.items():
        of_study = finished(Study.read(name))
        alone = of_study.get("Standalone", {})
        cells = last_mile.with_baselines(of_study.get("FedAvg", {}), alone, alone)
        if cells:
            found[images] = (cells, alone)
    return found


def _images_of_last_mile() -> str:
    shown = []
    for images, (cells, _) in _last_mile_cells().items():
        shown.append(f"real {images}: {seeds_and_folds(cells)}")
    return "<br>".join(shown)


def _last_mile() -> str:
    shown = []
    for images, (cells, alone) in _last_mile_cells().items():
        gained = words(hierarchical_interval(last_mile.gains_of(cells)), signed=True)
        differences = last_mile.losses_of(cells, cells, alone)
        over_better = words(hierarchical_interval(differences), signed=True)
        losers, number = last_mile.number_of_losers(differences)
        shown.append(
            f"{images}: used − received {gained}; used − the better of received and alone "
            f"{over_better}; of these, losses above {last_mile.RUINED}: {losers} of {number}"
        )
    return "<br>".join(shown)


def _with_alone(study: str) -> dict[str, Cells]:
    """Read FedAvg and training alone on the cells that both have."""
    found = finished(Study.read(study))
    return on_same_cells({name: found.get(name, {}) for name in ("FedAvg", "Standalone")})


def _uniform() -> str:
    # FedAvg was trained again beside the uniform weights, on the same processor.
    trained = read("prostate", "uniform")
    return (
        f"{_over_fedavg(trained['FedAvg-uniform'], trained['FedAvg'])}<br>"
        f"where {SMALL} trains on one volume: {_with_one_volume('FedAvg-uniform', 'FedAvg')}"
    )


def _fedce() -> str:
    found = joined("prostate", "prostate_other_folds")
    return (
        f"{_over_fedavg(found['FedCE'], found['FedAvg'])}<br>"
        f"where {SMALL} trains on one volume, minus uniform weights: "
        f"{_with_one_volume('FedCE', 'FedAvg-uniform')}"
    )


def _over_fedavg(one: Sequence[Result], fedavg: Sequence[Result]) -> str:
    """Describe what the small hospital gains over FedAvg, who loses most, and the mean."""
    gains_of_sites = {}
    for site in site_means(cases(one)):
        gains_of_sites[site] = difference(one, fedavg, [site])
    loser = min(gains_of_sites, key=lambda site: gains_of_sites[site].estimate)
    shown = [f"{site} {words(gains_of_sites[site], signed=True)}" for site in (SMALL, loser)]
    mean = words(difference(one, fedavg), signed=True)
    return f"Dice, minus FedAvg's: {', '.join(shown)}, mean of four {mean}"


def _with_one_volume(one: str, other: str) -> str:
    """Describe what the small hospital gains with a single training volume."""
    found = uneven.complete("uneven_prostate")
    shown = []
    for model, name in uneven.MODELS.items():
        first = uneven.only(uneven.by_seed(found[one], model), SMALL)
        second = uneven.only(uneven.by_seed(found[other], model), SMALL)
        gain = hierarchical_difference(first, second)
        shown.append(f"{name} {words(gain, signed=True)}")
    return f"{SMALL}, {', '.join(shown)}"


def _alone_on_photographs() -> str:
    found = read("fundus")
    loss = difference(found["FedAvg"], found["Standalone"])
    again = difference(read("fundus", "another_seed")["FedAvg"], found["FedAvg"])
    return (
        f"Dice of FedAvg, minus that of training alone: {words(loss, signed=True)}<br>Dice of "
        f"FedAvg with another seed, minus FedAvg's: {words(again, signed=True)}<br>the first with "
        f"more rounds, and looks that lose fewer discs: {_over_alone('strong_fundus')}<br>"
        f"the same with three other seeds: {_over_alone('fused_photographs')}<br>"
        "the same with three further seeds and more training photographs: "
        f"{_over_alone('fused_photographs_fifth')}"
    )


def _over_alone(study: str) -> str:
    """Describe the gain of FedAvg's received model over training alone."""
    same = _with_alone(study)
    gain = hierarchical_interval(gains(scores(same["FedAvg"]), scores(same["Standalone"])))
    return words(gain, signed=True)


def _noisy_images() -> str:
    shown = []
    for study, images in (("quality_volumes", "volumes"), ("quality", "photographs")):
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
        f"Dice of the two noisy clients, minus FedAvg's:<br>{noisy}<br>"
        f"{_fedga_on_clean_photographs()}"
    )


def _fedga_on_clean_photographs() -> str:
    found = read("fundus")
    gain = words(difference(found["FedGA"], found["FedAvg"]), signed=True)
    missed = {}
    for strategy in ("FedGA", "FedAvg"):
        missed[strategy], _ = not_found(found[strategy], "disc")
    return (
        f"FedGA on real photographs without added noise: {gain}; discs not found: "
        f"{missed['FedGA']}, with FedAvg {missed['FedAvg']}"
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
    return f"share of all contributions<br>{'<br>'.join(shown)}"


def _wrong_class() -> str:
    values = shapfed_figure5.class_values()
    honest = len(shapfed_figure5.WRONG)
    scaled = [value / value[honest:].mean(axis=0) for value in values]
    shown = []
    for client, wrong in enumerate(("cups", "discs")):
        of_client = []
        for column, structure in enumerate(shapfed_figure5.CLASSES):
            value = over_folds([float(fold[client, column]) for fold in scaled], np.mean)
            of_client.append(f"{structure} {words(value, 2)}")
        shown.append(f"{wrong} labelled at random places: {', '.join(of_client)}")
    of_clients = "<br>".join(shown)
    return f"class values, where honest clients have 1<br>{of_clients}"


def _rewards() -> str:
    runs = measurement("controls_cgsv")["runs"]
    values, _, _ = controls_cgsv.beside_null(runs, 10, "POW", "received")
    wrongly = chosen(runs, agents=10, partition="POW", method="null: dealt wrongly")
    nulls = [controls_cgsv.fairness_of(run, runs, "received") for run in wrongly]
    twenty, _, _ = controls_cgsv.beside_null(runs, 20, "POW", "received")
    _, volumes = uneven_predictions.cgsv_rewards("test")
    return (
        f"fairness (100 x the correlation with training alone), ten agents: "
        f"{spread(values, 0)}; rewards dealt to the wrong agents: "
        f"{spread(nulls, 0)}<br>twenty agents, three seeds: "
        f"{each(twenty, 0)}<br>segmentation of volumes: "
        f"{volumes}, which rewards nobody"
    )


def _worth() -> str:
    shown = []
    studies = {
        "six_fundus": "generated clinics",
        "six_prostate": "generated hospitals",
        "real_leave_one_out": "real hospitals",
    }
    for study, name in studies.items():
        reference = drops(study)
        found = read(study)
        of_study = []
        of_strategies = {"FedCI": "FedCI", "FedCE": "FedCE", "FedAvg": "share of the images"}
        for strategy, label in of_strategies.items():
            if strategy not in found:
                continue
            estimated = [shares(result) for result in found[strategy]]
            folds = list(zip(estimated, reference, strict=True))
            pearson = over_folds(folds, partial(agree, "Pearson"))
            of_study.append(f"{label} {words(pearson, 2)}")
        shown.append(f"{name}: {', '.join(of_study)}")
    return f"Pearson with leave-one-out by retraining<br>{'<br>'.join(shown)}"
