# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The strategies' own quantities, beyond weights and contributions: what a ledger holds of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from monai_fairfl.report.numbers import Number
from monai_fairfl.report.quantities import Quantity, quantity
from monai_fairfl.report.run import Run
from monai_fairfl.run.ledger import number_in


def details_of(run: Run) -> dict[str, Any]:
    """What the run's records hold besides weights and contributions.

    Returns:
        ``"by_round"``: name -> site -> points ``{"round", "value"}``; ``"last_round"``: name ->
        ``{"round", "keys", "sites"}``, the newest site -> class or layer -> value; ``"keys"`` holds
        classes in natural order, layers in the network's.
    """
    by_round: dict[str, dict[str, list[dict[str, Any]]]] = {}
    last_round: dict[str, dict[str, Any]] = {}
    for record in run.rounds:
        number = record["round"]
        for name, values in record["details"].items():
            for site, value in values.items():
                if _is_by_class_or_layer(value):
                    found = last_round.get(name)
                    if found is None or found["round"] != number:
                        found = {"round": number, "keys": [], "sites": {}}
                        last_round[name] = found
                    found["sites"][site] = {key: _plain(item) for key, item in value.items()}
                elif number_in(value) is not None:
                    points = by_round.setdefault(name, {}).setdefault(site, [])
                    points.append({"round": number, "value": _plain(value)})
    layers = run.start.get("layers") or ()
    for found in last_round.values():
        found["keys"] = _ordered_keys(found["sites"], layers)
    return {"by_round": by_round, "last_round": last_round}


def quantities_of(report: Mapping[str, Any], form: str) -> Iterator[tuple[str, str, Quantity, Any]]:
    """Strategy, name, texts and numbers of each quantity.

    Args:
        report: of :func:`~monai_fairfl.report.write_report`.
        form: of the quantities, a key of :func:`details_of`.
    """
    for strategy, found in report["strategies"].items():
        for name, values in found["details"][form].items():
            yield strategy, name, quantity(found["strategy"], name), values


def label_of(key: str, quantity: Quantity) -> str:
    """How a figure names a class or layer.

    >>> label_of("1", Quantity("Class values", "Cosine", key="class"))
    'class 1'
    >>> label_of("model.0.conv", Quantity("Layer weights", "Weight"))
    'model.0.conv'
    """
    if quantity.key and key.isdecimal():
        return f"{quantity.key} {key}"
    return key


def natural(key: str) -> list[tuple[int, str]]:
    """Sort key in which numbers count as such.

    >>> sorted(["model.10.conv", "model.2.conv"], key=natural)
    ['model.2.conv', 'model.10.conv']
    """
    parts = []
    for part in re.split(r"(\d+)", key):
        parts.append((int(part), "") if part.isdecimal() else (-1, part))
    return parts


def _is_by_class_or_layer(value: object) -> bool:
    """Whether a value is a mapping of numbers; an estimate is a mapping, too, but one number."""
    return isinstance(value, Mapping) and "stderr" not in value


def _ordered_keys(sites: Mapping[str, Mapping[str, Any]], layers: Sequence[str]) -> list[str]:
    """Layers in the network's order, then classes in natural order."""
    place = {layer: number for number, layer in enumerate(layers)}
    keys = {key for values in sites.values() for key in values}
    return sorted(keys, key=lambda key: (place.get(key, len(place)), natural(key)))


def _plain(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, Mapping) and value.get("value", 0) is None:
        return None
    return Number.read(value).value
