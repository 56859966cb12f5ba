# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Which folders are sites, which layout each has, and its cases."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from monai_fairfl.data.image_files import DICOM, files_under, kind_of_image, stem
from monai_fairfl.data.layouts import (
    IMAGES,
    LAYOUTS,
    MASKS,
    CaseFiles,
    Found,
    all_named,
    client_lists,
    described_labels,
    description_of,
)
from monai_fairfl.errors import DataError, DataWarning

CONVERT_DICOM = "to NIfTI, for example with dcm2niix"
EXPECTED = "\nA site's folder is one of" + "".join(
    f"\n- {name}: {expects}" for name, (expects, _) in LAYOUTS.items()
)
"""What an error about a folder of no layout ends with."""
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
    """All that the files of a site say of its cases, whatever its layout.

    Args:
        site_dir: the site's folder, or its data list where that is the site (NVFlare).

    Raises:
        DataError: no such folder, no layout or several have such files, or files do not pair, are
            missing or cannot be understood.
    """
    _, found = recognise(site_dir)
    if found.problems:
        raise DataError(f"{site_dir}: {all_named(found.problems)}")
    return found


def recognise(site_dir: str | os.PathLike[str]) -> tuple[str, Found]:
    """The layout of a site, and its cases, with a problem for each file that does not pair.

    Raises:
        DataError: as :func:`find`, but for files that do not pair.
    """
    site = Path(site_dir)
    if not site.exists():
        raise DataError(f"{site} is not a folder. Give the one of the site's images and labels.")
    results = _recognising(site)
    if len(results) > 1:
        kinds = "; ".join(f"{name} ({LAYOUTS[name][0]})" for name in results)
        raise DataError(f"{site} could be {len(results)} layouts: {kinds}. Keep the files of one.")
    for name, found in results.items():
        if isinstance(found, DataError):
            raise found
        return name, replace(found, labels=described_labels(folder_of_site(site)) or found.labels)
    raise DataError(f"{site} holds no case. There is {_describe(site)}.{EXPECTED}")


def _recognising(folder: Path) -> dict[str, Found | DataError]:
    """The cases of a folder, or what is wrong with it, by each layout that recognises it.

    Raises:
        DataError: this account may not read it.
    """
    results: dict[str, Found | DataError] = {}
    for name, (_, find_cases_of) in LAYOUTS.items():
        try:
            found = find_cases_of(folder)
            if found is not None:
                results[name] = found
        except DataError as error:
            results[name] = error
        except PermissionError as error:
            fault = f"{folder} cannot be read, because this account may not read it"
            raise DataError(f"{fault}; change the permissions, or move it elsewhere") from error
    return results


def layouts_once(problems: Sequence[str]) -> list[str]:
    """Problems of several sites, of which the last one alone lists all layouts.

    >>> layouts_once([f"ash holds no case.{EXPECTED}", "elm is damaged"])[0]
    'ash holds no case.'
    """
    short = [problem.replace(EXPECTED, "") for problem in problems]
    return [*short[:-1], short[-1] + EXPECTED] if short != list(problems) else short


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
        with suppress(DataError):
            for case in find_cases(file.absolute()):
                listed.update(Path(os.path.normpath(case["image"])).parents)

    notes = []
    for folder in folders_in(root):
        # Without "..", as the folders of a data list are.
        path = Path(os.path.abspath(folder))
        if path in listed or (lists and folder.name.startswith("datalist")):
            continue
        if _is_site(folder):
            if folder.name in lists:
                both = f"{lists[folder.name]} and {folder}"
                raise DataError(f"{both} are two sites {folder.name!r}. Rename one of them.")
            sites[folder.name] = folder
        elif any(kind_of_image(file) for file in files_under(folder)):
            notes.append(
                f"{folder} holds images but is no site (see docs/data.md), and takes no part:"
                f" {_describe(folder)}"
            )
    if must and not sites:
        fault = f"{root} has no site: none of its folders holds images with labels"
        if names := list(_recognising(root)):
            fault += f". It is a site itself ({names[0]}): give the folder that holds it"
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
    return [
        path
        for path in sorted(root.iterdir())
        if path.name[0] != "." and path.name.lower() not in _OF_THE_FILE_SYSTEM and path.is_dir()
    ]


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
        raise DataError(f"{path} does not exist. Give a site's folder, or the one of all sites.")
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
    if _recognising(folder):
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
    if clients := client_lists(site):
        first = next(iter(clients.values()))
        return f"a list for each of {len(clients)} sites; give one of them, such as {first}"

    inner = [path for path in sorted(site.glob("[!.]*")) if path.is_dir()]
    contents = [f"{path.name}/ with {_count_files(path) or 'no files'}" for path in inner]
    contents += [files] if (files := _count_files(site)) else []
    description = ", ".join(contents) or "nothing in it"
    names = {path.name.lower() for path in inner}
    has_images = not names.isdisjoint(IMAGES)
    if has_images == names.isdisjoint(MASKS):
        description += f", but {'masks' if has_images else 'images'}/ is missing"
    if not names.isdisjoint({"imagestr", "labelstr"}) and not description_of(site):
        description += ", but no dataset.json that can be read (nnU-Net, Decathlon)"
    if any(kind_of_image(path) in DICOM for path in files_under(site)):
        description += f"; convert the DICOM series {CONVERT_DICOM}"
    return description


def _count_files(folder: Path) -> str:
    """Number of a folder's files, by kind; empty where there is none."""
    kinds: Counter[str] = Counter()
    for path in folder.glob("[!.]*"):
        if not path.is_dir():
            kinds[path.name[len(stem(path)) + 1 :].upper() or "unnamed"] += 1
    return ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
