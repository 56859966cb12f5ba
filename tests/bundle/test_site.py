# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A site's client: what its configuration receives."""

from __future__ import annotations

import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from helpers.checkout import CHECKOUT, TINY

from monai_fairfl.bundle.settings import TRAIN
from monai_fairfl.bundle.site import bundle_client, images_of_site

BUNDLE = CHECKOUT / "bundles" / "prostate_mri_segmentation"
GROUPS = {"corrupted": ["birch"], "clean": ["alder", "elm"]}


@pytest.mark.parametrize(("site", "group"), [("birch", "corrupted"), ("elm", "clean"), ("oak", "")])
def test_a_configuration_that_asks_for_the_sites_group_is_told_its_name(
    tmp_path: Path, site: str, group: str
) -> None:
    config = [*TRAIN, "../../experiments/overlays/corrupted_images.json"]

    client = bundle_client(
        BUNDLE, site, tmp_path, dataset_dir=tmp_path, config=config, groups=GROUPS
    )

    assert client.train_kwargs["group"] == client.eval_kwargs["group"] == group
    plain = bundle_client(BUNDLE, site, tmp_path, dataset_dir=tmp_path, groups=GROUPS)
    assert "group" not in plain.train_kwargs


def test_a_device_is_one_of_torchs_and_brings_no_code(tmp_path: Path) -> None:
    client = bundle_client(BUNDLE, "elm", tmp_path, dataset_dir=tmp_path, device="cuda:0")

    assert client.train_kwargs["device"] == "$torch.device('cuda:0')"
    with pytest.raises(RuntimeError, match="Invalid device"):
        bundle_client(
            BUNDLE,
            "elm",
            tmp_path,
            dataset_dir=tmp_path,
            device="cpu' if __import__('os') else 'cpu",
        )


@pytest.mark.slow
def test_the_images_of_a_site_are_counted_as_its_network_takes_them(
    hospitals: Path, tmp_path: Path
) -> None:
    def count(site: Path, data: str) -> int:
        private = tmp_path / f"{site.name}-{data}"
        client = bundle_client(BUNDLE, "alder", private, dataset_dir=site, overrides=TINY)
        return images_of_site(client, "alder", data)

    assert (
        count(hospitals / "alder", "validation") == 8
    )  # slices of the one volume of four that validates
    assert count(hospitals / "alder", "training") == 2 * TINY["slices_per_volume"]  # type: ignore[operator]
    constant = (
        tmp_path / "constant"
    )  # every slice of a volume is the same: one more slice adds no information
    shutil.copytree(hospitals / "alder", constant)
    for file in constant.glob("Case??.nii.gz"):
        volume = nib.load(file)
        values = np.repeat(volume.get_fdata()[:, :, 4:5], volume.shape[2], axis=2).astype(
            np.float32
        )
        nib.save(nib.Nifti1Image(values, volume.affine), file)
    assert count(constant, "validation") == 1
