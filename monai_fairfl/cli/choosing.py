# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The bundle that fits the images of a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from monai_fairfl.bundle.configuration import read_metadata, takes_any_folder
from monai_fairfl.bundle.shipped import find_bundle, locate_bundle
from monai_fairfl.bundle.sites import data_folders
from monai_fairfl.data.image_files import is_nifti
from monai_fairfl.data.layouts import find_cases, site_folders
from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.workflow.inputs import in_colour

PROSTATE = "prostate_mri_segmentation"
FUNDUS = "fundus_disc_cup_segmentation"

KINDS = {PROSTATE: "volumes (NIfTI)", FUNDUS: "photographs"}
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
        ConfigError: when it holds one hospital only, or the bundle that was given is none, or a
            shipped one, or a copy, for images of the other kind.
    """
    bundle = None if given is None else locate_bundle(given)
    any_folder = bundle is not None and takes_any_folder(bundle)
    folders = data_folders(root, any_folder=True) if any_folder else site_folders(root)
    require_two_sites(root, folders)
    if bundle is None:
        return find_bundle(bundle_for(folders))
    # A copy has the name of its original in its metadata. Another bundle reads images of its own.
    shipped = {read_metadata(find_bundle(name))["name"]: name for name in KINDS}
    kind = shipped.get(read_metadata(bundle).get("name"))
    if any_folder or kind is None:
        return bundle
    fitting = bundle_for(folders)
    if kind != fitting:
        raise ConfigError(
            f"{root} holds {KINDS[fitting]}, and {bundle.name} is for {KINDS[kind]}: leave "
            f"--bundle out, or name {fitting}"
        )
    return bundle


def require_two_sites(root: Path, folders: Mapping[str, Path]) -> None:
    """Refuse a folder with one hospital, by its name, or with none.

    Raises:
        ConfigError: naming the folder above as the fix.
    """
    if len(folders) < 2:
        found = ", ".join(folders) or "no site"
        raise ConfigError(f"{root} holds {found}; a federation needs two: give the folder above")


def bundle_for(folders: Mapping[str, Path]) -> str:
    """Choose the bundle for these sites: prostate for volumes, fundus for photographs.

    Raises:
        DataError: when some hold volumes and others photographs, or grey pictures; all are named.
    """
    volumes: list[str] = []
    photographs: list[str] = []
    grey: list[str] = []
    for site, folder in folders.items():
        # What cannot be read is reported by the check of the whole site.
        try:
            image = find_cases(folder)[0]["image"]
            if is_nifti(image):
                volumes.append(site)
                continue
            with Image.open(image) as picture:
                coloured = in_colour(np.asarray(picture.convert("RGB")))
        except (DataError, OSError):
            continue
        (photographs if coloured else grey).append(site)
    if grey:
        raise DataError(
            f"{', '.join(grey)} hold grey pictures, such as slices: give volumes (NIfTI) or colour "
            "photographs of the fundus, or make a bundle of your own (docs/own_bundle.md)"
        )
    if volumes and photographs:
        raise DataError(
            f"{', '.join(volumes)} hold volumes (NIfTI) and {', '.join(photographs)} photographs, "
            "which cannot train one model: put each kind into a folder of its own"
        )
    return FUNDUS if photographs else PROSTATE
