# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The pixel values of disc and cup are found in the masks, however they are coded."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from helpers import public_layouts as made
from helpers.refusals import refused
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFilter

from monai_fairfl.data import site_datalist
from monai_fairfl.errors import DataError

STRUCTURES = ("disc", "cup")
Values = dict[str, list[int]]


def values_of(
    folder: Path, *masks: np.ndarray, ending: str = ".png", structures: Sequence[str] = STRUCTURES
) -> Values:
    """The values in the data list of a site with these masks; one alone is of all cases."""
    for n, mask in enumerate(masks if len(masks) > 2 else masks * 3):
        image = folder / "elm" / "images" / f"{n}{ending}"
        made.write(folder / "elm" / "masks" / image.name, mask)
        image.parent.mkdir(exist_ok=True)
        image.touch()  # only masks are read
    parts = site_datalist(folder / "elm", structures=structures)
    values: Values = parts["training"][0]["values"]
    assert all(case["values"] == values for case in sum(parts.values(), []))
    return values


CODINGS: dict[tuple[int, ...], Values] = {
    (0, 1): {"disc": [1, 1]},
    (255, 0): {"disc": [0, 127]},
    (0, 2, 1): {"disc": [1, 2], "cup": [1, 1]},
    (0, 128, 255): {"disc": [64, 255], "cup": [192, 255]},
    (0, 255, 128): {"disc": [64, 255], "cup": [64, 191]},
    (255, 128, 0): {"disc": [0, 200], "cup": [0, 50]},
    (255, 170, 85): {"disc": [0, 212], "cup": [0, 127]},
    (0, 100, 200): {"disc": [50, 255], "cup": [150, 255]},
}


def test_codings_in_use_are_read(tmp_path: Path) -> None:
    for coding, expected in CODINGS.items():
        masks = [made.mask(n, coding, size=96, radius=30, cup=14) for n in range(3)]
        assert values_of(tmp_path / str(coding), *masks) == expected
        for name, radius in zip(expected, (30, 14)):  # the oracle: what was drawn
            low, high = expected[name]
            drawn = made.mask(0, (0, 1), size=96, radius=radius) > 0
            assert np.array_equal((masks[0] >= low) & (masks[0] <= high), drawn)


def test_a_disc_that_the_images_border_cuts_is_as_deep_as_what_is_seen_of_it(
    tmp_path: Path,
) -> None:
    """A photograph that is centred on the macula, or a region of interest, shows a part of it."""
    whole = [made.mask(n, made.GREY, size=160, radius=60, cup=30) for n in range(3)]
    for name, part in {
        "less than half": np.s_[100:, :],
        "quarter": np.s_[80:, :80],
        "all but the ends": np.s_[30:130, :],
    }.items():
        cut = [mask[part] for mask in whole]
        expected = {"disc": [64, 255], "cup": [192, 255]}
        assert values_of(tmp_path / name, *cut) == expected, name
        # Beside whole ones, too, it is no mask of another coding.
        assert values_of(tmp_path / f"{name} and whole", *whole, cut[0]) == expected, name
        with refused("nested the other way round"):
            swapped = np.choose(cut[0] // 127, [0, 255, 128]).astype(np.uint8)
            values_of(tmp_path / f"{name}, swapped", *whole, swapped)


FORMS = [(0, 255), (0, 128, 255), (255, 128, 0), (255, 0)]


@settings(max_examples=25)
@example((0, 128, 255), 53, 24.0, 0.7890625)
@example((0, 255), 94, 24.0, 0.5)
@given(st.sampled_from(FORMS), st.integers(50, 95), st.floats(24, 44), st.floats(0.3, 0.85))
def test_jpeg_does_not_hide_the_values(
    coding: tuple[int, ...], quality: int, radius: float, ratio: float
) -> None:
    drawn = made.mask(2, coding, size=128, radius=radius, cup=ratio * radius)
    with tempfile.TemporaryDirectory() as plain, tempfile.TemporaryDirectory() as noisy:
        try:
            found = values_of(Path(noisy), made.jpeg(drawn, quality))
        except DataError:
            # A thin ring may drown in the noise of strong compression. Then the user is asked.
            assert quality < 65 and (1 - ratio) * radius < 8
            return
        assert found == values_of(Path(plain), drawn)


def test_forms_that_mean_the_same_have_the_same_values(tmp_path: Path) -> None:
    drawn = made.mask(2, made.GREY, size=128, radius=40, cup=20)
    expected = {"disc": [64, 255], "cup": [192, 255]}
    blurred = np.asarray(Image.fromarray(drawn).filter(ImageFilter.GaussianBlur(0.8)))
    assert len(np.unique(blurred)) > 20
    without_cup = [made.mask(0, (0, 128)), made.mask(1, (0, 128)), np.zeros((48, 48), np.uint8)]
    forms: dict[str, list[np.ndarray]] = {
        "blurred": [blurred],
        "colours": [np.repeat(drawn[..., None], 3, axis=2)],
        "alpha": [np.stack([drawn, np.full_like(drawn, 200)], axis=-1)],
        "some empty or without a cup": [*without_cup, made.mask(2)],
    }
    for name, masks in forms.items():
        assert values_of(tmp_path / name, *masks) == expected, name
    volume = np.stack([made.mask(0, made.PALETTE)] * 3, axis=-1)
    found = values_of(tmp_path / "volume", volume, ending=".nii.gz")
    assert found == {"disc": [1, 2], "cup": [2, 2]}
    # One structure of two includes the inner one.
    assert values_of(tmp_path / "disc", drawn, structures=["disc"]) == {"disc": [64, 255]}
    # A mask that changes is read again.
    made.write(tmp_path / "disc" / "elm" / "masks" / "0.png", made.mask(0, made.PALETTE))
    with refused("0.png", "[0, 1, 2]"):
        site_datalist(tmp_path / "disc" / "elm", structures=["disc"])


NOISE = np.random.default_rng(0).normal(100, 20, (48, 48)).clip(0, 255).astype(np.uint8)
VIEW = made.mask(0, (0, 1), size=96, radius=40)  # a grey photograph: a dim scene in black
VIEW[VIEW > 0] = np.random.default_rng(0).normal(110, 14, (VIEW > 0).sum())
FOUR = made.mask(0, made.PALETTE)
FOUR[:3, :3] = 3
RIM = made.mask(0, made.PALETTE, size=96, radius=30, cup=14)
RIM[(made.mask(0, (0, 1), 96, 32) > 0) & (made.mask(0, (0, 1), 96, 28) == 0)] = 255

DISAGREEING = {
    "grey levels": (made.mask(9, (0, 255)), ["[0, 255]", "1 around 2"]),
    "another background": (made.mask(9, (2, 1, 0)), ["[0, 1, 2]", "2 along", "border"]),
    "a cup without a disc": (made.mask(9, (0, 2)), ["[0, 2]"]),
    "nested the other way round": (made.mask(9, (0, 2, 1)), ["[0, 1, 2]", "nested"]),
    "all levels": (np.arange(48 * 48, dtype=np.uint8).reshape(48, 48), ["256 different"]),
    "a photograph": (made.photo(9), ["colours"]),
    "noise": (NOISE, ["different values"]),
    "a grey photograph": (VIEW, ["different values"]),
    "classes among grey levels": (made.mask(0, (0, 1, 255)), ["[0, 1, 255]", "1 around 2"]),
    "light levels side by side": (made.mask(0, (0, 240, 255)), ["[0, 240, 255]", "1 around 2"]),
    "dark on white": (made.mask(0, (255, 1, 0)), ["[0, 1, 255]", "1 around 2"]),
    "a level at JPEG's noise": (made.mask(0, (0, 16, 255)), ["[0, 16, 255]", "1 around 2"]),
    "a rim of unsure pixels": (RIM, ["[0, 1, 2, 255]", "2 nested"]),
    "more levels than structures": (FOUR, ["[0, 1, 2, 3]", "2 nested"]),
}


@pytest.mark.parametrize("name", DISAGREEING)
def test_a_mask_that_disagrees_is_named_with_its_values(name: str, tmp_path: Path) -> None:
    odd, words = DISAGREEING[name]
    sound = [made.mask(n, made.PALETTE) for n in range(3)]
    with refused("elm", "masks/3.png", "'disc': [lowest, highest]", *words):
        values_of(tmp_path, *sound, odd)


def test_masks_that_show_no_structure_are_refused(tmp_path: Path) -> None:
    with refused("elm", "empty"):
        values_of(tmp_path / "empty", np.zeros((9, 9), np.uint8))
    with refused("elm", "128 outside", "255 around 0"):
        values_of(tmp_path / "between", made.mask(0, (128, 255, 0)))
    with refused("elm", "0.5"):
        values_of(tmp_path / "halves", np.full((4, 4, 2), 0.5), ending=".nii.gz")
