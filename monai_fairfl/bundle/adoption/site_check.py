# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Checks a site of an adopted bundle: its data list, and every file of it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from monai.transforms import LoadImage

from monai_fairfl.bundle.shipped import TRAIN
from monai_fairfl.bundle.site import listed_cases
from monai_fairfl.bundle.sites import data_folders
from monai_fairfl.data.image_files import WORKERS
from monai_fairfl.data.layouts import CaseFiles, all_cases, all_named
from monai_fairfl.errors import ConfigError, DataError, in_words


def check_listed_site(
    site_dir: str,
    bundle_root: str,
    config: Sequence[str] = TRAIN,
    cases: Sequence[CaseFiles] | None = None,
) -> dict[str, int]:
    """Make a site's data list, and read every file in it to its end.

    What the images mean is the bundle's own matter: sizes, channels and labels are not judged.

    Args:
        site_dir: the site's folder.
        bundle_root: of the adopted bundle.
        config: its training configuration and the overlay.
        cases: the only ones that are checked, of a data list, with absolute paths; ``None``: all
            that the bundle lists.

    Returns:
        Number of cases by part.

    Raises:
        DataError: with the number of problems of the site, and the first twenty.
        ConfigError: the configuration has no ``datalist``.

    >>> import tempfile
    >>> from monai_fairfl.data import SITES, write_sites
    >>> with tempfile.TemporaryDirectory() as root:
    ...     _ = write_sites(root, sites=SITES[:1], size=(24, 24, 6), cases=1)
    ...     image = f"{root}/alder/Case00.nii.gz"
    ...     label = f"{root}/alder/Case00_segmentation.nii.gz"
    ...     check_listed_site(f"{root}/alder", "brain", cases=[{"image": image, "label": label}])
    {'listed': 1}
    """
    if cases is None:
        parts = listed_cases(site_dir, bundle_root, config)
    else:
        parts = {"listed": list(cases)}
    files = []
    for case in all_cases(parts):
        files += [case["image"], case["label"]]
    with ThreadPoolExecutor(WORKERS) as pool:
        faults = [fault for fault in pool.map(_fault_of, files) if fault]
    if faults:
        listed = all_named(faults, separator="\n- ")
        raise DataError(f"{site_dir}: {len(faults)} problem(s)\n- {listed}")
    return {part: len(members) for part, members in parts.items()}


def listed_sites(folder: Path, bundle_root: Path, config: Sequence[str] = TRAIN) -> dict[str, Path]:
    """The site at ``folder``, or all sites in it, where an adopted bundle lists the cases.

    Raises:
        DataError: the folder is none, or holds no other.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder. Give a site's, or the one that holds them all")
    try:
        listed_cases(folder, bundle_root, config)
        return {folder.name: folder}
    except (ConfigError, DataError) as error:
        sites = data_folders(folder, any_folder=True)
        if not sites:
            raise DataError(f"{folder} holds no site: {error}") from error
        return sites


def _fault_of(file: str) -> str:
    """Why a file cannot be used; empty where it can."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = LoadImage(image_only=True)(file)
        values = np.asarray(image)
    except Exception as error:  # whatever a reader raises
        return f"{file} cannot be read: {in_words(error)}; restore it from a copy"
    if not np.isfinite(values).all():
        return f"{file} has values that are not finite; mend or remove it"
    return ""
