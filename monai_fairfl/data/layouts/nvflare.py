# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A client's data list of NVIDIA FLARE's prostate example: the list is the site and has its split.

See https://github.com/NVIDIA/NVFlare, examples/advanced/prostate. The images lie beside the folder
of the lists or in ``dataset*`` there, those of one case as ``SITE/Image/CASE/SLICE.png``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from monai_fairfl.data.layouts.base import (
    PARTS,
    CaseFiles,
    Found,
    all_cases,
    all_named,
    missing_files,
    sorted_by_image,
)
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
        return bool(_content(folder))
    return bool(_list_folders(folder)) and len(lists(folder)) == 1


def find(folder: Path) -> Found:
    """Take the cases and the split of one list."""
    file = folder if folder.is_file() else next(iter(lists(folder).values()))
    content = _content(file)
    base = _base_folder(file, content["training"])
    if base is None:
        raise DataError(
            f"{file}: its images are neither in {file.parent.parent} nor in a folder dataset*"
            " there. Put the images into one of these folders."
        )
    parts = _absolute_parts(file, content, base)
    cases = sorted_by_image(all_cases(parts))
    missing = missing_files(cases)
    if missing:
        raise DataError(f"{file}: {all_named(missing)}. Export the images again, or mend the list.")
    return Found(cases, parts, _patients_of_slices(cases))


def _absolute_parts(file: Path, content: dict[str, Any], base: Path) -> dict[str, list[CaseFiles]]:
    """The cases of each part that the list has, with absolute paths."""
    parts: dict[str, list[CaseFiles]] = {}
    try:
        for part in PARTS:
            if not content.get(part):
                continue
            parts[part] = []
            for entry in content[part]:
                image = str(base / entry["image"])
                label = str(base / entry["label"])
                parts[part].append({"image": image, "label": label})
    except (TypeError, KeyError) as error:
        raise DataError(
            f'{file}: each entry must be {{"image": path, "label": path}}. Mend it.'
        ) from error
    return parts


def _patients_of_slices(cases: list[CaseFiles]) -> dict[str, str]:
    """Map images to patients where slices lie as ``SITE/Image/CASE/SLICE.png``."""
    patients = {}
    for case in cases:
        case_folder = Path(case["image"]).parent
        if case_folder.parent.name.lower() in IMAGES:
            patients[case["image"]] = str(case_folder)
    return patients


def lists(root: Path) -> dict[str, Path]:
    """Map clients to their data lists, in ``root/datalist_2D`` or in ``root``.

    ``client_All``, which merges the lists, is left out. In a folder of lists every JSON file is
    one, so that a damaged list is a site whose error names the damage.
    """
    folders = _list_folders(root)
    if not folders and _is_for_lists(root):
        folders = [root]
    if len(folders) > 1:
        names = " and ".join(folder.name for folder in folders)
        raise DataError(f"{root} has lists in {names}. Give one of these folders.")
    if folders:
        return _lists_in(folders[0])
    return _lists_among_other_files(root)


def fault_of(file: Path) -> str:
    """Why a file is no data list of NVFlare; empty when it is one."""
    return _read(file)[1]


def folders_of(file: Path) -> set[Path]:
    """The folders above the images of a list; empty where the list is damaged."""
    content = _content(file)
    base = _base_folder(file, content.get("training", []))
    folders: set[Path] = set()
    if base is None:
        return folders
    for part in PARTS:
        cases = content.get(part)
        if not isinstance(cases, list):
            continue
        for case in cases:
            if isinstance(case, dict) and "image" in case:
                image = os.path.normpath(base / str(case["image"]))
                folders.update(Path(image).parents)
    return folders


def _list_folders(root: Path) -> list[Path]:
    return sorted(folder for folder in root.glob("datalist*") if _is_for_lists(folder))


def _is_for_lists(folder: Path) -> bool:
    name = folder.absolute().name
    return folder.is_dir() and (name == "datalist" or name.startswith("datalist_"))


def _lists_in(folder: Path) -> dict[str, Path]:
    """Every list of a folder of lists, except those that this package wrote there."""
    clients = {}
    for file in _unmerged_files(folder):
        if fault_of(file) != WRITTEN_HERE:
            clients[file.stem] = file
    return clients


def _lists_among_other_files(root: Path) -> dict[str, Path]:
    """The lists in a folder of any kind.

    Such a list must find its images, else it is the list of a site of another layout.
    """
    clients = {}
    for file in _unmerged_files(root):
        content = _content(file)
        if file.name == "dataset.json" or not content:
            continue
        if _base_folder(file, content["training"]) is not None:
            clients[file.stem] = file
    return clients


def _unmerged_files(folder: Path) -> list[Path]:
    """The JSON files of a folder, sorted, without the list that merges the others."""
    files = []
    for file in sorted(folder.glob("[!.]*.json")):
        if not file.stem.lower().endswith("_all"):
            files.append(file)
    return files


def _content(file: Path) -> dict[str, Any]:
    """The content of a data list; empty when the file is none."""
    return _read(file)[0]


def _read(file: Path) -> tuple[dict[str, Any], str]:
    """The content of a data list and no fault, or no content and why the file is no data list.

    Windows begins files with a byte order mark, which the encoding skips.
    """
    try:
        content = object_of_json(file.read_text(encoding="utf-8-sig"))
    except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
        return {}, f"it cannot be read as JSON ({error}); export it again"
    except ValueError as error:
        return {}, f"{error}; export it again"
    if "split" in content:
        return {}, WRITTEN_HERE
    if not isinstance(content.get("training"), list):
        keys = ", ".join(content) or "none"
        fault = (
            f'it has no list "training" of {{"image": path, "label": path}}, but the keys {keys};'
            " mend it"
        )
        return {}, fault
    return content, ""


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
