# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Dice of slices, surface distance in millimetres, and the error of the cup-to-disc ratio."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from monai.data import DataLoader, Dataset, MetaTensor, decollate_batch
from monai.handlers import from_engine
from scipy.ndimage import binary_erosion, distance_transform_edt

from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.metrics import (
    CupToDiscErrorMetric,
    SliceDiceMetric,
    SpacedHausdorffMetric,
)

torch.set_num_threads(1)
SPACING = (0.5, 0.75, 3.0)
SHAPE = (16, 14, 6)


def blobs(seed: int, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    """A box with ragged sides in the middle slices: the outer slices hold nothing."""
    rng = np.random.default_rng(seed)
    mask = np.zeros(shape, dtype=np.float32)
    low = rng.integers(2, 5, size=2)
    mask[low[0] : low[0] + 7, low[1] : low[1] + 6, 1 : shape[2] - 1 - seed % 2] = 1
    return mask * (rng.random(shape) > 0.1)


def with_spacing(mask: np.ndarray, spacing: tuple[float, ...] = SPACING) -> MetaTensor:
    return MetaTensor(
        torch.as_tensor(mask, dtype=torch.float32), affine=torch.diag(torch.tensor([*spacing, 1.0]))
    )


def dice_of_slices(pred: np.ndarray, label: np.ndarray) -> list[float]:
    """Oracle: Dice of each last-axis slice with reference, straight from the definition."""
    return [
        2 * np.logical_and(a, b).sum() / (a.sum() + b.sum())
        for a, b in zip(np.moveaxis(pred, -1, 0), np.moveaxis(label, -1, 0))
        if b.any()
    ]


def hd95(pred: np.ndarray, label: np.ndarray, spacing: tuple[float, ...]) -> float:
    """The oracle: dense distance transforms to both surfaces, the larger percentile of the two."""
    surface = [mask ^ binary_erosion(mask) for mask in (pred.astype(bool), label.astype(bool))]
    to = [distance_transform_edt(~edge, sampling=spacing) for edge in surface]
    return max(np.percentile(to[1][surface[0]], 95), np.percentile(to[0][surface[1]], 95))


def hausdorff(pred: Any, label: Any) -> list[float]:
    """What the metric gives for each case, and class, of one batch."""
    metric: Any = SpacedHausdorffMetric()
    metric(pred, label)
    found: list[float] = metric.get_buffer().flatten().tolist()
    return found


# ---- Dice of slices


def test_slice_dice_pools_the_slices_with_reference_and_keeps_each_case() -> None:
    pairs = [(blobs(1), blobs(2)), (blobs(3, (16, 14, 11)), blobs(4, (16, 14, 11)))]
    pairs[0][0][..., 0] = 1  # false positives where the reference has nothing: not judged in 2-D
    metric = SliceDiceMetric()
    slices = []
    for pair in pairs:
        metric(*([torch.tensor(mask)[None]] for mask in pair))
        slices.append(dice_of_slices(*pair))
    assert metric.aggregate().item() == pytest.approx(np.mean(sum(slices, [])), abs=1e-6)
    buffer: Any = metric.get_buffer()
    assert buffer.flatten().tolist() == pytest.approx([np.mean(s) for s in slices], abs=1e-6)


def test_a_prediction_of_other_classes_than_the_label_is_refused() -> None:
    for metric in (SliceDiceMetric(), SpacedHausdorffMetric()):
        with pytest.raises(DataError, match="shape"):
            metric(torch.zeros(1, 2, *SHAPE), with_spacing(np.zeros((1, 1, *SHAPE))))


# ---- surface distance


def test_a_label_without_spacing_is_refused() -> None:
    with pytest.raises(ConfigError, match="spacing"):
        hausdorff([with_spacing(blobs(1)[None])], [torch.tensor(blobs(2))[None]])


def test_hausdorff_uses_the_spacing_of_each_label_decollated_or_batched() -> None:
    spacings = [SPACING, (2.0, 1.0, 1.0)]
    items = [
        {
            "pred": with_spacing(blobs(i)[None], (9.0,) * 3),
            "label": with_spacing(blobs(i + 2)[None], s),
        }
        for i, s in enumerate(spacings)
    ]
    (batch,) = DataLoader(Dataset(items), batch_size=2)
    expected = [hd95(blobs(i), blobs(i + 2), s) for i, s in enumerate(spacings)]
    for given in (batch, decollate_batch(batch)):
        pred, label = from_engine(["pred", "label"])(given)
        assert hausdorff(pred, label) == pytest.approx(expected, rel=1e-5)


def test_a_missed_structure_counts_as_the_image_diagonal_and_an_absent_one_as_zero() -> None:
    full, empty = blobs(1)[None], np.zeros((1, *SHAPE), np.float32)
    metric = SpacedHausdorffMetric()
    metric(
        [with_spacing(x) for x in (empty, full, empty)],
        [with_spacing(x) for x in (full, empty, empty)],
    )
    diagonal = float(np.linalg.norm(np.multiply(SHAPE, SPACING)))
    buffer: Any = metric.get_buffer()
    assert buffer.flatten().tolist() == pytest.approx([diagonal, diagonal, 0])
    assert metric.aggregate().item() == pytest.approx(2 * diagonal / 3)


# ---- the cup-to-disc ratio


def ellipses(disc: tuple[float, float], cup: tuple[float, float]) -> torch.Tensor:
    """Two concentric ellipses of these half-axes (horizontal, vertical); width first."""
    places = torch.arange(-100.0, 100)
    x, y = torch.meshgrid(places, places, indexing="ij")
    return torch.stack([((x / a) ** 2 + (y / b) ** 2 <= 1).float() for a, b in (disc, cup)])


def errors(prediction: torch.Tensor, label: torch.Tensor) -> list[float]:
    """The error of each photograph."""
    metric = CupToDiscErrorMetric()
    metric(prediction, label)
    found: list[float] = metric.get_buffer().flatten().tolist()
    return found


def test_photographs_whose_label_has_no_cup_are_left_out() -> None:
    """As in a site where some masks have the disc alone: a true ratio of 0 would be invented."""
    masks, small = ellipses((50, 60), (20, 30)), ellipses((50, 60), (20, 15))
    unlabelled, disc_alone = masks.clone(), masks.clone()
    unlabelled[1], disc_alone[1] = -1, 0
    metric = CupToDiscErrorMetric()
    metric(torch.stack([small] * 3), torch.stack([masks, unlabelled, disc_alone]))
    assert metric.aggregate().item() == pytest.approx(0.25, abs=0.01)
    assert metric.get_buffer().isnan().flatten().tolist() == [False, True, True]
    # A cup or a disc that was not found is an error.
    assert errors(disc_alone[None], masks[None]) == pytest.approx([0.5], abs=0.01)


def test_other_channels_logits_and_probabilities_are_refused_and_not_scored() -> None:
    """With the background in front, the ratio would be that of the disc and the background."""
    masks = ellipses((50, 60), (20, 30))[None]
    for wrong in (torch.cat([1 - masks[:, :1], masks], 1), masks[:, :1]):
        with pytest.raises(DataError, match=f"{wrong.shape[1]}, 200, 200"):
            errors(wrong, wrong)
    with pytest.raises(DataError, match="prediction.*AsDiscreted"):
        errors(0.9 * masks, masks)
