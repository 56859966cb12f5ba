# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Trainings with watched clients train on the images that they name, and on no others."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trainings

from monai_fairfl.data import SITES, write_sites
from monai_fairfl.strategies import FedAvg


def test_no_generated_images_take_the_place_of_real_ones_that_are_not_there(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with pytest.raises(SystemExit, match="no real images in .*data"):
        trainings.TRAININGS["four hospitals"].run(FedAvg(), (), data, tmp_path / "runs" / "run")
    assert not data.exists()


def test_hospitals_whose_writing_was_interrupted_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = partial(write_sites, size=(16, 16, 4), cases=2)
    monkeypatch.setitem(trainings.GENERATED, "six_prostate", small)
    small(tmp_path / "sites" / "six_prostate", SITES[:1], seed=0, cases=1)
    training = trainings.TRAININGS["six generated hospitals"]
    folders = training._folders(tmp_path, tmp_path / "sites")
    assert list(folders) == [site.name for site in SITES]
    for folder in folders.values():
        assert len(list(folder.glob("*_segmentation.nii.gz"))) == 2
