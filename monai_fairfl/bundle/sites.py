# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The sites that take part: where their images are, their names and their groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from monai_fairfl.data.layouts import folders_in, site_folders
from monai_fairfl.errors import ConfigError, did_you_mean
from monai_fairfl.utils.arguments import one_or_several
from monai_fairfl.utils.files import safe_name


def chosen_sites(
    sites_root: str | Path,
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
    known = data_folders(Path(sites_root), any_folder)
    for name, additions in sites.items():
        if "dataset_dir" in additions:
            known[name] = Path(additions["dataset_dir"])
    if not known:
        fix = "give a folder with one folder per hospital"
        raise ConfigError(f"sites_root {sites_root} holds no site: {fix}")
    names = list(known) if chosen is None else one_or_several(chosen)
    # One that is named twice would train and weigh twice.
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"site_names must name one site or more, each once, got {names}")
    for name in [*names, *sites]:
        if name not in known:
            where = f"site {name!r} has no folder in {sites_root}"
            raise ConfigError(f"{where}{did_you_mean(str(name), known)}")
        safe_name(name, "the name of the hospital's folder")
    return {name: known[name].absolute() for name in sorted(names)}


def data_folders(sites_root: Path, any_folder: bool = False) -> dict[str, Path]:
    """Where each site's data is: what its ``dataset_dir`` must be.

    An empty folder is a site too, whose data did not arrive: its check reports that, instead of a
    federation without it. So is one with hidden files only.

    Args:
        sites_root: one folder per site.
        any_folder: every folder is a site, whatever it holds, since the bundle lists its own files;
            else those whose layout is known.
    """
    if not sites_root.is_dir():
        return {}
    folders = {path.name: path for path in folders_in(sites_root)}
    if any_folder:
        return folders
    found = site_folders(sites_root, must=False)
    # Beside data lists, a folder is no site.
    if not any(path.is_file() for path in found.values()):
        empty = {name: path for name, path in folders.items() if not any(path.glob("[!.]*"))}
        found.update(empty)
    return found
