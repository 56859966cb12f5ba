# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What pixel values mean is stated by a dataset.json, by a user, or by a mask of two values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import public_layouts as made

from monai_fairfl.data import check_cases, site_datalist

STRUCTURES = ("disc", "cup")
Values = dict[str, list[int]]


def site_of(
    folder: Path, *masks: np.ndarray, labels: dict[str, Any] | None = None, ending: str = ".png"
) -> Path:
    for n, mask in enumerate(masks):
        made.write(folder / "images" / f"{n}.png", made.photo(n, len(mask)))
        made.write(folder / "masks" / f"{n}{ending}", mask)
    if labels is not None:
        (folder / "dataset.json").write_text(json.dumps({"labels": labels}))
    return folder


NNUNET = {"background": 0, "disc": [1, 2], "cup": 2}
GREY = {"background": 0, "Disc": [64, 255], "Cup": [192, 255]}
CODINGS: list[tuple[tuple[int, ...], str, dict[str, Any] | None, Values]] = [
    ((0, 1), ".png", None, {"disc": [1, 65535]}),
    ((0, 255), ".jpg", None, {"disc": [128, 255]}),
    ((0, 1, 2), ".png", NNUNET, {"disc": [1, 2], "cup": [2, 2]}),
    ((0, 2), ".png", {"0": "background", "2": "Cup"}, {"cup": [2, 2]}),
    ((0, 128, 255), ".jpg", GREY, {"disc": [64, 255], "cup": [192, 255]}),
    ((255, 128, 0), ".png", {"background": 255, "disc": [0, 128], "cup": 0}, {}),
]


@pytest.mark.parametrize("coding, ending, labels, expected", CODINGS)
def test_values_are_those_that_are_stated(
    coding: tuple[int, ...], ending: str, labels: Any, expected: Values, tmp_path: Path
) -> None:
    masks = [made.mask(n, coding, size=96, radius=30, cup=18) for n in range(3)]
    site = site_of(tmp_path / "elm", *masks, labels=labels, ending=ending)
    expected = expected or {"disc": [0, 128], "cup": [0, 0]}
    assert check_cases(site, STRUCTURES)["values"] == expected
    in_capitals = check_cases(site, [name.upper() for name in STRUCTURES])["values"]
    assert in_capitals == {name.upper(): bounds for name, bounds in expected.items()}
    parts = site_datalist(site, structures=STRUCTURES)
    assert all(case["values"] == expected for case in sum(parts.values(), []))
