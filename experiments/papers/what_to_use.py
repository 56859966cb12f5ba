# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What to use when: a situation, a method and its setting, and what was seen of it here."""

from __future__ import annotations

from functools import partial

import numpy as np
from classification.summaries import chosen, spread
from papers import controls_cgsv, last_mile, shapfed_figure5
from papers.fedce_table3 import agree, drops
from papers.fedism_table1 import groups_of
from reading import (
    Result,
    difference,
    hierarchical_interval,
    joined,
    markdown,
    measurement,
    over_folds,
    read,
    shares,
    words,
)
from seeds import finished
from study import Study

STUDIES = (
    "prostate",
    "prostate_other_folds",
    "fundus",
    "strong_prostate",
    "quality_volumes",
    "wrong_labels",
    "class_values",
    "six_fundus",
)
MEASUREMENTS = ("controls_cgsv",)
SMALL = "BIDMC"
"""The smallest hospital of `prostate`, with an endorectal coil."""


def table() -> str:
    """Write the rows; a number that is not there yet is named."""
    rows = [
        [
            "hospitals with similar images and some dozens of volumes",
            "`FedAvg`",
            _together(),
            "[volumes](results/fedce.md#table-1-prostate)",
        ],
        [
            "every hospital may end with a model of its own",
            "any strategy, and [`adapt_epochs`](last_mile.md)",
            _last_mile(),
            "[last mile](results/stronger.md#the-last-mile)",
        ],
        [
            "one hospital is small or unusual",
            '`FedAvg(weighting="uniform")`, before any fair method',
            _uniform(),
            "[uniform weights](results/chance.md#uniform-weights)",
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
            "`FedGA()`, and look at each fold; not `FedISM()`",
            _poor_images(),
            "[noise](results/fedism.md#table-1)",
        ],
        [
            "some labels may be wrong",
            "contributions of `CGSV()`, not of `FedCE()`",
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
            "`CGSV(beta=1.0)`, classification without BatchNorm",
            _rewards(),
            "[rewards](controls.md#tables-1-and-2-accuracy-and-fairness-beside-its-null)",
        ],
        [
            "what was each site worth?",
            "values of `FedCI()`, or [leave-one-out](valuation.md)",
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
    study = Study.read("strong_prostate")
    found = finished(study)
    if not {"FedAvg", "Standalone"} <= set(found):
        return "not finished"
    alone = found["Standalone"]
    cells = {key: found["FedAvg"][key] for key in found["FedAvg"] if key in alone}
    if not cells:
        return "not finished"
    gained = hierarchical_interval(last_mile.losses_of(cells, cells, alone))
    shown = f"Dice used less the better of FedAvg and alone {words(gained, signed=True)}"
    if study.missing():
        shown += ", not finished"
    return shown


def _uniform() -> str:
    trained = read("prostate", "uniform")
    uniform, fedavg = trained["FedAvg-uniform"], trained["FedAvg"]
    # Uniform weights were trained on fewer folds than FedCE: only the same folds can be compared.
    found = read("prostate")
    fedce = difference(found["FedCE"], found["FedAvg"], [SMALL])
    folds = len(uniform)
    beside = f"FedCE on the same {folds} folds {words(fedce, signed=True)}"
    return f"{_of_small(uniform, fedavg)}; at {SMALL} {beside}"


def _fedce() -> str:
    found = joined("prostate", "prostate_other_folds")
    return _of_small(found["FedCE"], found["FedAvg"])


def _of_small(one: list[Result], other: list[Result]) -> str:
    at_small = words(difference(one, other, [SMALL]), signed=True)
    mean = words(difference(one, other), signed=True)
    return f"Dice over FedAvg at {SMALL} {at_small}, mean {mean}"


def _alone_on_photographs() -> str:
    found = read("fundus")
    loss = difference(found["FedAvg"], found["Standalone"])
    again = difference(read("fundus", "another_seed")["FedAvg"], found["FedAvg"])
    return (
        f"Dice of FedAvg over training alone {words(loss, signed=True)}; of FedAvg from another "
        f"seed over FedAvg {words(again, signed=True)}"
    )


def _poor_images() -> str:
    study, setting = "quality_volumes", "noise20"
    found = read(study, setting)
    corrupted = groups_of(study, setting)["corrupted"][:1]
    shown = []
    for strategy in ("FedGA", "FedISM"):
        gain = difference(found[strategy], found["FedAvg"], corrupted)
        shown.append(f"{strategy} {words(gain, signed=True)}")
    return f"Dice of two noisy clients of ten over FedAvg: {', '.join(shown)}"


def _wrong_labels() -> str:
    found = read("wrong_labels")
    shown = []
    for strategy in ("CGSV", "FedCE"):
        of_clients = []
        for client in ("client03", "client04"):
            of_folds = [shares(result)[client] for result in found[strategy]]
            of_clients.append(words(over_folds(of_folds, np.mean)))
        shown.append(f"{strategy} {' and '.join(of_clients)}")
    return f"share of a client with 60 % wrong labels, and of a clean one: {'; '.join(shown)}"


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
    reference = drops("six_fundus")
    shown = []
    for strategy in ("FedCI", "FedCE", "FedAvg"):
        estimated = [shares(result) for result in read("six_fundus")[strategy]]
        folds = list(zip(estimated, reference, strict=True))
        pearson = over_folds(folds, partial(agree, "Pearson"))
        shown.append(f"{strategy} {words(pearson, 2)}")
    return f"Pearson with leave-one-out by retraining: {', '.join(shown)}"
