# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A task of the Medical Segmentation Decathlon (Antonelli et al., Nature Communications 2022,
http://medicaldecathlon.com).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from monai_fairfl.data.layouts.base import Case, Found, all_named
from monai_fairfl.errors import DataError

EXPECTS = 'dataset.json with "training": [{"image": ..., "label": ...}], imagesTr/ and labelsTr/ (Decathlon)'


def about(folder: Path) -> dict[str, Any]:
    """What ``dataset.json`` says; nothing when it is not there or no JSON object."""
    try:
        content = json.loads((folder / "dataset.json").read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def recognises(folder: Path) -> bool:
    """A ``dataset.json`` that lists cases and is not nnU-Net's."""
    return isinstance(about(folder).get("training"), list) and "file_ending" not in about(folder)


def find(folder: Path) -> Found:
    """The cases under ``"training"``; those under ``"test"`` have no labels and are left out."""
    listed, modality = about(folder)["training"], about(folder).get("modality", {})
    try:
        cases: list[Case] = [
            {key: str(folder / case[key]) for key in ("image", "label")} for case in listed
        ]
    except (TypeError, KeyError) as error:
        raise DataError(
            f'{folder}/dataset.json: "training" must hold {{"image": path, "label": path}}.'
        ) from error
    missing = [path for case in cases for path in case.values() if not Path(path).is_file()]
    if missing or not cases:
        problems = [f"{path} does not exist" for path in missing] or ["it lists no case"]
        raise DataError(
            f"{folder}/dataset.json: {all_named(problems)}. Unpack the archive again, or mend the list."
        )
    channels = tuple(map(str, modality.values())) if isinstance(modality, dict) else ()
    return Found(sorted(cases, key=lambda case: case["image"]), channels=channels)
