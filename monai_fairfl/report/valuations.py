# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Valuations made after a run, as the page shows them: tables, bars and how far to trust them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.report.run import Run
from monai_fairfl.statistics.agreement_words import MEASURES, agreement_words
from monai_fairfl.statistics.intervals import Interval
from monai_fairfl.utils.plain_values import object_of_json

NEEDED: dict[str, tuple[type, ...]] = {  # what the page reads of a valuation
    "name": (str,),
    "strategy": (str,),
    "method": (str,),
    "utility": (str,),
    "data": (str,),
    "values": (dict,),
    "shares": (dict,),
    "evaluations": (int,),
    "rank_stability": (int, float, NoneType),
    "total": (int, float),
}
"""Key of a valuation -> the types that its value may have."""
METHODS = {
    "exact": "Shapley value",
    "leave_one_out": "Leave-one-out",
    "permutation": "Shapley value, permutations sampled",
    "gtg": "GTG-Shapley",
}
UTILITIES = {
    "mean": "mean Dice of the sites",
    "pooled": "mean Dice of all cases",
    "worst": "Dice of the worst site",
    "negative_loss": "minus the training loss",
}


def read_valuations(run_dir: Path) -> list[dict[str, Any]]:
    """The valuations in ``run_dir/valuations``, in the order of their names.

    Raises:
        ConfigError: naming a file that is damaged.
    """
    valuations = []
    for file in sorted((run_dir / "valuations").glob("*.json")):
        try:
            valuation = object_of_json(file.read_bytes())
            _check_form(valuation)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{file} is damaged: {error}. Remove it, and the same command with --resume True "
                f"makes it again"
            ) from error
        valuations.append(valuation)
    return valuations


def _check_form(valuation: Mapping[str, Any]) -> None:
    for key, types in NEEDED.items():
        if key not in valuation:
            raise ValueError(f"it lacks {key}")
        if not isinstance(valuation[key], types):
            raise ValueError(f"{key} is {valuation[key]!r}")
    for client, value in valuation["values"].items():
        if not isinstance(value, dict) or not {"value", "stderr"} <= set(value):
            raise ValueError(f"the value of {client} is {value!r}")


def is_current(valuation: Mapping[str, Any], run: Run) -> bool:
    """Whether a valuation is of the model that the run ended with; the run may have gone on."""
    if run.end is None:
        return False
    model = run.end.get("model")
    return valuation.get("model", model) == model


def title_of(valuation: Mapping[str, Any]) -> str:
    """What was valued and how, in words.

    >>> name = "retraining-FedAvg-exact-gland-test"
    >>> title_of({"name": name, "method": "exact", "utility": "gland", "data": "test"})
    'Shapley value of the Dice of gland, test images, federations retrained'
    """
    method = METHODS.get(valuation["method"], valuation["method"])
    utility = UTILITIES.get(valuation["utility"], f"Dice of {valuation['utility']}")
    images = valuation["data"]
    if valuation["utility"] == "negative_loss":
        images = "training"
    models = "models rebuilt from updates"
    if valuation["name"].startswith("retraining"):
        models = "federations retrained"
    if valuation["name"].startswith("reconstruction-one_round-"):
        models = "models rebuilt from the sums of all rounds' updates"
    title = f"{method} of the {utility}, {images} images, {models}"
    if valuation.get("judged_by") == "others":
        title += ", each hospital judged by the others"
    return title


def trust_of(valuation: Mapping[str, Any]) -> str:
    """How far a valuation can be trusted, and how well the method's own shares agree with it.

    >>> values = {"A": {"value": 0.15}, "B": {"value": 0.05}}
    >>> valuation = {"values": values, "total": 0.2, "evaluations": 8, "rank_stability": None}
    >>> trust_of(valuation)
    'The values sum to 0.2000 and are of 8 models; the stability of the ranking is unknown.'
    >>> trust_of({**valuation, "total": 0.21}).partition(" and ")[0]
    'The values sum to 0.2000, of 0.2100 to share out,'
    """
    stability = "unknown"
    if valuation["rank_stability"] is not None:
        stability = f"{valuation['rank_stability']:.2f} of 1"
    # What is truncated need not sum to what there is to share out.
    total = valuation["total"]
    summed = math.fsum(found["value"] for found in valuation["values"].values())
    shared_out = f"{round(summed, 4) + 0.0:.4f}"
    if abs(summed - total) >= 0.0001:
        shared_out += f", of {total:.4f} to share out,"
    words = (
        f"The values sum to {shared_out} and are of {valuation['evaluations']} models; "
        f"the stability of the ranking is {stability}."
    )
    if not valuation.get("fidelity"):
        return words

    found = {key: Interval.read(valuation["fidelity"][key]) for key in MEASURES}
    return f"{words} {valuation['strategy']}'s own shares {agreement_words(found)}."


def bars_of(strategy: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """What is drawn of one strategy: the method's own shares, then each valuation's, by site.

    Args:
        strategy: one of ``report["strategies"]``.
    """
    bars: dict[str, dict[str, float]] = {}
    own_shares = [found["own"] for found in strategy["valuations"] if found.get("own")]
    if own_shares:
        label = "its weights"
        if strategy["estimates_contributions"]:
            label = "its own contributions"
        bars[label] = {site: share["value"] for site, share in own_shares[0].items()}
    for valuation in strategy["valuations"]:
        bars[valuation["name"]] = dict(valuation["shares"])
    return bars
