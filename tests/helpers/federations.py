# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""One federation, run by any engine: what the conformance suite asks each of them to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from helpers.checkout import TINY

from monai_fairfl import BundleFederation, find_bundle, read_ledger, strategies
from monai_fairfl.model_files import state_of_file

if TYPE_CHECKING:
    from monai_fairfl.transports.flare import FairFLRecipe

BUNDLE = "prostate_mri_segmentation"
CLIENTS = ["alder", "birch", "cedar"]
ROUNDS = 2
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {},
    "FedCE": {},
    "ShapFed": {"personalised": True},
}
SETTINGS = TINY
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
    **settings: Any,
) -> Path:
    """Run it in this process; what the engines are compared with."""
    made = getattr(strategies, method)(**METHODS[method])
    given = {"strategies": made, "min_clients": len(CLIENTS), **settings}
    return in_one_process(hospitals, folder / (name or method), rounds, **given)


def in_one_process(
    hospitals: Path, run: Path, rounds: int, bundle: Path | None = None, **settings: Any
) -> Path:
    """The same in this folder, FedAvg where no strategies are given."""
    given = {"strategies": strategies.FedAvg(), "site_names": CLIENTS, "overrides": SETTINGS}
    given |= {"run_dir": str(run), "rounds": rounds, "report": False, **settings}
    BundleFederation(str(bundle or find_bundle(BUNDLE)), str(hospitals), **given).run()
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
    """The same ledger and models, to the last bit; a record or tensor that differs is named."""
    records = [read_ledger(run / "ledger.jsonl") for run in (expected, found)]
    for one, two in zip(*records, strict=True):
        for key in sorted({*one, *two}):
            place = f"{one['kind']} {one.get('round', '')}: {key}"
            assert two.get(key) == one.get(key), place
    models = sorted(path.name for path in (expected / "models").glob("*.pt"))
    assert sorted(path.name for path in (found / "models").glob("*.pt")) == models
    for name in models:
        files = [run / "models" / name for run in (expected, found)]
        one, two = map(state_of_file, files)
        for key in sorted({*one, *two}):
            assert torch.equal(one[key], two[key]), (name, key)
        assert files[0].read_bytes() == files[1].read_bytes(), name
