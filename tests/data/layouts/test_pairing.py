# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Images and masks are paired by their names, and so are the eyes of a patient."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    ("left", "right"), [("G-1-L", "G-1-R"), ("p7_OD", "p7_OS"), ("p7 left", "p7 right")]
)
def test_both_eyes_are_of_one_patient(left: str, right: str) -> None:
    cases = [{"image": f"im/{name}.jpg"} for name in (left, right, "V0001", "model")]
    found = patients_of(cases)
    assert len(found) == 2 and len(set(found.values())) == 1
