# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The pixel values of disc and cup are found in the masks, however they are coded."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from helpers import public_layouts as made
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFilter

from monai_fairfl.data.layouts import values
from monai_fairfl.data.layouts.coding import coding_of
from monai_fairfl.data.layouts.image_files import read
from monai_fairfl.data.layouts.values import check_values, combine, recognise
from monai_fairfl.errors import DataError

STRUCTURES = ("disc", "cup")


def values_of(*masks: np.ndarray) -> dict[str, list[int]]:
    return combine([coding_of(mask, f"{n}.png") for n, mask in enumerate(masks)], STRUCTURES, "elm")


@pytest.mark.parametrize(
    ("coding", "expected"),
    [
        ((0, 255), {"disc": [128, 255]}),
        ((0, 1), {"disc": [1, 1]}),
        ((0, 1, 2), {"disc": [1, 2], "cup": [2, 2]}),
        ((0, 2, 1), {"disc": [1, 2], "cup": [1, 1]}),
        ((0, 128, 255), {"disc": [64, 255], "cup": [192, 255]}),
        ((0, 255, 128), {"disc": [64, 255], "cup": [64, 191]}),
        ((255, 128, 0), {"disc": [0, 200], "cup": [0, 50]}),
        ((255, 0), {"disc": [0, 127]}),
        ((255, 170, 85), {"disc": [0, 212], "cup": [0, 127]}),
        ((0, 100, 200), {"disc": [50, 255], "cup": [150, 255]}),
    ],
)
def test_codings_in_use_are_read(coding: tuple[int, ...], expected: dict[str, list[int]]) -> None:
    masks = [made.mask(n, coding, size=96, radius=30, cup=14) for n in range(3)]
    found = values_of(*masks)
    assert found == expected
    for name, radius in zip(STRUCTURES, (30, 14)):  # the oracle: what was drawn
        if name in found:
            drawn = made.mask(0, (0, 1), size=96, radius=radius) > 0
            low, high = found[name]
            assert np.array_equal((masks[0] >= low) & (masks[0] <= high), drawn)


@pytest.mark.slow
@settings(max_examples=40)
@example(coding=(0, 128, 255), quality=53, radius=24.0, ratio=0.7890625)
@given(
    coding=st.sampled_from([(0, 255), (0, 128, 255), (255, 128, 0), (255, 0)]),
    quality=st.integers(50, 95),
    radius=st.floats(24, 44),
    ratio=st.floats(0.3, 0.85),
)
def test_jpeg_does_not_hide_the_values(
    coding: tuple[int, ...], quality: int, radius: float, ratio: float
) -> None:
    drawn = made.mask(2, coding, size=128, radius=radius, cup=ratio * radius)
    try:
        found = values_of(made.jpeg(drawn, quality))
    except DataError:
        # A thin ring may drown in the noise of strong compression. Then the user is asked.
        width = (1 - ratio) * radius
        assert quality < 65 and width < 8
        return
    assert found == values_of(drawn)


@pytest.mark.parametrize("coding", [(0, 255), (0, 128, 255), (255, 128, 0)])
def test_blurred_edges_are_no_structure(coding: tuple[int, ...]) -> None:
    drawn = made.mask(2, coding, size=128, radius=40, cup=20)
    blurred = np.asarray(Image.fromarray(drawn).filter(ImageFilter.GaussianBlur(0.8)))
    assert len(np.unique(blurred)) > 20 and values_of(blurred) == values_of(drawn)


def test_masks_without_a_cup_or_without_anything_agree_with_those_that_have_one() -> None:
    empty = np.zeros((48, 48), np.uint8)
    found = values_of(
        made.mask(0, (0, 128)), empty, made.mask(1, (0, 128)), made.mask(2, (0, 128, 255))
    )
    assert found == {"disc": [64, 255], "cup": [192, 255]}


def test_grey_stored_as_colour_is_read() -> None:
    assert values_of(np.repeat(made.mask(0)[..., None], 3, axis=2)) == values_of(made.mask(0))


def test_the_cup_of_a_volume_is_found_too(tmp_path: Path) -> None:
    stack = np.stack([made.mask(0, made.PALETTE)] * 3, axis=-1)
    file = made.write(tmp_path / "a.nii.gz", stack)
    assert recognise([str(file)], STRUCTURES) == {"disc": [1, 2], "cup": [2, 2]}


def test_a_mask_that_changes_on_disk_is_read_again(tmp_path: Path) -> None:
    file = made.write(tmp_path / "a.png", made.mask(0, (0, 128, 255)))
    assert recognise([str(file)], STRUCTURES) == {"disc": [64, 255], "cup": [192, 255]}
    made.write(tmp_path / "a.png", made.mask(0, made.PALETTE))
    assert recognise([str(file)], STRUCTURES) == {"disc": [1, 2], "cup": [2, 2]}


def test_a_mask_is_read_once_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, opened = [str(made.write(tmp_path / f"{n}.png", made.mask(n))) for n in range(3)], []
    monkeypatch.setattr(values, "read", lambda file: opened.append(file) or read(file))
    found = [recognise(files, STRUCTURES) for _ in range(3)]
    assert sorted(opened) == files and found[0] == found[1] == found[2] == {
        "disc": [64, 255],
        "cup": [192, 255],
    }


def test_a_mask_that_vanished_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match="gone.png does not exist; restore its name, or correct the list"
    ):
        recognise([str(tmp_path / "gone.png")], STRUCTURES)


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (
            made.mask(9, (0, 255)),
            r"has the values \[0, 255\], where the other masks have 0 outside and"
            r" 1 around 2 inside",
        ),
        (made.mask(9, (2, 1, 0)), r"has the values \[0, 1, 2\] with 2 along its border"),
        (made.mask(9, (0, 2)), r"has the values \[0, 2\], where"),
        (made.mask(9, (0, 2, 1)), r"has the values \[0, 1, 2\] nested the other way round"),
        (
            np.arange(48 * 48, dtype=np.uint8).reshape(48, 48),
            "has 256 different values that do not gather",
        ),
        (made.photo(9), "has 2[0-9]{3} different values that do not gather"),
    ],
)
def test_a_mask_that_disagrees_is_named_with_its_values_and_the_fix(
    odd: np.ndarray, words: str
) -> None:
    codings = [coding_of(made.mask(n, made.PALETTE), f"{n}.png") for n in range(3)] + [
        coding_of(odd, "odd.png")
    ]
    with pytest.raises(
        DataError,
        match=rf"elm: odd.png {words}.* give values=\{{'disc': \[lowest, highest\], 'cup'",
    ):
        combine(codings, STRUCTURES, "elm")


@pytest.mark.parametrize(
    ("coding", "near"),
    [
        ((0, 1, 255), "1"),
        ((0, 240, 255), "255"),
        ((255, 254, 0), "254"),
        ((0, 16, 255), "16"),
        ((255, 1, 0), "0"),
    ],
)
def test_numbers_of_classes_among_grey_levels_are_refused_and_not_taken_for_noise(
    coding: tuple[int, ...], near: str
) -> None:
    values = ", ".join(str(value) for value in sorted(coding))
    words = rf"has the values \[{values}\], of which {near} could be the noise of JPEG"
    with pytest.raises(
        DataError, match=rf"elm: 0.png {words}.*give values=\{{'disc': \[lowest, highest\]"
    ):
        values_of(made.mask(0, coding))


def test_classes_with_a_rim_of_unsure_pixels_are_refused() -> None:
    mask = made.mask(0, made.PALETTE, size=96, radius=30, cup=14)
    mask[(made.mask(0, (0, 1), 96, 32) > 0) & (made.mask(0, (0, 1), 96, 28) == 0)] = 255
    with pytest.raises(
        DataError, match=r"has the values \[0, 1, 2, 255\], of which 1, 2 could be the noise"
    ):
        values_of(mask)
    assert check_values({"disc": [1, 2], "cup": [2, 2]}, STRUCTURES) == {
        "disc": [1, 2],
        "cup": [2, 2],
    }


def test_more_levels_than_nested_structures_are_refused() -> None:
    four = made.mask(0, (0, 1, 2))
    four[:3, :3] = 3
    with pytest.raises(
        DataError, match=r"0.png has the values \[0, 1, 2, 3\], more than background and 2 nested"
    ):
        values_of(four)


def test_masks_that_are_all_empty_are_refused() -> None:
    with pytest.raises(DataError, match="elm: all masks are empty"):
        values_of(np.zeros((9, 9), np.uint8), np.zeros((9, 9), np.uint8))


def test_a_background_between_the_structures_is_refused() -> None:
    with pytest.raises(
        DataError, match="elm: masks have 128 outside and 255 around 0 inside, which no interval"
    ):
        values_of(made.mask(0, (128, 255, 0)))


def test_one_structure_of_two_includes_the_inner_one() -> None:
    assert combine([coding_of(made.mask(0))], ["disc"]) == {"disc": [64, 255]}


@pytest.mark.parametrize(
    "values",
    [
        {"disk": [1, 2]},
        {"disc": [2, 1]},
        {"disc": [1]},
        {"disc": "12"},
        {"disc": [0.5, 255]},
        {"disc": [None, 255]},
        {"disc": ["1", "2"]},
        {"disc": [1, math.inf]},
    ],
)
def test_unusable_values_by_hand_are_refused(values: dict) -> None:
    with pytest.raises(DataError, match="elm: values"):
        check_values(values, STRUCTURES, "elm")
