# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of a GPU times rounds of all sites."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import gpu
from monai_fairfl.bundle.shipped import find_bundle
from monai_fairfl.data import SITES, write_sites
from monai_fairfl.errors import FederationError


@pytest.mark.long
@pytest.mark.slow
def test_a_round_without_a_site_that_fails_is_not_timed(tmp_path: Path) -> None:
    sites = tmp_path / "sites"
    write_sites(sites, SITES[:2], size=(32, 32, 6), cases=6)
    # A single case cannot be split.
    write_sites(sites, SITES[2:3], size=(32, 32, 6), cases=1)
    work = gpu.Work(
        name="slices",
        bundle=find_bundle("prostate_mri_segmentation"),
        sites=sites,
        overrides={"size": [32, 32], "channels": [4, 8, 8]},
        config=("configs/train.json",),
        device="cpu",
        rounds=2,
        repeats=1,
        folder=tmp_path / "runs",
    )
    with pytest.raises(FederationError, match="2 of 3 clients answered.*cedar"):
        work.run("FedAvg", 1)
