# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""One federation, run by any engine: what the conformance suite asks each of them to do."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from helpers.checkout import TINY

from monai_fairfl.bundle.federation import BundleFederation
from monai_fairfl.bundle.shipped import find_bundle
from monai_fairfl.run_folder.ledger import read_ledger
from monai_fairfl.strategies.resolver import strategy_of
from monai_fairfl.utils.saved_files import read_state_dict

if TYPE_CHECKING:
    from monai_fairfl.transports.flare import FairFLRecipe

BUNDLE = "prostate_mri_segmentation"
CLIENTS = ["alder", "birch", "cedar"]
ROUNDS = 2
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {},
    "FedCE": {},
    "CGSV": {},
    "FedLWR": {},
    "ShapFed": {"personalised": True},
    "FedISM": {},
    "LeaveOneOut": {"judged_by": "others"},
}
EXTENDED = {"FedAvg", "FedISM", "LeaveOneOut", "ShapFed"}
"""Methods whose messages are among those of the others: ``make test-extended`` runs these."""


def methods(extended: Collection[str] = EXTENDED) -> list[Any]:
    """The name of each method, with its marks.

    Args:
        extended: methods that only ``make test-extended`` runs.
    """
    found = []
    for method in METHODS:
        marks = []
        if method in extended:
            marks.append(pytest.mark.extended)
        found.append(pytest.param(method, marks=marks))
    return found


SETTINGS = {key: value for key, value in TINY.items() if key != "decay_epochs"}
LAST_MILE = {"adapt_epochs": 2, "adapt_rate": 0.01}
"""At the end each client trains its own model on."""


def strategy(method: str) -> dict[str, Any]:
    """Configuration of one of the methods."""
    return {"_target_": f"monai_fairfl.strategies.{method}", **METHODS[method]}


def in_process(
    method: str,
    hospitals: Path,
    folder: Path,
    rounds: int = ROUNDS,
    name: str = "",
    bundle: Path | None = None,
    **settings: Any,
) -> Path:
    """Run it in this process; what the engines are compared with."""
    run = folder / (name or method)
    BundleFederation(
        str(bundle or find_bundle(BUNDLE)),
        str(hospitals),
        strategy_of(strategy(method)),
        rounds,
        str(run),
        site_names=CLIENTS,
        overrides=SETTINGS,
        min_clients=len(CLIENTS),
        report=False,
        **settings,
    ).run()
    return run


def recipe(method: str, hospitals: Path, rounds: int = ROUNDS, **arguments: Any) -> FairFLRecipe:
    """The same federation for NVFlare; its run has the same name."""
    # Imported here: the other functions serve where NVFlare is not installed.
    from monai_fairfl.transports.flare import FairFLRecipe

    given = {"min_clients": len(CLIENTS), "name": method, **arguments}
    return FairFLRecipe(
        bundle=BUNDLE,
        strategy=strategy(method),
        num_rounds=rounds,
        sites_root=hospitals,
        overrides=SETTINGS,
        **given,
    )


def assert_same_run(expected: Path, found: Path) -> None:
    """The same models, weights, contributions and scores: to the last bit, and the ledgers' chains
    hold.
    """
    records = read_ledger(expected / "ledger.jsonl")
    for one, two in zip(records, read_ledger(found / "ledger.jsonl"), strict=True):
        assert (
            two == one
        ), f"record {one['kind']} {one.get('round', '')} differs: {_first_difference(one, two)}"
    models = sorted(path.name for path in (expected / "models").glob("*.pt"))
    assert sorted(path.name for path in (found / "models").glob("*.pt")) == models
    for name in models:
        one, two = (read_state_dict(run / "models" / name) for run in (expected, found))
        assert set(one) == set(two) and all(torch.equal(one[key], two[key]) for key in one), name
        assert (expected / "models" / name).read_bytes() == (
            found / "models" / name
        ).read_bytes(), name


def _first_difference(one: Any, two: Any, path: str = "") -> str:
    if isinstance(one, dict) and isinstance(two, dict):
        for key in sorted({*one, *two}):
            if one.get(key) != two.get(key):
                return _first_difference(one.get(key), two.get(key), f"{path}/{key}")
    return f"{path}: {json.dumps(one)[:200]} is not {json.dumps(two)[:200]}"
