# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A client's data list of NVIDIA FLARE's prostate example: the list is the site, and keeps its own
split.

See https://github.com/NVIDIA/NVFlare, examples/advanced/prostate. The images lie beside the folder
of the lists or in ``dataset*`` there, those of one case as ``SITE/Image/CASE/SLICE.png``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from monai_fairfl.data.layouts.base import PARTS, Case, Found, all_named
from monai_fairfl.data.layouts.folders import IMAGES
from monai_fairfl.errors import DataError

EXPECTS = 'datalist_2D/CLIENT.json with "training", "validation" and "testing", and the images they list (NVFlare)'
OURS = "this package wrote it for another site's folder; give that folder"


def lists(root: Path) -> dict[str, Path]:
    """Client -> its data list, in ``root/datalist_2D`` or in ``root``, without ``client_All``,
    which merges them.

    In a folder of lists every JSON file is one, so that a damaged list is a site whose error says
    what is wrong.
    """
    folders = _list_folders(root) or [root] * _is_for_lists(root)
    if len(folders) > 1:
        raise DataError(
            f"{root} has lists in {' and '.join(p.name for p in folders)}. Give one of these folders."
        )
    files = [
        p
        for p in sorted((folders or [root])[0].glob("[!.]*.json"))
        if not p.stem.lower().endswith("_all")
    ]
    if folders:
        return {p.stem: p for p in files if fault_of(p) != OURS}
    # a list that lies among other files must find its images, else it is the list of a site of
    # another layout
    files = [p for p in files if p.name != "dataset.json" and _content(p)]
    return {p.stem: p for p in files if _base(p, _content(p)["training"])}


def fault_of(file: Path) -> str:
    """Why a file is no data list of NVFlare; empty when it is one."""
    return _read(file)[1]


def folders_of(file: Path) -> set[Path]:
    """The folders above the images of a list; none where the list is damaged."""
    content = _content(file)
    base = _base(file, content.get("training", []))
    listed = (
        [case for part in PARTS if isinstance(content.get(part), list) for case in content[part]]
        if base
        else []
    )
    images = {os.path.normpath(base / str(c["image"])) for c in listed if isinstance(c, dict) and "image" in c}  # type: ignore[operator]
    return {parent for image in images for parent in Path(image).parents}


def _is_for_lists(folder: Path) -> bool:
    name = folder.absolute().name
    return folder.is_dir() and (name == "datalist" or name.startswith("datalist_"))


def _list_folders(root: Path) -> list[Path]:
    return sorted(filter(_is_for_lists, root.glob("datalist*")))


def _read(file: Path) -> tuple[dict[str, Any], str]:
    """A data list, or nothing and why the file is none. Windows begins files with a byte order
    mark.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        return {}, f"it cannot be read as JSON ({error}); export it again"
    if not isinstance(content, dict):
        return {}, "it holds no JSON object; export it again"
    if "split" in content:
        return {}, OURS
    if not isinstance(content.get("training"), list):
        keys = ", ".join(content) or "none"
        return (
            {},
            f'it has no list "training" of {{"image": path, "label": path}}, but the keys {keys}; mend it',
        )
    return content, ""


def _content(file: Path) -> dict[str, Any]:
    return _read(file)[0]


def _base(file: Path, cases: list[Any]) -> Path | None:
    """The folder that the paths of a list begin from."""
    first = cases[0].get("image") if cases and isinstance(cases[0], dict) else None
    places = [file.parent, file.parent.parent, *sorted(file.parent.parent.glob("dataset*/"))]
    return next((place for place in places if first and (place / str(first)).is_file()), None)


def recognises(folder: Path) -> bool:
    """A data list, or a folder with ``datalist_2D`` that holds one."""
    return (
        bool(_content(folder))
        if folder.is_file()
        else bool(_list_folders(folder)) and len(lists(folder)) == 1
    )


def find(folder: Path) -> Found:
    """The cases and the split of one list."""
    file = folder if folder.is_file() else next(iter(lists(folder).values()))
    content = _content(file)
    base = _base(file, content["training"])
    if base is None:
        raise DataError(
            f"{file}: its images are neither in {file.parent.parent} nor in a folder dataset* there."
        )
    try:
        parts: dict[str, list[Case]] = {
            part: [
                {key: str(base / case[key]) for key in ("image", "label")} for case in content[part]
            ]
            for part in PARTS
            if content.get(part)
        }
    except (TypeError, KeyError) as error:
        raise DataError(
            f'{file}: each entry must be {{"image": path, "label": path}}. Mend it.'
        ) from error
    cases = sorted(
        (case for members in parts.values() for case in members), key=lambda case: case["image"]
    )
    missing = [
        f"{path} does not exist"
        for case in cases
        for path in case.values()
        if not Path(path).is_file()
    ]
    if missing:
        raise DataError(f"{file}: {all_named(missing)}. Export the images again, or mend the list.")
    folders = {case["image"]: Path(case["image"]).parent for case in cases}
    return Found(
        cases,
        parts,
        {i: str(case) for i, case in folders.items() if case.parent.name.lower() in IMAGES},
    )
