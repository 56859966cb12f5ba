# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Inference in two looks: at the whole photograph, and at the square around what it showed."""

from __future__ import annotations

import pytest
import torch

from monai_fairfl.inferers import FAR, CoarseToFineInferer


def small_disc() -> torch.Tensor:
    image = torch.zeros(1, 1, 256, 256)
    image[..., 180:200, 40:60] = 1
    image[..., 10:14, 10:14] = 1  # a bright spot
    return image


def test_the_second_pass_looks_at_the_square_around_the_largest_part() -> None:
    seen: list[torch.Tensor] = []

    def network(inputs: torch.Tensor) -> torch.Tensor:
        seen.append(inputs)
        return (20 * inputs - 6).repeat(1, 2, 1, 1)

    logits = CoarseToFineInferer((64, 64), passes=2)(small_disc(), network)
    assert len(seen) == 2 and [tuple(inputs.shape) for inputs in seen] == [(1, 1, 64, 64)] * 2
    # The disc fills about half of the side.
    assert float(seen[1].mean()) == pytest.approx(0.25, abs=0.06)
    assert logits.shape == (1, 2, 256, 256)
    found = logits[0, 0] > 0
    assert found[10:14, 10:14].sum() == 0 and logits[0, 0, 0, 0] == FAR
    # Nearer to 20 x 20 than the first pass with its pixels of 4 could be.
    assert abs(int(found.sum()) - 400) < 60


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_one_pass_when_nothing_is_found_or_the_square_is_the_image(value: float) -> None:
    seen: list[torch.Tensor] = []

    def network(inputs: torch.Tensor) -> torch.Tensor:
        seen.append(inputs)
        return inputs - 0.5

    CoarseToFineInferer((32, 32))(torch.full((1, 1, 64, 64), value), network)
    assert len(seen) == 1


def test_a_nearer_look_that_finds_nothing_leaves_what_was_found() -> None:
    outputs = iter([lambda image: image - 0.5, lambda image: torch.full_like(image, -1.0)])
    logits = CoarseToFineInferer((64, 64))(small_disc(), lambda image: next(outputs)(image))
    assert int((logits > 0).sum()) > 300 and not list(outputs)
