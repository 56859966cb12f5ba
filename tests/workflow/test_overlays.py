# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Outlines: where the mask is, in which slices, and the patient the right way round."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from scipy import ndimage

from monai_fairfl.workflow import overlay
from monai_fairfl.workflow.overlays import COLOURS, SIDE

RAS = np.diag([0.5, 0.5, 3.0, 1.0])


def coloured(picture: np.ndarray, label: int = 1) -> np.ndarray:
    return (picture == COLOURS[label - 1]).all(axis=-1)


def volume(values: np.ndarray, affine: np.ndarray = RAS) -> MetaTensor:
    return MetaTensor(
        torch.as_tensor(values, dtype=torch.float32)[None], affine=torch.as_tensor(affine)
    )


def test_outlines_of_a_photograph_enclose_each_label() -> None:
    x, y = np.indices((96, 64))
    distance = (x - 60) ** 2 + (y - 20) ** 2
    disc = distance < 15**2
    cup = distance < 6**2
    labels = MetaTensor(torch.as_tensor(disc.astype(int) + cup)[None])
    picture = overlay(MetaTensor(torch.full((3, 96, 64), 40.0)), labels)
    assert picture.shape == (SIDE * 64 // 96, SIDE, 3)
    for label, mask in enumerate([disc, cup], start=1):
        inside = ndimage.binary_fill_holes(coloured(picture, label))
        expected = mask.T.repeat(10, axis=0).repeat(10, axis=1)
        assert expected[inside].mean() > 0.9 and inside[expected].all()
    assert (picture[0, 0] == 40).all()


def test_the_patients_left_is_on_the_right_and_the_front_above() -> None:
    mask = np.zeros((40, 40, 1))
    mask[2:10, 30:38] = 1
    rows, columns = np.nonzero(
        coloured(overlay(volume(mask), volume(mask)))
    )  # x grows to the right, y to the front
    assert columns.min() > SIDE / 2 > rows.max()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
@pytest.mark.parametrize("flipped", [0, 1, 2])
def test_the_picture_does_not_depend_on_how_the_file_was_stored(
    order: tuple[int, int, int], flipped: int
) -> None:
    image, mask = np.random.default_rng(0).random((20, 30, 6)), np.zeros((20, 30, 6))
    mask[5:12, 8:20, 2:5] = 1
    stored = RAS[:, [*order, 3]].copy()
    stored[:, 3] += stored[:, flipped] * (image.transpose(order).shape[flipped] - 1)
    stored[:, flipped] *= -1
    turned = [
        volume(np.flip(values.transpose(order), flipped).copy(), stored) for values in (image, mask)
    ]
    np.testing.assert_array_equal(
        overlay(turned[0], turned[1]), overlay(volume(image), volume(mask))
    )


@pytest.mark.parametrize(("gland", "tiles"), [(0, 9), (1, 1), (4, 4), (5, 6), (20, 9)])
def test_at_most_nine_slices_with_gland_are_shown_and_the_middle_ones_without_any(
    gland: int, tiles: int
) -> None:
    image, mask = np.random.default_rng(0).random((16, 16, 24)) + 1, np.zeros((16, 16, 24))
    mask[4:12, 4:12, 2 : 2 + gland] = 1
    picture = overlay(volume(image), volume(mask))
    columns = int(np.ceil(np.sqrt(tiles)))
    side = SIDE // columns
    assert picture.shape == (-(-tiles // columns) * side, columns * side, 3)
    blocks = picture.reshape(-1, side, columns, side, 3).swapaxes(1, 2).reshape(-1, side, side, 3)
    outlined = [bool(coloured(block).any()) for block in blocks]
    assert sum(outlined) == min(gland, 9)


def test_pixels_keep_their_proportions() -> None:
    mask = np.zeros((20, 20, 1))
    mask[5:15, 5:15] = 1
    rows, columns = np.nonzero(
        coloured(overlay(*[volume(mask, np.diag([1.0, 2.0, 3.0, 1.0]))] * 2))
    )
    assert np.ptp(rows) / np.ptp(columns) == pytest.approx(2, rel=0.02)


def test_a_title_is_written_into_the_first_tile_alone() -> None:
    mask = np.zeros((40, 40, 4))
    mask[20:30, 20:30] = 1
    plain = overlay(volume(mask), volume(mask))
    titled = overlay(volume(mask), volume(mask), title="Case01")
    rows, columns = np.nonzero((plain != titled).any(axis=-1))
    assert 0 < rows.max() < 20 and 0 < columns.max() < SIDE / 2
