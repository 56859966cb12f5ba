# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Images and masks are paired by their names, and so are the eyes of a patient."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers import public_layouts as made
from hypothesis import given, settings
from hypothesis import strategies as st

from monai_fairfl.data import site_datalist
from monai_fairfl.data.layouts.pairing import pair, patients_of
from monai_fairfl.errors import DataError


def names(images: list[str], masks: list[str]) -> list[tuple[str, str]]:
    pairs = pair(
        [Path("images", name) for name in images], [Path("masks", name) for name in masks], "elm"
    )
    return [(image.name, mask.name) for image, mask in pairs]


@pytest.mark.slow
@settings(max_examples=50)
@given(
    stems=st.lists(
        st.from_regex(r"[a-z]{1,4}(_[0-9]{1,2})?", fullmatch=True), min_size=1, unique=True
    ),
    suffix=st.sampled_from(["", "_mask", "_segmentation", "_OD", "-seg", "_cup_disc"]),
    endings=st.sampled_from(
        [(".png", ".png"), (".jpg", ".tif"), (".nii.gz", ".nii"), (".JPG", ".bmp")]
    ),
)
def test_every_image_meets_the_mask_made_for_it(
    stems: list[str], suffix: str, endings: tuple[str, str]
) -> None:
    expected = [(f"{stem}{endings[0]}", f"{stem}{suffix}{endings[1]}") for stem in sorted(stems)]
    assert (
        names([image for image, _ in expected], [mask for _, mask in reversed(expected)])
        == expected
    )


def test_a_longer_name_does_not_take_the_mask_of_a_shorter_one() -> None:
    assert names(["a.png", "a_b.png"], ["a_b_mask.png", "a_mask.png"]) == [
        ("a.png", "a_mask.png"),
        ("a_b.png", "a_b_mask.png"),
    ]


@pytest.mark.parametrize(
    ("images", "masks", "words"),
    [
        (["7.png", "8.png"], ["7.png"], "images/8.png has no mask; add it"),
        (["7.png"], ["7.png", "8.png"], "masks/8.png has no image; add it"),
        (["7.png", "7.jpg"], ["7.png"], "7 has 2 images, 7.png and 7.jpg; keep one"),
        (["7.png"], ["7.png", "7_mask.png"], "7 has 2 masks"),
        (["7.png"], ["7_2.png"], "images/7.png has no mask.*masks/7_2.png has no image"),
        (
            ["7.png"],
            ["7_disc.png", "7_cup.png"],
            "elm: masks end differently, 7_cup.png and 7_disc.png. Keep",
        ),
    ],
)
def test_files_that_do_not_pair_are_named(images: list[str], masks: list[str], words: str) -> None:
    with pytest.raises(DataError, match=words):
        names(images, masks)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("G-1-L", "G-1-R"),
        ("p7_OD", "p7_OS"),
        ("p7 left", "p7 right"),
        ("P0_left_2020", "P0_right_2020"),
        ("P0.L.2", "P0.R.2"),
        ("OS_P0", "OD_P0"),
        ("P0OS", "P0OD"),
        ("RET002os", "RET002od"),
        ("L_7_OS", "L_7_OD"),
    ],
)
def test_both_eyes_are_of_one_patient(left: str, right: str) -> None:
    cases = [{"image": f"im/{name}.jpg"} for name in (left, right, "V0001", "model")]
    found = patients_of(cases)
    assert len(found) == 2 and len(set(found.values())) == 1


@pytest.mark.parametrize(
    "name",
    [
        "IDRiD_03",
        "drishtiGS_004",
        "image_006",
        "V0001",
        "Case12R",
        "pods",
        "rod_3",
        "OSLO_1",
        "7_Lens",
        "upright_2",
        "left",
        "OD",
    ],
)
def test_a_name_that_says_nothing_of_an_eye_is_a_patient_of_its_own(name: str) -> None:
    assert patients_of([{"image": f"im/{name}.png"}]) == {}


def test_photographs_of_other_patients_and_dates_are_told_apart() -> None:
    names_of_files = ("P0_left_2020", "P1_right_2020", "P0_left_2021", "P10OD", "P1OD", "OS_P2")
    found = patients_of([{"image": f"{name}.png"} for name in names_of_files])
    assert list(found.values()) == ["P0_2020", "P1_2020", "P0_2021", "P10", "P1", "P2"]


@pytest.mark.parametrize("form", ["P{}_{}_2020", "{1}_P{0}", "P{}{}"])
def test_both_eyes_of_a_patient_are_in_one_part_of_the_split(tmp_path: Path, form: str) -> None:
    for number in range(16):
        name = form.format(number // 2, ("OD", "OS")[number % 2])
        made.write(tmp_path / "images" / f"{name}.png", made.photo(number))
        made.write(tmp_path / "masks" / f"{name}.png", made.mask(number))
    parts_of: dict[str, set[str]] = {}
    for part, cases in site_datalist(tmp_path).items():
        for case in cases:
            [patient] = re.findall(r"P\d", Path(case["image"]).name)
            parts_of.setdefault(patient, set()).add(part)
    assert len(parts_of) == 8 and all(len(parts) == 1 for parts in parts_of.values())
