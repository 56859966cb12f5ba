# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The pixel values of disc and cup are found in the masks, however they are coded."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from helpers import public_layouts as made
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFilter

from monai_fairfl.data import case_values, site_datalist
from monai_fairfl.data.layouts import values
from monai_fairfl.data.layouts.base import all_cases
from monai_fairfl.data.layouts.coding import Coding, coding_of
from monai_fairfl.data.layouts.image_files import read
from monai_fairfl.data.layouts.values import check_values, combine, recognise
from monai_fairfl.errors import DataError

STRUCTURES = ("disc", "cup")


def jpeg(pixels: np.ndarray, quality: int) -> np.ndarray:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))


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


@settings(max_examples=40)
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
    assert values_of(jpeg(drawn, quality)) == values_of(drawn)


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
        DataError, match="gone.png cannot be read as a picture .* copy it again from its source"
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


@pytest.mark.parametrize("quality", [50, 75, 95])
def test_a_level_that_jpeg_has_moved_hides_nothing(quality: int) -> None:
    for coding in ((0, 240), (0, 100, 200), (20, 250)):
        assert (
            coding_of(jpeg(made.mask(2, coding, size=128, radius=40, cup=20), quality)).hidden == ()
        )


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


def test_noise_is_no_coding() -> None:
    noise = np.random.default_rng(0).normal(100, 20, (64, 64)).clip(0, 255).astype(np.uint8)
    # A grey photograph: a dim scene in a black surround.
    view = made.mask(0, (0, 1), size=96, radius=40)
    view[view > 0] = np.random.default_rng(0).normal(110, 14, (view > 0).sum())
    assert coding_of(view).levels == ()
    assert coding_of(noise).levels == () and coding_of(np.full((4, 4), 0.5)).levels == ()


# in data lists


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


@pytest.mark.parametrize(
    "values", [{"disk": [1, 2]}, {"disc": [2, 1]}, {"disc": [1]}, {"disc": "12"}]
)
def test_unusable_values_by_hand_are_refused(values: dict) -> None:
    with pytest.raises(DataError, match="elm: values"):
        check_values(values, STRUCTURES, "elm")


def test_a_coding_knows_its_foreground() -> None:
    assert Coding("a", (0, 1, 255), 255).foreground == {0, 1}
