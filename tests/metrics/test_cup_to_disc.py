# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The vertical cup-to-disc ratio, and inference in two passes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.inferers import FAR, CoarseToFineInferer
from monai_fairfl.metrics.cup_to_disc import CupToDiscErrorMetric, vertical_cup_to_disc_ratio


def ellipses(disc: tuple[float, float], cup: tuple[float, float], size: int = 200) -> torch.Tensor:
    """Two concentric ellipses of these half-axes (horizontal, vertical); width first."""
    x, y = torch.meshgrid(
        torch.arange(size) - size / 2, torch.arange(size) - size / 2, indexing="ij"
    )
    return torch.stack([((x / a) ** 2 + (y / b) ** 2 <= 1).float() for a, b in (disc, cup)])


@given(st.floats(40, 90), st.floats(40, 90), st.floats(0.1, 1))
def test_the_ratio_is_that_of_the_vertical_axes(wide: float, high: float, ratio: float) -> None:
    masks = ellipses((wide, high), (0.5 * wide, ratio * high))
    assert vertical_cup_to_disc_ratio(masks) == pytest.approx(ratio, abs=0.03)


def test_no_cup_is_0_and_what_is_not_there_has_no_ratio() -> None:
    masks = ellipses((50, 60), (20, 30))
    assert vertical_cup_to_disc_ratio(masks * torch.tensor([1.0, 0.0])[:, None, None]) == 0
    assert math.isnan(vertical_cup_to_disc_ratio(torch.zeros(2, 8, 8)))
    assert math.isnan(vertical_cup_to_disc_ratio(torch.stack([masks[0], -torch.ones(200, 200)])))


def test_the_error_leaves_out_photographs_without_a_labelled_cup() -> None:
    masks, unlabelled = ellipses((50, 60), (20, 30)), ellipses((50, 60), (20, 30))
    unlabelled[1] = -1
    metric = CupToDiscErrorMetric()
    metric(torch.stack([ellipses((50, 60), (20, 15))] * 2), torch.stack([masks, unlabelled]))
    assert metric.aggregate().item() == pytest.approx(0.25, abs=0.01)
    assert metric.get_buffer().isnan().flatten().tolist() == [False, True]
    metric.reset()
    metric(torch.zeros(1, 2, 200, 200), masks[None])  # found nothing
    assert metric.aggregate().item() == pytest.approx(0.5, abs=0.01)
    metric.reset()
    metric(masks[None], unlabelled[None])
    assert math.isnan(metric.aggregate().item())


def test_the_error_leaves_out_photographs_whose_label_has_a_disc_and_no_cup() -> None:
    """As in a site where some masks have the disc alone: a true ratio of 0 would be invented."""
    masks, disc_alone = ellipses((50, 60), (20, 30)), ellipses((50, 60), (20, 30))
    disc_alone[1] = 0
    metric = CupToDiscErrorMetric()
    metric(torch.stack([ellipses((50, 60), (20, 15))] * 2), torch.stack([masks, disc_alone]))
    assert metric.aggregate().item() == pytest.approx(0.25, abs=0.01)
    assert metric.get_buffer().isnan().flatten().tolist() == [False, True]
    metric.reset()
    # A cup that is in the label and was not found is an error.
    metric(disc_alone[None], masks[None])
    assert metric.aggregate().item() == pytest.approx(0.5, abs=0.01)


def test_other_channels_than_disc_and_cup_are_refused() -> None:
    """With the background in front, the ratio would be that of the disc and the background."""
    disc_and_cup = ellipses((50, 60), (20, 30))[None]
    background = 1 - disc_and_cup[:, :1]
    three = torch.cat([background, disc_and_cup], 1)
    one = disc_and_cup[:, :1]
    for prediction, label in ((three, three), (one, one), (disc_and_cup, three)):
        channels = label.shape[1]
        with pytest.raises(DataError, match=rf"got \({channels}, 200, 200\).*two channels"):
            CupToDiscErrorMetric()(prediction, label)
    with pytest.raises(DataError, match=r"got \(2, 4, 4, 4\): give one picture"):
        vertical_cup_to_disc_ratio(torch.ones(2, 4, 4, 4))


def test_logits_and_probabilities_are_refused_and_not_scored() -> None:
    """Logits of a perfect mask, cut at 0.5 and with values below 0, would have an error of 0.5."""
    masks = ellipses((50, 60), (20, 30))[None]
    logits = (2 * masks - 1) * 4
    for prediction in (logits, 0.9 * masks, 2 * masks):
        with pytest.raises(DataError, match=r"the prediction must be 0 or 1 .*add AsDiscreted"):
            CupToDiscErrorMetric()(prediction, masks)
    # Decollated, as an evaluator gives them.
    with pytest.raises(DataError, match="the prediction must be 0 or 1"):
        CupToDiscErrorMetric()(list(logits), list(masks))
    with pytest.raises(DataError, match="the label must be 0 or 1"):
        CupToDiscErrorMetric()(masks, logits)
    with pytest.raises(DataError, match="the label is missing"):
        CupToDiscErrorMetric()(masks)


def test_masks_may_be_of_any_type_of_number() -> None:
    masks = ellipses((50, 60), (20, 30))[None]
    for dtype in (torch.bool, torch.uint8, torch.float16):
        metric = CupToDiscErrorMetric()
        metric(masks.to(dtype), masks.to(dtype))
        assert metric.aggregate().item() == 0


def test_before_any_photograph_there_is_no_error_to_aggregate() -> None:
    metric = CupToDiscErrorMetric()
    with pytest.raises(ConfigError, match="no case was measured"):
        metric.aggregate()
    masks = ellipses((50, 60), (20, 30))[None]
    metric(masks, masks)
    metric.reset()
    with pytest.raises(ConfigError, match="no case was measured"):
        metric.aggregate()


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


@pytest.mark.parametrize("image", [torch.zeros(1, 1, 64, 64), torch.ones(1, 1, 64, 64)])
def test_one_pass_when_nothing_is_found_or_the_square_is_the_image(image: torch.Tensor) -> None:
    calls: list[int] = []

    def network(inputs: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return inputs - 0.5

    CoarseToFineInferer((32, 32))(image, network)
    assert len(calls) == 1


def test_a_nearer_look_that_finds_nothing_leaves_what_was_found() -> None:
    calls: list[int] = []

    def network(inputs: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return inputs - 0.5 if len(calls) == 1 else torch.full_like(inputs, -1.0)

    logits = CoarseToFineInferer((64, 64))(small_disc(), network)
    assert len(calls) == 2 and int((logits > 0).sum()) > 300


def test_a_region_of_interest_is_looked_at_once_and_every_view_is_normalised() -> None:
    calls: list[float] = []

    def network(inputs: torch.Tensor) -> torch.Tensor:
        calls.append(float(inputs.mean()))
        return inputs

    CoarseToFineInferer((32, 32), passes=1)(small_disc(), network)
    assert len(calls) == 1
    calls.clear()
    CoarseToFineInferer((32, 32), passes=2, normalise=lambda image: image - image.mean())(
        small_disc(), network
    )
    assert len(calls) == 2 and calls == pytest.approx([0, 0], abs=1e-6)
