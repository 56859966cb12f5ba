# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A client's data list of NVIDIA FLARE's prostate example: the list is the site and has its split.

See https://github.com/NVIDIA/NVFlare, examples/advanced/prostate. The images lie beside the folder
of the lists or in ``dataset*`` there, those of one case as ``SITE/Image/CASE/SLICE.png``.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from monai_fairfl.data.layouts.base import PARTS, Found, all_cases, listed_cases, sorted_by_image
from monai_fairfl.data.layouts.folders import IMAGES
from monai_fairfl.errors import DataError
from monai_fairfl.utils.plain_values import object_of_json

EXPECTS = (
    'datalist_2D/CLIENT.json with "training", "validation" and "testing", and the images they list '
    "(NVFlare)"
)
WRITTEN_HERE = "this package wrote it for another site's folder; give that folder"


def recognises(folder: Path) -> bool:
    """A data list, or a folder with ``datalist_2D`` that holds one."""
    if folder.is_file():
        return not fault_of(folder)
    return bool(_list_folders(folder)) and len(lists(folder)) == 1


def find(folder: Path) -> Found:
    """Take the cases and the split of one list."""
    file = folder if folder.is_file() else next(iter(lists(folder).values()))
    content = _read(file)
    base = _base_folder(file, content["training"])
    if base is None:
        raise DataError(
            f"{file}: its images are neither in {file.parent.parent} nor in a folder dataset*"
            " there. Put the images into one of these folders."
        )
    parts = {}
    for part in PARTS:
        if content.get(part):
            parts[part] = listed_cases(content[part], base, str(file))
    cases = sorted_by_image(all_cases(parts))
    patients = {}
    for case in cases:
        # Slices of one patient lie as SITE/Image/CASE/SLICE.png.
        of_slices = Path(case["image"]).parent
        if of_slices.parent.name.lower() in IMAGES:
            patients[case["image"]] = str(of_slices)
    return Found(cases, parts, patients)


def lists(root: Path) -> dict[str, Path]:
    """Map clients to their data lists, in ``root/datalist_2D`` or in ``root`` of such a name.

    ``client_All``, which merges the lists, is left out, and so are lists that this package wrote.
    Every other JSON file is a list, so that a damaged one is a site whose error names the damage.
    """
    folders = _list_folders(root)
    if not folders and _is_for_lists(root):
        folders = [root]
    if len(folders) > 1:
        names = " and ".join(folder.name for folder in folders)
        raise DataError(f"{root} has lists in {names}. Give one of these folders.")
    clients = {}
    for folder in folders:
        for file in sorted(folder.glob("[!.]*.json")):
            if not file.stem.lower().endswith("_all") and fault_of(file) != WRITTEN_HERE:
                clients[file.stem] = file
    return clients


def folders_of(file: Path) -> set[Path]:
    """The folders above the images of a list; none where the list is damaged."""
    folders: set[Path] = set()
    with suppress(DataError):
        for case in find(file).cases:
            folders.update(Path(os.path.normpath(case["image"])).parents)
    return folders


def _list_folders(root: Path) -> list[Path]:
    return sorted(folder for folder in root.glob("datalist*") if _is_for_lists(folder))


def _is_for_lists(folder: Path) -> bool:
    name = folder.absolute().name
    return folder.is_dir() and (name == "datalist" or name.startswith("datalist_"))


def fault_of(file: Path) -> str:
    """Why a file is no data list of NVFlare; empty when it is one."""
    try:
        _read(file)
    except DataError as error:
        return str(error)
    return ""


def _read(file: Path) -> dict[str, Any]:
    """The content of a data list.

    Windows begins files with a byte order mark, which the encoding skips.

    Raises:
        DataError: why the file is none.
    """
    try:
        content = object_of_json(file.read_text(encoding="utf-8-sig"))
    except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"it cannot be read as JSON ({error}); export it again") from error
    except ValueError as error:
        raise DataError(f"{error}; export it again") from error
    if "split" in content:
        raise DataError(WRITTEN_HERE)
    if not isinstance(content.get("training"), list):
        raise DataError(
            'it has no list "training" of {"image": path, "label": path}, but the keys '
            f"{', '.join(content) or 'none'}; mend it"
        )
    return content


def _base_folder(file: Path, cases: list[Any]) -> Path | None:
    """The folder that the paths of a list begin from, found by the list's first image."""
    if not cases or not isinstance(cases[0], dict) or not cases[0].get("image"):
        return None
    first_image = str(cases[0]["image"])
    beside = file.parent.parent
    for folder in (file.parent, beside, *sorted(beside.glob("dataset*/"))):
        if (folder / first_image).is_file():
            return folder
    return None
