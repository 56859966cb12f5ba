# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Trainings with watched clients train on the images that they name, and on no others."""

from __future__ import annotations

from pathlib import Path

import pytest
import trainings

from monai_fairfl.strategies import FedAvg


def test_no_generated_images_take_the_place_of_real_ones_that_are_not_there(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with pytest.raises(SystemExit, match="no real images in .*data"):
        trainings.TRAININGS["four hospitals"].run(FedAvg(), (), data, tmp_path / "runs" / "run")
    assert not data.exists()
