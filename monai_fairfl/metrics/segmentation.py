# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Computes segmentation metrics beside MONAI's own.

In a bundle (predictions and labels binarised by the postprocessing, decollated or not)::

    "dice_slices": {
        "_target_": "IgniteMetricHandler",
        "metric_fn": {"_target_": "monai_fairfl.metrics.SliceDiceMetric"},
        "output_transform": "$monai.handlers.from_engine(['pred', 'label'])"
    }
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from monai.data import MetaTensor
from monai.metrics import (
    CumulativeIterationMetric,
    HausdorffDistanceMetric,
    compute_dice,
    compute_hausdorff_distance,
)
from monai.metrics.utils import ignore_background
from monai.utils import convert_to_tensor
from torch import Tensor

from monai_fairfl.errors import ConfigError, DataError


class SliceDiceMetric(CumulativeIterationMetric):
    """Mean 2-D Dice over the slices that contain the structure in the reference.

    FedCE and Fed-LWR report it. Per slice ``2|A ∩ B| / (|A| + |B|)``; slices without the structure
    in the reference are left out, whatever was predicted there, so false positives beyond the
    organ's ends do not count: report the volume's Dice beside it. The papers average over a site's
    images, which are slices, so :meth:`aggregate` pools the slices of all cases: a case counts as
    often as it has slices. :meth:`get_buffer` holds each case's own mean.

    Args:
        include_background: whether the first of several channels counts.

    The last axis counts the slices, as it is axial in RAS orientation.

    >>> import torch
    >>> reference = torch.zeros(1, 1, 4, 4, 3)
    >>> reference[..., :2, 1:] = 1
    >>> prediction = reference.clone()
    >>> prediction[..., 2] = 0
    >>> metric = SliceDiceMetric()
    >>> metric(prediction, reference), metric.aggregate()
    ([tensor([[0.5000]]), tensor([[2.]])], tensor(0.5000))
    """

    def __init__(self, include_background: bool = False) -> None:
        super().__init__()
        self.include_background = include_background

    def _compute_tensor(self, y_pred: Tensor, y: Tensor) -> list[Tensor]:  # type: ignore[override]
        """Two tensors (B, C): each case's mean Dice over the slices with reference, their number.

        The mean is NaN where there is no such slice.
        """
        pred, label = _binarised(y_pred, y)
        if label.ndim != 5:
            raise DataError(f"Dice over slices needs volumes (B, C, H, W, D), got {label.shape}")
        # All slices as images (B * slices, C, ...). MONAI's Dice of images is NaN where the
        # reference is empty.
        pred, label = (mask.movedim(-1, 1).flatten(0, 1) for mask in (pred, label))
        dice = compute_dice(pred, label, include_background=self.include_background)
        dice_by_slice = dice.unflatten(0, (len(y), -1))
        number_of_slices = dice_by_slice.isfinite().sum(dim=1).to(dice)
        return [dice_by_slice.nanmean(dim=1), number_of_slices]

    def get_buffer(self) -> Tensor | None:
        """Each case's mean over its own slices (cases, classes), for reports per case."""
        buffers = super().get_buffer()
        return None if buffers is None else buffers[0]

    def aggregate(self) -> Tensor:
        """Mean Dice over the slices of all cases, a fraction, of the classes in any reference."""
        means, slices = super().get_buffer()
        return ((means * slices).nansum(dim=0) / slices.sum(dim=0)).nanmean()


class SpacedHausdorffMetric(HausdorffDistanceMetric):
    """Hausdorff distance in the unit of the image's spacing (millimetres for NIfTI).

    It is the 95th percentile. The spacing is read off each case's label. As in MONAI, the
    percentile is taken per direction (prediction to reference and back), then the larger. A missing
    structure is a failure and must not drop out of the mean as MONAI's NaN does: when exactly one
    of prediction and reference is empty, the distance is the diagonal of the image, which no real
    distance reaches; when both are empty it is 0.

    Args:
        include_background: whether the first of several channels counts.

    Raises:
        ConfigError: later, when a label carries no spacing.

    >>> import torch
    >>> from monai.data import MetaTensor
    >>> affine = torch.diag(torch.tensor([1.0, 1.0, 3.0, 1.0]))
    >>> reference = MetaTensor(torch.zeros(1, 4, 4, 4), affine=affine)
    >>> prediction = reference.clone()
    >>> reference[0, 1, 1, 1] = 1
    >>> prediction[0, 1, 1, 2] = 1
    >>> SpacedHausdorffMetric()([prediction], [reference])
    tensor([[3.]])
    """

    def __init__(self, include_background: bool = False) -> None:
        super().__init__(include_background)

    def _compute_tensor(self, y_pred: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        """Distances (B, C) in the unit of the spacing."""
        pred, label = _binarised(y_pred, y)
        if not self.include_background:
            pred, label = ignore_background(pred, label)
        if not isinstance(y, MetaTensor):
            raise ConfigError("the label has no spacing: keep MONAI's MetaTensor in the transforms")
        pixdims = y.pixdim if y.is_batch else [y.pixdim] * len(y)
        # A slice of a volume has the volume's three spacings.
        spacings = [pixdim.tolist()[: y.ndim - 2] for pixdim in pixdims]
        distances = torch.zeros(label.shape[:2], device=label.device)
        distance = partial(compute_hausdorff_distance, include_background=True, percentile=95.0)
        for place in np.ndindex(*label.shape[:2]):
            found, reference, spacing = pred[place], label[place], spacings[place[0]]
            if found.any() and reference.any():
                distances[place] = distance(
                    found[None, None], reference[None, None], spacing=spacing
                )
            elif found.any() or reference.any():
                # The diagonal of the image.
                distances[place] = math.hypot(*np.multiply(reference.shape, spacing))
        return distances


def vertical_cup_to_disc_ratio(masks: Tensor) -> float:
    r"""Height of the cup over height of the disc, :math:`h_{cup} / h_{disc}`.

    It is in [0, 1] for a cup inside its disc. Above about 0.6 to 0.7 it makes one think of
    glaucoma.

    Args:
        masks: (2, W, H) of 0 and 1, disc and cup; height is the last axis, as MONAI reads
            photographs.

    Returns:
        0 without a cup; NaN without a disc, or where a structure is not labelled (below 0).

    Raises:
        DataError: when ``masks`` are no pictures of these two channels.

    >>> masks = torch.zeros(2, 8, 8)
    >>> masks[0, :, :8], masks[1, :, 2:6] = 1, 1
    >>> vertical_cup_to_disc_ratio(masks)
    0.5
    """
    if masks.ndim != 3 or len(masks) != 2:
        raise DataError(f"give masks (2, W, H), disc and cup, not {tuple(masks.shape)}")
    heights = []
    for mask in masks:
        rows = (mask > 0.5).any(0).nonzero()
        heights.append(int(rows.max() - rows.min()) + 1 if len(rows) else 0)
    disc, cup = heights
    return math.nan if disc == 0 or bool((masks < 0).any()) else cup / disc


class CupToDiscErrorMetric(CumulativeIterationMetric):
    """Absolute error of the vertical cup-to-disc ratio of each photograph, and its mean.

    A prediction without any disc counts as a ratio of 0. Photographs whose label has no cup do not
    count, whether the cup is empty or not labelled: in most of them nobody drew it. Predictions and
    labels are (B, 2, W, H), disc and cup, of 0 and 1; a structure that is not labelled is below 0
    in the label. Other shapes, and other values such as logits, are a ``DataError``.

    >>> import torch
    >>> label = torch.zeros(1, 2, 8, 8)
    >>> label[:, 0], label[:, 1, :, 2:6] = 1, 1
    >>> metric = CupToDiscErrorMetric()
    >>> _ = metric(label.cumprod(1), torch.ones(1, 2, 8, 8))
    >>> metric.aggregate().item()
    0.5
    """

    def _compute_tensor(self, y_pred: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        require_binary("prediction", y_pred)
        # A structure that is not labelled is below 0, and has no ratio.
        require_binary("label", y[~(y < 0)])

        errors = []
        for prediction, reference in zip(y_pred, y, strict=True):
            predicted_ratio = float(np.nan_to_num(vertical_cup_to_disc_ratio(prediction)))
            # A ratio of 0: no cup in the label.
            true_ratio = vertical_cup_to_disc_ratio(reference) or math.nan
            errors.append([abs(predicted_ratio - true_ratio)])
        return torch.tensor(errors)

    def aggregate(self) -> Tensor:
        """The mean over photographs; NaN when no label has a cup."""
        return torch.as_tensor(self.get_buffer()).nanmean()


def _binarised(y_pred: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Prediction and label as plain tensors of 0 and 1.

    Anything else is refused: logits and class indices would be scored without complaint.
    """
    if y_pred.shape != y.shape:
        raise DataError(f"prediction {y_pred.shape} and label {y.shape} must have the same shape")
    require_binary("prediction", y_pred)
    require_binary("label", y)
    pred = convert_to_tensor(y_pred, dtype=torch.float32, track_meta=False)
    return pred, convert_to_tensor(y, dtype=torch.float32, track_meta=False)


def require_binary(name: str, mask: Tensor) -> None:
    """Refuse a mask with other values than 0 and 1, such as logits.

    Args:
        name: of the mask in the text, ``"prediction"`` or ``"label"``.
        mask: of any shape.

    Raises:
        DataError: naming the mask and the fix.

    >>> require_binary("prediction", torch.tensor([4.0, -4.0]))
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.DataError: the prediction must be 0 or 1 (one channel per class): ...
    """
    if not ((mask == 0) | (mask == 1)).all():
        raise DataError(f"the {name} must be 0 or 1 (one channel per class): add AsDiscreted")
