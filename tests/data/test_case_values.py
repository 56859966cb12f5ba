# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The cases of a data list have the pixel values of their structures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers import public_layouts as made
from PIL import Image

from monai_fairfl.data import case_values, site_datalist
from monai_fairfl.data.layouts.base import all_cases
from monai_fairfl.data.layouts.values import recognise
from monai_fairfl.errors import DataError

STRUCTURES = ("disc", "cup")


def test_values_are_looked_for_only_when_structures_are_asked_for(tmp_path: Path) -> None:
    site = made.folders(tmp_path / "elm", values=made.PALETTE)
    assert not any("values" in case for case in site_datalist(site)["training"])
    parts = site_datalist(site, tmp_path / "elm.json", structures=STRUCTURES)
    expected = {"disc": [1, 2], "cup": [2, 2]}
    assert all(case["values"] == expected for case in all_cases(parts))
    assert site_datalist(site, tmp_path / "elm.json", structures=STRUCTURES) == parts


def test_a_list_whose_masks_are_coded_in_another_way_later_is_refused(tmp_path: Path) -> None:
    site, file = made.folders(tmp_path / "elm", values=made.GREY), tmp_path / "elm.json"
    parts = site_datalist(site, file, structures=STRUCTURES)
    made.folders(site, values=made.PALETTE)
    with pytest.raises(
        DataError,
        match=r"elm.json has \{'disc': \[64, 255\].* but in the masks \{'disc': \[1, 2\].*Delete",
    ):
        site_datalist(site, file, structures=STRUCTURES)
    hand = parts["training"][0]["values"]
    # Values given by hand are on purpose.
    assert site_datalist(site, file, structures=STRUCTURES, values=hand) == parts
    file.unlink()
    again = site_datalist(site, file, structures=STRUCTURES)
    assert [case["image"] for case in again["testing"]] == [
        case["image"] for case in parts["testing"]
    ]


def test_a_list_is_compared_with_a_few_masks_and_refused_for_all_of_them_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, file = made.folders(tmp_path / "elm", cases=9, values=made.PALETTE), tmp_path / "elm.json"
    parts = site_datalist(site, file, structures=STRUCTURES)
    looked: list[int] = []
    monkeypatch.setattr(case_values, "A_FEW", 2)
    monkeypatch.setattr(
        case_values,
        "recognise",
        lambda files, *more: looked.append(len(files)) or recognise(files, *more),
    )
    assert site_datalist(site, file, structures=STRUCTURES) == parts and looked == [2]
    # The first case of each part has no cup.
    for cases in parts.values():
        case = cases[0]
        pixels = np.asarray(Image.open(case["label"]))
        made.write(Path(case["label"]), np.minimum(pixels, 1))
    assert site_datalist(site, file, structures=STRUCTURES) == parts


def test_values_by_hand_help_where_masks_cannot_be_read(tmp_path: Path) -> None:
    site = made.folders(tmp_path / "elm", values=made.PALETTE)
    made.write(site / "masks" / "eye01.png", made.mask(1, (0, 255)))
    with pytest.raises(DataError, match="elm: .*masks/eye01.png has the values"):
        site_datalist(site, structures=STRUCTURES)
    file = tmp_path / "elm.json"
    parts = site_datalist(site, file, structures=STRUCTURES, values={"disc": (1, 255)})
    assert all(case["values"] == {"disc": [1, 255]} for case in all_cases(parts))
    assert site_datalist(site, file, structures=STRUCTURES, values={"disc": (1, 255)}) == parts
    with pytest.raises(
        DataError, match="elm.json: .*masks/eye01.png has the values .* or give values="
    ):
        site_datalist(site, file, structures=STRUCTURES)
    with pytest.raises(
        DataError, match=r"elm.json has \{'disc': \[1, 255\]\} for .*not \{'disc': \[1, 2\]\}"
    ):
        site_datalist(site, file, structures=STRUCTURES, values={"disc": [1, 2]})
