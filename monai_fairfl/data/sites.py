# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Which folders are sites, which layout each has, and its cases."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

from monai_fairfl.data.image_files import files_under, is_dicom, is_image, stem
from monai_fairfl.data.layouts import (
    IMAGES,
    LAYOUTS,
    MASKS,
    CaseFiles,
    Found,
    client_lists,
    described_labels,
    description_of,
    fault_of_list,
    folders_of_list,
)
from monai_fairfl.errors import DataError, DataWarning

CONVERT_DICOM = "to NIfTI, for example with dcm2niix"
# Names, in small letters, that only a folder that is meant to be a site holds.
_NAMES_IN_A_SITE = {*IMAGES, *MASKS, "imagestr", "labelstr", "dataset.json", "datalist_2d"}
# Folders of the file system itself, in small letters: a disk has them beside the hospitals.
_OF_THE_FILE_SYSTEM = {"lost+found", "$recycle.bin", "system volume information"}


def find_cases(site_dir: str | os.PathLike[str]) -> list[CaseFiles]:
    """Pair the images of a site with their masks.

    Args:
        site_dir: the site's folder, of any layout, or its data list (NVFlare).

    Returns:
        One ``{"image": path, "label": path}`` per case, sorted by image.

    Raises:
        DataError: no such folder, no layout recognises it, or files do not pair; the error names
            all of them.

    >>> find_cases("/no/such/folder")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.DataError: /no/such/folder is not a folder...
    """
    return find(site_dir).cases


def find(site_dir: str | os.PathLike[str]) -> Found:
    """All that the files of a site say of its cases, whatever its layout; see :func:`layout_of`.

    Raises:
        DataError: no layout has such files, or they do not pair, are missing or cannot be
            understood.
    """
    site = Path(site_dir)
    found = LAYOUTS[layout_of(site)].find(site)
    return replace(found, labels=described_labels(folder_of_site(site)) or found.labels)


def layout_of(site_dir: str | os.PathLike[str]) -> str:
    """Name of the one layout that recognises a site.

    Args:
        site_dir: the site's folder, or its data list where that is the site (NVFlare).

    Raises:
        DataError: no such folder, no layout recognises it, or several do.
    """
    site = Path(site_dir)
    if not site.exists():
        raise DataError(
            f"{site} is not a folder. Give the folder that holds the site's images and labels."
        )
    names = _recognising_layouts(site)
    if len(names) == 1:
        return names[0]
    if names:
        kinds = "; ".join(f"{name} ({LAYOUTS[name].expects})" for name in names)
        raise DataError(
            f"{site} could be {len(names)} layouts: {kinds}. Move the files of all but one"
            " elsewhere."
        )
    expected = "\n".join(f"- {name}: {layout.expects}" for name, layout in LAYOUTS.items())
    raise DataError(
        f"{site} holds no case. There is {_describe(site)}. A site's folder is one of\n{expected}"
    )


def _recognising_layouts(folder: Path) -> list[str]:
    """Names of the layouts that recognise a folder.

    Raises:
        DataError: this account may not read it.
    """
    try:
        return [name for name, layout in LAYOUTS.items() if layout.recognises(folder)]
    except PermissionError as error:
        raise DataError(
            f"{folder} cannot be read, because this account may not read it; change the"
            " permissions, or move it elsewhere"
        ) from error


def site_folders(root: str | os.PathLike[str], must: bool = True) -> dict[str, Path]:
    """Find the sites under ``root``, each with what its ``dataset_dir`` must be.

    That is one folder per site, each of any layout, and the data lists of ``root/datalist_2D``,
    where a list is a site and the folders of its images are none. A folder that was meant to be a
    site, such as one with ``images/`` but no masks, is one: its check names what is missing. Other
    folders are left out, with a warning where they hold images.

    Args:
        root: the folder of all sites.
        must: whether there must be a site.

    Returns:
        Site -> its folder or data list, sorted.

    Raises:
        DataError: ``root`` is no folder, there is no site in it, a list and a folder have one
            name, or this account may not read a folder.

    >>> import tempfile
    >>> from monai_fairfl.data import SITES, write_sites
    >>> root = tempfile.mkdtemp()
    >>> _ = write_sites(root, sites=SITES[:2], size=(24, 24, 6), cases=1)
    >>> [(name, folder.name) for name, folder in site_folders(root).items()]
    [('alder', 'alder'), ('birch', 'birch')]
    """
    root = Path(root)
    if not root.is_dir():
        fault = "is not a folder" if root.exists() else "does not exist"
        raise DataError(f"{root} {fault}. Give the folder that holds one folder per site.")
    lists = client_lists(root)
    sites = dict(lists)
    # The folders above the images of the lists are not sites themselves, nor are those above them.
    listed: set[Path] = set()
    for file in lists.values():
        listed |= folders_of_list(file.absolute())

    notes = []
    for folder in folders_in(root):
        # Without "..", as the folders of a data list are.
        path = Path(os.path.abspath(folder))
        if path in listed or (lists and folder.name.startswith("datalist")):
            continue
        if _is_site(folder):
            if folder.name in lists:
                raise DataError(
                    f"{lists[folder.name]} and {folder} are two sites {folder.name!r}. Rename one"
                    " of them."
                )
            sites[folder.name] = folder
        elif any(is_image(file.name) or is_dicom(file) for file in files_under(folder)):
            notes.append(
                f"{folder} holds images but is no site (see docs/data.md), and takes no part:"
                f" {_describe(folder)}"
            )
    if must and not sites:
        hint = "Check the path."
        if names := _recognising_layouts(root):
            hint = f"It is a site itself ({names[0]}): give the folder that holds it."
        fault = f"{root} has no site: none of its folders holds images with labels. {hint}"
        raise DataError("\n- ".join([fault, *notes]))
    for note in notes:
        warnings.warn(note, DataWarning, stacklevel=2)
    return dict(sorted(sites.items()))


def folders_in(root: Path) -> list[Path]:
    """The folders of ``root``, sorted, without hidden ones and those of the file system itself.

    >>> import tempfile
    >>> root = Path(tempfile.mkdtemp())
    >>> for name in ("elm", ".cache", "lost+found"):
    ...     (root / name).mkdir()
    >>> [folder.name for folder in folders_in(root)]
    ['elm']
    """
    found = []
    for path in sorted(root.iterdir()):
        is_visible = not path.name.startswith(".")
        if is_visible and path.name.lower() not in _OF_THE_FILE_SYSTEM and path.is_dir():
            found.append(path)
    return found


def sites_at(path: str | os.PathLike[str]) -> dict[str, Path]:
    """The site at ``path``, or all sites under it, as :func:`site_folders` gives them.

    Raises:
        DataError: there is none.

    >>> import tempfile
    >>> from monai_fairfl.data import SITES, write_sites
    >>> with tempfile.TemporaryDirectory() as root:
    ...     _ = write_sites(root, sites=SITES[:2], size=(24, 24, 6), cases=1)
    ...     list(sites_at(root)), list(sites_at(f"{root}/alder"))
    (['alder', 'birch'], ['alder'])
    """
    path = Path(path)
    if not path.exists():
        raise DataError(
            f"{path} does not exist. Give a site's folder, or the folder that holds one folder "
            "per site."
        )
    # A folder with a single data list is a site; one with several lists holds several sites.
    if not path.is_file():
        if not _is_site(path) or (client_lists(path) and len(site_folders(path)) > 1):
            return site_folders(path)
    return {name_of_site(path): path}


def name_of_site(site_dir: Path) -> str:
    """The name of a site: of its folder, or of its data list without the ending (NVFlare).

    >>> from pathlib import Path
    >>> name_of_site(Path("/hospitals/elm"))
    'elm'
    """
    # Also of "." and "..", which have no name of their own.
    path = Path(os.path.abspath(site_dir))
    return path.stem if path.is_file() else path.name


def folder_of_site(site_dir: Path) -> Path:
    """The folder that the paths of a site begin at: its own, or that of its data list (NVFlare).

    >>> from pathlib import Path
    >>> folder_of_site(Path("hospitals/elm")).name
    'elm'
    """
    return site_dir.parent if site_dir.is_file() else site_dir


def _is_site(folder: Path) -> bool:
    """Whether a folder is, or was meant to be, a site."""
    if Path(os.path.abspath(folder)).name.startswith("."):
        return False
    if _recognising_layouts(folder):
        return True
    return any(path.name.lower() in _NAMES_IN_A_SITE for path in folder.iterdir())


def _describe(site: Path) -> str:
    """What a folder holds, and what of a layout is missing in it.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "images").mkdir()
    >>> (folder / "images" / "7.png").touch()
    >>> _describe(folder)
    'images/ with 1 PNG, but masks/ is missing'
    """
    if site.is_file():
        return f"a file that is no data list: {fault_of_list(site)}"
    if clients := client_lists(site):
        first = next(iter(clients.values()))
        return f"a list for each of {len(clients)} sites; give one of them, such as {first}"

    inner = [path for path in sorted(site.glob("[!.]*")) if path.is_dir()]
    contents = [f"{path.name}/ with {_count_files(path) or 'no files'}" for path in inner]
    if files := _count_files(site):
        contents.append(files)
    description = ", ".join(contents) or "nothing in it"
    names = {path.name.lower() for path in inner}
    has_images = not names.isdisjoint(IMAGES)
    has_masks = not names.isdisjoint(MASKS)
    if has_images != has_masks:
        description += f", but {'masks' if has_images else 'images'}/ is missing"
    if not names.isdisjoint({"imagestr", "labelstr"}) and not description_of(site):
        description += ", but no dataset.json that can be read (nnU-Net, Decathlon)"
    if any(is_dicom(path) for path in files_under(site)):
        description += f"; convert the DICOM series {CONVERT_DICOM}"
    return description


def _count_files(folder: Path) -> str:
    """Number of a folder's files, by kind; empty where there is none."""
    kinds: Counter[str] = Counter()
    for path in folder.glob("[!.]*"):
        if not path.is_dir():
            kinds[path.name[len(stem(path)) + 1 :].upper() or "unnamed"] += 1
    return ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
