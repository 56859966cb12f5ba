# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The clients of :mod:`helpers.linear_run` in place of a bundle's sites."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers.checkout import CHECKOUT
from helpers.driving import SPEC, vector
from helpers.linear_run import LINEAR, START, LinearClient, LinearRun

from monai_fairfl import BundleFederation, InProcess, Strategy
from monai_fairfl.bundle import runs as bundle_runs
from monai_fairfl.bundle.runs import BundleRuns
from monai_fairfl.protocol import RANGES, Range

__all__ = [
    "LINEAR",
    "START",
    "LinearClient",
    "LinearRun",
    "bundle_federation",
    "in_place_of_training",
    "vector",
]


def in_place_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such clients answer for the sites of a :class:`BundleFederation`.

    Everything else is the command's own.
    """

    def transport(self: BundleRuns, folder: Path, names: Sequence[str], pool: object) -> InProcess:
        makers = {}
        for name, letter in zip(names, "ABC"):
            makers[name] = partial(LinearClient, letter, [])
        return InProcess(makers)

    for name, (least, most) in LINEAR.items():
        monkeypatch.setitem(RANGES, name, Range(name, least, most))
    monkeypatch.setattr(BundleRuns, "transport", transport)
    monkeypatch.setattr(bundle_runs, "initial_model", lambda *_: ({"w": vector(START)}, SPEC))


def bundle_federation(
    sites: Path, run_dir: Path, strategies: Sequence[Strategy], **settings: Any
) -> BundleFederation:
    """Two rounds of the prostate bundle at three of the sites; see :func:`in_place_of_training`."""
    settings = {"rounds": 2, "site_names": ["alder", "cedar", "rowan"], **settings}
    bundle = settings.pop("bundle", CHECKOUT / "bundles" / "prostate_mri_segmentation")
    return BundleFederation(
        str(bundle), str(sites), list(strategies), run_dir=str(run_dir), **settings
    )
