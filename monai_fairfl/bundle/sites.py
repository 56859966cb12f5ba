# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The sites that take part: where their images are, their names and their groups."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from monai_fairfl.data.layouts import folders_in, site_folders
from monai_fairfl.errors import ConfigError, did_you_mean
from monai_fairfl.utils.files import safe_name

OF_A_DESKTOP = {"thumbs.db", "desktop.ini"}
"""Files, in small letters, that Windows writes into the folders that somebody opens."""


def chosen_sites(
    sites_root: Path,
    chosen: str | Sequence[str] | None,
    sites: Mapping[str, Mapping[str, Any]],
    any_folder: bool = False,
) -> dict[str, Path]:
    """The sites that take part, sorted -> folder of each one's images.

    Args:
        sites_root: one folder per site.
        chosen: names of those that take part, or the name of a single one; ``None``: all.
        sites: site -> its additions, such as its ``dataset_dir``.
        any_folder: as of :func:`data_folders`.

    Raises:
        ConfigError: when the folder is missing or empty, none is chosen or one twice, or a chosen
            or configured site has no data there.
    """
    known = data_folders(sites_root, any_folder)
    for name, additions in sites.items():
        if "dataset_dir" in additions:
            known[name] = Path(additions["dataset_dir"])
    if not known and not sites_root.is_dir():
        fault = "is a file" if sites_root.exists() else "does not exist"
        raise ConfigError(
            f"sites_root {sites_root} {fault}: give the folder that holds one folder per hospital"
        )
    if not known:
        raise ConfigError(
            f"sites_root {sites_root} holds no site: give it one folder per hospital "
            "(SITE/CaseNN.nii.gz, or another layout of docs/data.md)"
        )
    names = [chosen] if isinstance(chosen, str) else list(known if chosen is None else chosen)
    if not names:
        raise ConfigError("site_names names no site: leave it out for all sites, or name some")
    for name in [*names, *sites]:
        if not isinstance(name, str):
            raise ConfigError(f"site_names must hold names in quotes, got {name!r}")
        # It would train and weigh twice.
        if names.count(name) > 1:
            raise ConfigError(f"site_names names {name!r} twice: name each site once")
        if name not in known:
            raise ConfigError(
                f"site {name!r} has no folder in {sites_root}{did_you_mean(name, known)}"
            )
        safe_name(name, "the name of the hospital's folder")
    return {name: known[name].absolute() for name in sorted(names)}


def data_folders(sites_root: Path, any_folder: bool = False) -> dict[str, Path]:
    """Where each site's data is: what its ``dataset_dir`` must be.

    An empty folder is a site too, whose data did not arrive: its check reports that, instead of a
    federation without it. So is one that holds no more than what a desktop has left there.

    Args:
        sites_root: one folder per site.
        any_folder: every folder is a site, whatever it holds, since the bundle lists its own files;
            else those whose layout is known.
    """
    if not sites_root.is_dir():
        return {}
    folders = folders_in(sites_root)
    if any_folder:
        return {path.name: path for path in folders}
    found = dict(site_folders(sites_root, must=False))
    if any(path.is_file() for path in found.values()):
        return found  # data lists: a folder beside them is no site
    for path in folders:
        if _is_empty(path):
            found[path.name] = path
    return found


def _is_empty(folder: Path) -> bool:
    """Whether a folder holds nothing, or only hidden files and those that a desktop writes."""
    for path in folder.iterdir():
        if not path.name.startswith(".") and path.name.lower() not in OF_A_DESKTOP:
            return False
    return True


def check_groups(groups: Mapping[str, Sequence[str]], sites: Collection[str]) -> None:
    """Refuse a group that names a site that does not take part, or one that is named already.

    >>> check_groups({"corrupted": ["elm"]}, ["elm", "oak"])
    """
    group_of: dict[str, str] = {}
    for name, members in groups.items():
        for site in members:
            if site not in sites:
                raise ConfigError(
                    f"group {name!r} names {site!r}, which does not take part; the sites are "
                    f"{list(sites)}"
                )
            if site in group_of:
                # Within a group, it would count twice in the mean.
                raise ConfigError(
                    f"{site!r} is in the groups {group_of[site]!r} and {name!r}; name it once"
                )
            group_of[site] = name
