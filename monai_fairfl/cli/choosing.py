# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The bundle that fits the images of a folder."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from PIL import Image

from monai_fairfl.bundle import find_bundle, locate_bundle
from monai_fairfl.data.image_files import is_nifti
from monai_fairfl.data.layouts import recognise, site_folders
from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.workflow.inputs import in_colour

PROSTATE = "prostate_mri_segmentation"
FUNDUS = "fundus_disc_cup_segmentation"

BUNDLES = {"volumes (NIfTI)": PROSTATE, "colour photographs": FUNDUS}
"""Kind of images -> the shipped bundle that is for it."""


def chosen_bundle(root: Path, given: str | None = None) -> Path:
    """The bundle for the hospitals of a folder.

    Args:
        root: one folder per hospital, two or more.
        given: name or path of a bundle; ``None``: the shipped one that fits the images.

    Raises:
        DataError: when the folder holds no hospitals, or not of one kind.
        ConfigError: when it holds one hospital only, or the bundle that was given is none, or for
            other images.
    """
    bundle = None if given is None else locate_bundle(given)
    if bundle is not None and bundle.name not in BUNDLES.values():
        return bundle
    folders = site_folders(root)
    if len(folders) < 2:
        raise ConfigError(f"{root} holds only {[*folders]}; a federation needs two sites")
    fitting = bundle_for(folders)
    if bundle is not None and bundle.name != fitting:
        raise ConfigError(f"{root} holds images for {fitting}, and none for {bundle.name}")
    return bundle or find_bundle(fitting)


def bundle_for(folders: Mapping[str, Path]) -> str:
    """Choose the bundle for these sites: prostate for volumes, fundus for photographs.

    Raises:
        DataError: when they hold different kinds, or grey pictures; all sites are named.
    """
    kinds: dict[str, list[str]] = {}
    for site, folder in folders.items():
        # What cannot be read is reported by the check of the whole site.
        with suppress(DataError, OSError):
            for case in recognise(folder).cases[:1]:
                image = Path(case["image"])
                kind = "volumes (NIfTI)"
                if not is_nifti(image):
                    with Image.open(image) as picture:
                        coloured = in_colour(picture)
                    kind = "colour photographs" if coloured else "grey pictures"
                kinds.setdefault(kind, []).append(site)
    if len(kinds) > 1 or not BUNDLES.keys() >= kinds.keys():
        found = "; ".join(f"{', '.join(sites)}: {kind}" for kind, sites in kinds.items())
        raise DataError(f"every site needs {' or '.join(BUNDLES)}, and there are {found}")
    return BUNDLES[next(iter(kinds), "volumes (NIfTI)")]
