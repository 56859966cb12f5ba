# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The bundles that travel with the package: where they lie, and how to take one out."""

from __future__ import annotations

import shutil
from pathlib import Path

from monai_fairfl.errors import ConfigError

TRAIN: tuple[str, ...] = ("configs/train.json",)
"""Files of a bundle's training configuration, where nobody names others."""

# Inside an installed wheel, else at the top of the checkout.
_INSTALLED = Path(__file__).parents[1] / "_bundles"
HOME = _INSTALLED if _INSTALLED.is_dir() else _INSTALLED.parents[1] / "bundles"


def bundle_names() -> list[str]:
    """Names of the shipped bundles.

    >>> "prostate_mri_segmentation" in bundle_names()
    True
    """
    return sorted(path.parent.parent.name for path in HOME.glob("*/configs/metadata.json"))


def find_bundle(name: str) -> Path:
    """Return the folder of a shipped bundle. Read it there, but change only a copy.

    Args:
        name: of the bundle, such as ``"prostate_mri_segmentation"``.

    Raises:
        ConfigError: if no shipped bundle has this name; the text lists the names.

    >>> find_bundle("prostate_mri_segmentation").name
    'prostate_mri_segmentation'
    >>> find_bundle("prostat")
    Traceback (most recent call last):
    ...
    monai_fairfl.errors.ConfigError: no shipped bundle has the name 'prostat': there ...
    """
    if name not in bundle_names():
        raise ConfigError(f"no shipped bundle has the name {name!r}: there are {bundle_names()}")
    return HOME / name


def locate_bundle(bundle: str) -> Path:
    """The root of a bundle that is given by name or by path; a shipped one comes first.

    Args:
        bundle: name of a shipped bundle, or the path of one.

    Returns:
        Its folder.

    Raises:
        ConfigError: it is neither.

    >>> locate_bundle("prostate_mri_segmentation") == find_bundle("prostate_mri_segmentation")
    True
    >>> locate_bundle("/nowhere")
    Traceback (most recent call last):
    ...
    monai_fairfl.errors.ConfigError: bundle '/nowhere' is neither a folder with configs/ here ...
    """
    # A path such as ./NAME or NAME/ is one's own bundle, of whatever name.
    root = HOME / bundle if bundle in bundle_names() else Path(bundle).absolute()
    if not (root / "configs").is_dir():
        raise ConfigError(
            f"bundle {bundle!r} is neither a folder with configs/ here nor one of {bundle_names()}"
        )
    return root


def copy_bundle(source: Path, folder: Path) -> None:
    """Copy a bundle without a site's own weights and caches.

    Args:
        source: its folder.
        folder: which becomes the root of the copy.

    Raises:
        ConfigError: the folder holds something already.

    >>> import tempfile
    >>> root = Path(tempfile.mkdtemp())
    >>> copy_bundle(find_bundle("prostate_mri_segmentation"), root)
    >>> (root / "configs" / "train.json").exists()
    True
    """
    check_new(folder)
    ignored = shutil.ignore_patterns("__pycache__", "*.pt", "*.ts", "*.recipe.json", ".*")
    shutil.copytree(source, folder, ignore=ignored, dirs_exist_ok=True)


def check_new(folder: Path) -> None:
    """Refuse a folder that holds something already, before anything else is written there.

    Raises:
        ConfigError: when it is there and not an empty folder.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already, and is no empty folder: name a new one")
