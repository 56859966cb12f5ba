# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The bundle that fits the images of a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from monai_fairfl.bundle.configuration import read_metadata, takes_any_folder
from monai_fairfl.bundle.shipped import bundle_names, find_bundle, locate_bundle
from monai_fairfl.bundle.sites import data_folders
from monai_fairfl.data.image_files import is_nifti
from monai_fairfl.data.sites import find_cases, site_folders
from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.workflow.photographs import in_colour

PROSTATE = "prostate_mri_segmentation"
FUNDUS = "fundus_disc_cup_segmentation"

KINDS = {PROSTATE: "volumes", FUNDUS: "photographs"}
"""Shipped bundle -> the images that it is for."""

STRUCTURES = {FUNDUS: ("disc", "cup")}
"""Names of a bundle's nested structures, as its data list wants them."""


def chosen_bundle(root: Path, given: str | None = None) -> Path:
    """The bundle for the hospitals of a folder.

    Args:
        root: one folder per hospital, two or more.
        given: name or path of a bundle; ``None``: the shipped one that fits the images.

    Raises:
        DataError: when the folder holds no hospitals, or of two kinds.
        ConfigError: when it holds one hospital only, or the bundle that was given is none, or for
            images of another kind.
    """
    bundle = None if given is None else locate_bundle(given)
    if bundle is not None and takes_any_folder(bundle):
        require_two_sites(root, data_folders(root, any_folder=True))
        return bundle
    folders = site_folders(root)
    require_two_sites(root, folders)
    if bundle is None:
        return find_bundle(bundle_for(folders))
    _require_its_kind(bundle, root, folders)
    return bundle


def _require_its_kind(bundle: Path, root: Path, folders: Mapping[str, Path]) -> None:
    """Refuse a shipped bundle, or a copy, for images of the other kind; others may take any.

    Raises:
        ConfigError: naming the bundle for these images.
    """
    of_bundle = _shipped_name(bundle)
    if of_bundle is None:
        return
    of_images = bundle_for(folders)
    if of_bundle != of_images:
        raise ConfigError(
            f"{root} holds {KINDS[of_images]}, and {bundle.name} is for {KINDS[of_bundle]}: leave "
            f"--bundle out, or name {of_images}"
        )


def _shipped_name(bundle: Path) -> str | None:
    """The shipped bundle that a bundle is, or was copied from; ``None`` for one of one's own."""
    name = read_metadata(bundle).get("name")
    for shipped in bundle_names():
        if read_metadata(find_bundle(shipped)).get("name") == name:
            return shipped
    return None


def require_two_sites(root: Path, folders: Mapping[str, Path]) -> None:
    """Refuse a folder with one hospital.

    Raises:
        ConfigError: naming the hospital.
    """
    if len(folders) < 2:
        found = f"one site, {', '.join(folders)}" if folders else "no site"
        raise ConfigError(f"{root} holds {found}; a federation needs two: give the folder above")


def bundle_for(folders: Mapping[str, Path]) -> str:
    """Choose the bundle for these sites: prostate for volumes, fundus for photographs.

    Raises:
        DataError: when some hold volumes and others photographs, or grey pictures; all are named.
    """
    volumes = []
    photographs = []
    grey = []
    for site, folder in folders.items():
        # What cannot be read is reported by the check of the whole site.
        try:
            image = find_cases(folder)[0]["image"]
            if is_nifti(image):
                volumes.append(site)
                continue
            coloured = _is_coloured(image)
        except (DataError, OSError):
            continue
        photographs.append(site)
        if not coloured:
            grey.append(site)
    if grey:
        raise DataError(
            f"{', '.join(grey)} hold grey pictures, such as slices: no bundle of this package is "
            "for these. Give volumes (NIfTI) or colour photographs of the fundus, or make a bundle "
            "of your own (docs/own_bundle.md)"
        )
    if volumes and photographs:
        raise DataError(
            f"two kinds of sites: {', '.join(volumes)} hold volumes (NIfTI), "
            f"{', '.join(photographs)} photographs; they cannot train one model. Put each kind "
            "into a folder of its own and try these one after the other"
        )
    if photographs:
        return FUNDUS
    return PROSTATE


def _is_coloured(image: str) -> bool:
    with Image.open(image) as picture:
        return in_colour(np.asarray(picture.convert("RGB")))
