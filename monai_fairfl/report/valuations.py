# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Valuations made after a run, as the page shows them: a table, a bar for each share, and how far
to trust them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.statistics.intervals import Interval

NEEDED = {
    "name",
    "strategy",
    "method",
    "utility",
    "data",
    "values",
    "shares",
    "evaluations",
    "rank_stability",
    "total",
}
METHODS = {
    "exact": "Shapley value",
    "leave_one_out": "Leave-one-out",
    "permutation": "Shapley value, permutations sampled",
    "stratified": "Shapley value, coalitions sampled by size",
    "gtg": "GTG-Shapley",
}
UTILITIES = {
    "mean": "mean Dice of the sites",
    "pooled": "mean Dice of all cases",
    "worst": "Dice of the worst site",
    "negative_loss": "minus the training loss",
}


def read_valuations(run_dir: Path) -> list[dict[str, Any]]:
    """What ``run_dir/valuations/*.json`` hold, in the order of their names.

    Raises:
        ConfigError: naming a file that is damaged.
    """
    found = []
    for file in sorted((run_dir / "valuations").glob("*.json")):
        try:
            valuation = json.loads(file.read_text(encoding="utf-8"))
            if not NEEDED <= set(valuation):
                raise ValueError(f"it lacks {sorted(NEEDED - set(valuation))}")
        except (OSError, ValueError, TypeError) as error:
            again = "remove it, and the same command with --resume True makes it again"
            raise ConfigError(f"{file} is damaged; {again}") from error
        found.append(valuation)
    return found


def title_of(valuation: Mapping[str, Any]) -> str:
    """What was valued and how, in words.

    >>> title_of({"name": "retraining-FedAvg-exact-gland-test", "method": "exact", "utility": "gland", "data": "test"})
    'Shapley value of the Dice of gland, test images, federations trained anew'
    """
    utility = UTILITIES.get(valuation["utility"], f"Dice of {valuation['utility']}")
    images = "training" if valuation["utility"] == "negative_loss" else valuation["data"]
    made = (
        "federations trained anew"
        if valuation["name"].startswith("retraining")
        else "models rebuilt from updates"
    )
    return f"{METHODS.get(valuation['method'], valuation['method'])} of the {utility}, {images} images, {made}"


def trust_of(valuation: Mapping[str, Any]) -> str:
    """What it is made of, and how far the method's own shares agree with it, in words.

    >>> trust_of({"total": 0.2, "evaluations": 8, "rank_stability": None, "strategy": "FedCE", "fidelity": None})
    'All values together 0.2000, from 8 models; stability of the ranking unknown.'
    """
    stability = valuation["rank_stability"]
    told = "unknown" if stability is None else f"{stability:.2f} of 1"
    words = (
        f"All values together {valuation['total']:.4f}, from {valuation['evaluations']} models; "
        f"stability of the ranking {told}."
    )
    if not valuation.get("fidelity"):
        return words
    names = {
        "pearson": ("Pearson", 1),
        "spearman": ("Spearman", 1),
        "euclidean": ("Euclid", 3),
        "cosine": ("cosine", 3),
    }
    agreement = ", ".join(
        f"{name} {Interval.read(valuation['fidelity'][key]).words(digits)}{' of 100' if digits == 1 else ''}"
        for key, (name, digits) in names.items()
    )
    return f"{words} {valuation['strategy']}'s own shares compared with these: {agreement}."


def bars_of(strategy: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """What is drawn for one of ``report["strategies"]``: the method's own shares, then each
    valuation's, by site.
    """
    own = next((found["own"] for found in strategy["valuations"] if found.get("own")), None)
    label = "its own contributions" if strategy["estimates_contributions"] else "its weights"
    drawn = {} if own is None else {label: {site: entry["value"] for site, entry in own.items()}}
    return drawn | {found["name"]: dict(found["shares"]) for found in strategy["valuations"]}
