# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A task of the Medical Segmentation Decathlon.

See Antonelli et al., Nature Communications 2022, and http://medicaldecathlon.com.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from monai_fairfl.data.layouts.base import Found, listed_cases, sorted_by_image
from monai_fairfl.utils.plain_values import object_of_json

EXPECTS = (
    'dataset.json with "training": [{"image": ..., "label": ...}], imagesTr/ and labelsTr/ '
    "(Decathlon)"
)


def recognises(folder: Path) -> bool:
    """A ``dataset.json`` that lists cases and is not nnU-Net's."""
    description = read_description(folder)
    return isinstance(description.get("training"), list) and "file_ending" not in description


def find(folder: Path) -> Found:
    """Take the cases under ``"training"``; those under ``"test"`` have no labels."""
    description = read_description(folder)
    cases = listed_cases(description["training"], folder, f"{folder}/dataset.json")
    modality = description.get("modality", {})
    channels: tuple[str, ...] = ()
    if isinstance(modality, dict):
        channels = tuple(str(name) for name in modality.values())
    return Found(sorted_by_image(cases), channels=channels)


def read_description(folder: Path) -> dict[str, Any]:
    """The content of ``dataset.json``; empty when there is none or it is no JSON object."""
    try:
        return object_of_json((folder / "dataset.json").read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return {}
