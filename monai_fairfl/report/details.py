# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The strategies' own quantities, beyond weights and contributions: what they are called, and where
they go.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from monai_fairfl.report.numbers import Number
from monai_fairfl.report.run import Run
from monai_fairfl.run_folder.ledger import number_in


@dataclass(frozen=True)
class Quantity:
    """How a quantity is shown.

    Args:
        title: plain words, without units.
        axis: title of the axis.
        meaning: one sentence with unit and range.
        key: what a bare number among its keys stands for, such as ``"class"``.
    """

    title: str
    axis: str
    meaning: str = ""
    key: str = ""


@dataclass(frozen=True)
class Drawn:
    """A quantity and what is drawn of it: strategy -> its part of
    ``report["strategies"][strategy]["details"]``.
    """

    quantity: Quantity
    found: dict[str, Any] = field(default_factory=dict)


KNOWN = {
    "kept": Quantity(
        "Share of the step received",
        "Share",
        "How much of the global step each site's reward holds, from 0 to 1: all.",
    ),
    "mixing": Quantity(
        "Share of the global model",
        "Share",
        "Each site's next model: 1 is the global model, 0 the one it trained.",
    ),
    "scale": Quantity(
        "Factor of the update",
        "Factor",
        "What each site's update is multiplied with before it is averaged; 1 is FedAvg's.",
    ),
    "CFFL.reputation": Quantity(
        "Reputation",
        "Reputation",
        "Follows the validation Dice of each site's own model; the sites' reputations sum to 1, "
        "and 0 is a site that no longer counts.",
    ),
    "CGSV.cosine": Quantity(
        "Agreement with the server's step",
        "Cosine",
        "Cosine of a site's update and the server's step (or its Shapley value, with exact=True): 1 is the same "
        "direction, 0 a right angle, -1 the opposite.",
    ),
    "CGSV.reputation": Quantity(
        "Reputation",
        "Reputation",
        "Moving average of the agreement with the server's step; sums to 1 over the sites.",
    ),
    "FairFed.gap": Quantity(
        "Distance from the mean Dice",
        "Distance",
        "How far the received model's validation Dice at a site is from the mean, whichever side, from 0 to 1.",
    ),
    "FedCI.round_value": Quantity(
        "Value in the round",
        "Dice",
        "Shapley value of a site in this round alone, in validation Dice; negative: the coalitions score less with it.",
    ),
    "FedGA.gap": Quantity(
        "Generalisation gap",
        "Loss",
        "Training loss of the averaged model less that of the site's own model which went into it; "
        "positive: averaging cost the site something.",
    ),
    "FedISM.sharpness": Quantity(
        "Sharpness",
        "Loss",
        "How much the training loss rises when the received model moves a small distance up its gradient; "
        "high is sharp, which is thought to generalise worse.",
    ),
    "FedLWR.layer_weight": Quantity(
        "Layer weights", "Weight", "Weight of each site in each layer; a layer sums to 1."
    ),
    "FedLWR.at_clip": Quantity(
        "Layers too alike to tell",
        "Share",
        "Share of a site's layers whose similarity is at its upper limit; where all sites are at 1, the round was a "
        "plain average.",
    ),
    "FedLWR.similarity": Quantity(
        "Similarity of features",
        "Similarity",
        "How alike the features of the site's own and of the average model are on its data, per layer: "
        "1 is the same. It is clipped as the strategy says.",
    ),
    "LeaveOneOut.drop": Quantity(
        "Dice lost without the site",
        "Dice",
        "Validation Dice of everybody's model less that of the model without the site; negative: better without it.",
    ),
    "ShapFed.class_value": Quantity(
        "Class values",
        "Cosine",
        "Cosine of a site's update and the server's in the output layer's row of each class, smoothed over rounds: "
        "1 is the same direction, -1 the opposite.",
        key="class",
    ),
}
"""``STRATEGY.NAME``, or ``NAME`` where it comes from a reward that any strategy may have."""


def details_of(run: Run) -> dict[str, Any]:
    """What the run's records hold besides weights and contributions; empty for ledgers from before
    there were any.

    Returns:
        ``"by_round"``: name -> site -> points ``{"round", "value"}``; ``"last_round"``: name ->
        ``{"round", "keys", "sites"}``, the newest site -> class or layer -> value; ``"keys"`` holds
        classes in natural order, layers in the network's.
    """
    place = {layer: number for number, layer in enumerate(run.start.get("layers") or ())}
    by_round: dict[str, dict[str, list[dict[str, Any]]]] = {}
    last: dict[str, dict[str, Any]] = {}
    for record in run.rounds:
        for name, values in (record.get("details") or {}).items():
            for site, value in values.items():
                if (
                    isinstance(value, Mapping) and "stderr" not in value
                ):  # else an estimate, one number
                    if name not in last or last[name]["round"] != record["round"]:
                        last[name] = {"round": record["round"], "keys": [], "sites": {}}
                    last[name]["sites"][site] = {key: _plain(item) for key, item in value.items()}
                elif number_in(value) is not None:
                    points = by_round.setdefault(name, {}).setdefault(site, [])
                    points.append({"round": record["round"], "value": _plain(value)})
    for found in last.values():
        keys = {key for values in found["sites"].values() for key in values}
        found["keys"] = sorted(keys, key=lambda key: (place.get(key, len(place)), natural(key)))
    return {"by_round": by_round, "last_round": last}


def line_plots(report: Mapping[str, Any]) -> list[Drawn]:
    """Quantities with one number per site and round: strategies that share one share a figure.

    Args:
        report: of :func:`~monai_fairfl.report.write_report`.
    """
    figures: dict[str, Drawn] = {}
    for strategy, name, quantity, found in _each(report, "by_round"):
        same = f"{name}: {quantity.meaning}"
        figures.setdefault(same, Drawn(quantity)).found[strategy] = found
    return list(figures.values())


def heat_maps(report: Mapping[str, Any]) -> list[Drawn]:
    """Quantities with one number per site and class or layer, of the last round: one figure per
    strategy.

    Args:
        report: of :func:`~monai_fairfl.report.write_report`.
    """
    return [
        Drawn(quantity, {strategy: found})
        for strategy, _, quantity, found in _each(report, "last_round")
    ]


def label_of(key: str, quantity: Quantity) -> str:
    """How a class or layer is called.

    >>> label_of("1", KNOWN["ShapFed.class_value"]), label_of("model.0.conv", KNOWN["FedLWR.similarity"])
    ('class 1', 'model.0.conv')
    """
    return f"{quantity.key} {key}" if quantity.key and key.isdecimal() else key


def natural(key: str) -> list[tuple[int, str]]:
    """Sort key in which numbers count as such.

    >>> sorted(["model.10.conv", "model.2.conv"], key=natural)
    ['model.2.conv', 'model.10.conv']
    """
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", key)]


def _plain(value: Any) -> float | None:
    unknown = value is None or (isinstance(value, Mapping) and value.get("value", 0) is None)
    return None if unknown else Number.read(value).value


def _each(report: Mapping[str, Any], form: str) -> Iterator[tuple[str, str, Quantity, Any]]:
    for strategy, found in report["strategies"].items():
        for name, values in found["details"][form].items():
            known = KNOWN.get(f"{found['strategy']}.{name}") or KNOWN.get(name)
            yield strategy, name, known or Quantity(
                name, name, "As the strategy reports it."
            ), values
