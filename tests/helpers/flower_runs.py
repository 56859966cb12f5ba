# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The federation that the tests of Flower run, and what one process makes of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from helpers.checkout import CHECKOUT, TINY

from monai_fairfl import BundleFederation, find_bundle
from monai_fairfl.strategies import FedAvg

BUNDLE = "prostate_mri_segmentation"
SITES = ("alder", "birch", "cedar")
OVERRIDES = {key: value for key, value in TINY.items() if key != "decay_epochs"}


def in_one_process(
    hospitals: Path, run: Path, rounds: int, bundle: Path | None = None, **settings: Any
) -> Path:
    """Run it in this process, FedAvg where no strategies are given; returns the run's folder."""
    given = {"strategies": FedAvg(), "site_names": SITES, "overrides": OVERRIDES, **settings}
    root = bundle or find_bundle(BUNDLE)
    BundleFederation(
        str(root), str(hospitals), run_dir=str(run), rounds=rounds, report=False, **given
    ).run()
    return run


def blocks_of(page: str, language: str) -> list[str]:
    """The texts of a page's blocks in a language."""
    text = (CHECKOUT / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
