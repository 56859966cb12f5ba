# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The check of a site of an adopted bundle names each file that would stop a training."""

from __future__ import annotations

from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from helpers.foreign_bundles import write_foreign_bundle, write_nested_balls

from monai_fairfl.bundle.adoption import adopt_bundle, check_listed_site
from monai_fairfl.errors import ConfigError, DataError

CONFIG = ["configs/train.json", "configs/federated_train.json"]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """An adopted bundle."""
    bundle = write_foreign_bundle(tmp_path / "bundle", "dynunet")
    adopt_bundle(bundle)
    return bundle


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site with six cases."""
    return write_nested_balls(tmp_path / "data", ["A"], side=8) / "A"


@pytest.mark.slow
def test_a_sound_site_has_cases_in_every_part_and_nothing_is_written(
    bundle: Path, site: Path
) -> None:
    before = sorted(bundle.rglob("*"))
    parts = check_listed_site(str(site), str(bundle), CONFIG)
    assert parts == {"training": 3, "validation": 2, "testing": 1}
    assert sorted(bundle.rglob("*")) == before


@pytest.mark.slow
def test_all_files_that_cannot_be_used_are_named_at_once(bundle: Path, site: Path) -> None:
    damaged = site / "volumes" / "case1.nii.gz"
    damaged.write_bytes(damaged.read_bytes()[:100])
    spoilt = site / "volumes" / "case2.nii.gz"
    values = np.full((8, 8, 8), np.nan, np.float32)
    nib.save(nib.Nifti1Image(values, np.eye(4)), spoilt)
    with pytest.raises(DataError, match="2 problem") as refused:
        check_listed_site(str(site), str(bundle), CONFIG)
    assert f"{damaged} cannot be read" in str(refused.value)
    assert f"{spoilt} has values that are not finite" in str(refused.value)


@pytest.mark.slow
def test_a_site_without_the_bundles_files_is_an_error_that_names_it(
    bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=f"{tmp_path / 'empty'}: the bundle's lists name no case"):
        check_listed_site(str(tmp_path / "empty"), str(bundle), CONFIG)


def test_a_configuration_without_a_data_list_is_refused(bundle: Path, site: Path) -> None:
    with pytest.raises(ConfigError, match="no key datalist"):
        check_listed_site(str(site), str(bundle), CONFIG[:1])
