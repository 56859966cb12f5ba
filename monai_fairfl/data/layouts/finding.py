# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The layouts of public data sets, each recognised by its files: one module each, with
``recognises`` and ``find``.

A layout of your own is one more module, named in :data:`LAYOUTS`.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from monai_fairfl.data.layouts import dofe, folders, msd, nnunet, nvflare, saml
from monai_fairfl.data.layouts.base import Found, Layout
from monai_fairfl.data.layouts.image_files import is_image, stem
from monai_fairfl.errors import DataError

LAYOUTS: Mapping[str, Layout] = {
    "saml": saml,
    "folders": folders,
    "dofe": dofe,
    "nvflare": nvflare,
    "msd": msd,
    "nnunet": nnunet,
}


_MEANT = {*folders.IMAGES, *folders.MASKS, "imagestr", "labelstr", "dataset.json", "datalist_2d"}


def layout_of(site_dir: str | os.PathLike[str]) -> str:
    """Name of the one layout that recognises a site.

    Args:
        site_dir: the site's folder, or its data list where that is the site (NVFlare).

    Raises:
        DataError: no such folder, no layout recognises it, or several do.

    >>> layout_of("/no/such/folder")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.DataError: /no/such/folder is not a folder...
    """
    site = Path(site_dir)
    if not site.exists():
        raise DataError(
            f"{site} is not a folder. Give the folder that holds the site's images and labels."
        )
    names = [name for name, layout in LAYOUTS.items() if layout.recognises(site)]
    if len(names) == 1:
        return names[0]
    if names:
        kinds = "; ".join(f"{name} ({LAYOUTS[name].EXPECTS})" for name in names)
        raise DataError(
            f"{site} could be {len(names)} layouts: {kinds}. Move the files of all but one elsewhere."
        )
    expected = "\n".join(f"- {name}: {layout.EXPECTS}" for name, layout in LAYOUTS.items())
    raise DataError(
        f"{site} holds no case. There is {_describe(site)}. A site's folder is one of\n{expected}"
    )


def find(site_dir: str | os.PathLike[str]) -> Found:
    """The cases of a site, whatever its layout; see :func:`layout_of`."""
    return LAYOUTS[layout_of(site_dir)].find(Path(site_dir))


def site_folders(root: str | os.PathLike[str], must: bool = True) -> dict[str, Path]:
    """The sites under ``root``, each with what its ``dataset_dir`` must be.

    That is one folder per site, each of any layout, and the data lists of ``root/datalist_2D``,
    where a list is a site and the folders of its images are none. A folder that was meant to be a
    site, such as one with ``images/`` but no masks, is one: its check says what is missing. Other
    folders are left out, with a warning where they hold images.

    Args:
        root: the folder of all sites.
        must: whether there must be a site.

    Returns:
        Site -> its folder or data list, sorted.

    Raises:
        DataError: ``root`` is no folder, there is no site in it, or a list and a folder have one
            name.

    >>> import tempfile
    >>> from monai_fairfl.data import SITES, write_sites
    >>> root = tempfile.mkdtemp()
    >>> _ = write_sites(root, sites=SITES[:2], size=(24, 24, 6), cases=1)
    >>> [(name, folder.name) for name, folder in site_folders(root).items()]
    [('alder', 'alder'), ('birch', 'birch')]
    """
    root = Path(root)
    if not root.is_dir():
        raise DataError(f"{root} is not a folder. Give the folder that holds one folder per site.")
    lists = nvflare.lists(root)
    listed = {folder for file in lists.values() for folder in nvflare.folders_of(file.absolute())}
    others = [p for p in root.iterdir() if p.is_dir() and p.absolute() not in listed]
    sites = {
        p.name: p for p in others if _is_site(p) and not (lists and p.name.startswith("datalist"))
    }
    idle = [p for p in sorted(set(others) - set(sites.values())) if _holds_images(p)]
    idle = [p for p in idle if not any(p.absolute() in inner.parents for inner in listed)]
    notes = [
        f"{p} holds images but is no site (see docs/data.md), and takes no part: {_describe(p)}"
        for p in idle
    ]
    if twice := sorted(sites.keys() & lists.keys()):
        raise DataError(
            f"{lists[twice[0]]} and {sites[twice[0]]} are two sites {twice[0]!r}. Rename one of them."
        )
    sites = dict(sorted((sites | lists).items()))
    if must and not sites:
        itself = [name for name, layout in LAYOUTS.items() if layout.recognises(root)]
        hint = (
            f" It is a site itself ({itself[0]}): give the folder that holds it."
            if itself
            else " Check the path."
        )
        raise DataError(
            "\n- ".join(
                [f"{root} has no site: none of its folders holds images with labels.{hint}", *notes]
            )
        )
    for note in notes:
        warnings.warn(note, stacklevel=2)
    return sites


def sites_at(path: str | os.PathLike[str]) -> dict[str, Path]:
    """The site at ``path``, or all sites under it, as :func:`site_folders` gives them.

    Raises:
        DataError: there is none.
    """
    path = Path(path)
    if path.is_file():
        return {path.stem: path}
    one = (
        path.is_dir()
        and _is_site(path)
        and not (nvflare.lists(path) and len(site_folders(path)) > 1)
    )
    return {path.name: path} if one else site_folders(path)


def _is_site(folder: Path) -> bool:
    if folder.name.startswith("."):
        return False
    meant = any(path.name.lower() in _MEANT for path in folder.iterdir())
    return meant or any(layout.recognises(folder) for layout in LAYOUTS.values())


def _holds_images(folder: Path) -> bool:
    """Whether there are images of any kind in a folder or up to two folders deeper, which nobody
    hid.
    """
    if folder.name.startswith("."):
        return False
    return any(
        is_image(path.name) for depth in ("*", "*/*", "*/*/*") for path in folder.glob(depth)
    )


def _describe(site: Path) -> str:
    """What a folder holds, in a few words, and which half of ``images/`` and ``masks/`` is not
    there.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "images").mkdir()
    >>> (folder / "images" / "7.png").touch()
    >>> _describe(folder)
    'images/ with 1 PNG, but masks/ is missing'
    """
    if site.is_file():
        return f"a file that is no data list: {nvflare.fault_of(site)}"
    if clients := nvflare.lists(site):
        return f"a list for each of {len(clients)} sites; give one of them, such as {next(iter(clients.values()))}"
    visible = [path for path in sorted(site.iterdir()) if not path.name.startswith(".")]
    here = {path.name.lower() for path in visible if path.is_dir()}
    told = [f"{path.name}/ with {_contents(path)}" for path in visible if path.is_dir()]
    told += [_contents(site)] if any(not path.is_dir() for path in visible) else []
    halves = (("images", folders.IMAGES), ("masks", folders.MASKS))
    missing = [name for name, words in halves if not here & set(words)]
    lacking = f", but {missing[0]}/ is missing" if len(missing) == 1 else ""
    return (", ".join(told) or "nothing in it") + lacking


def _contents(folder: Path) -> str:
    """Files of a folder, counted by kind.

    >>> _contents(Path("/no/such/folder"))
    'no files'
    """
    files = [p for p in folder.glob("*") if not p.is_dir() and not p.name.startswith(".")]
    kinds = Counter(p.name[len(stem(p)) + 1 :].upper() or "unnamed" for p in files)
    return ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items())) or "no files"
