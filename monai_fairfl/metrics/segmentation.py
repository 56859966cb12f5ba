# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Computes segmentation metrics beside MONAI's own, each with an ignite handler for bundles.

In a bundle (predictions and labels binarised by the postprocessing, decollated or not)::

    "dice_slices": {
        "_target_": "monai_fairfl.metrics.segmentation.SliceDice",
        "include_background": false,
        "output_transform": "$monai.handlers.from_engine(['pred', 'label'])"
    }
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
import torch
from monai.data import MetaTensor
from monai.handlers import IgniteMetricHandler
from monai.metrics import CumulativeIterationMetric, compute_dice, compute_hausdorff_distance
from monai.metrics.utils import do_metric_reduction, ignore_background
from monai.utils import convert_to_tensor

from monai_fairfl.errors import ConfigError, DataError

Units = Literal["spacing", "voxels"]


class SliceDiceMetric(CumulativeIterationMetric):
    """Mean 2-D Dice over the slices that contain the structure in the reference.

    FedCE and Fed-LWR report it. Per slice ``2|A ∩ B| / (|A| + |B|)``; slices without the structure
    in the reference are left out, whatever was predicted there, so false positives beyond the
    organ's ends do not count: report the volume's Dice beside it. The papers average over a site's
    images, which are slices, so :meth:`aggregate` pools the slices of all cases: a case counts as
    often as it has slices. :meth:`get_buffer` holds each case's own mean.

    Args:
        include_background: whether the first of several channels counts.
        spatial_dim: the spatial axis that counts the slices, 0 to 2; the last one is axial in RAS
            orientation.

    >>> import torch
    >>> reference = torch.zeros(1, 1, 4, 4, 3)
    >>> reference[..., :2, 1:] = 1
    >>> prediction = reference.clone()
    >>> prediction[..., 2] = 0
    >>> metric = SliceDiceMetric()
    >>> metric(prediction, reference), metric.aggregate()
    ([tensor([[0.5000]]), tensor([[2.]])], tensor(0.5000))
    """

    def __init__(self, include_background: bool = False, spatial_dim: int = 2) -> None:
        super().__init__()
        self.include_background = include_background
        self.spatial_dim = spatial_dim

    def _compute_tensor(  # type: ignore[override]
        self, y_pred: torch.Tensor, y: torch.Tensor
    ) -> list[torch.Tensor]:
        """Two tensors (B, C): each case's mean Dice over the slices with reference, their number.

        The mean is NaN where there is no such slice.
        """
        pred, label = _binarised(y_pred, y)
        if label.ndim != 5:
            raise DataError(
                f"Dice over slices needs volumes (B, C, H, W, D), got {tuple(label.shape)}; use "
                "MeanDice for images."
            )
        # All slices as images (B * slices, C, ...). MONAI's Dice of images is NaN where the
        # reference is empty.
        pred, label = (
            mask.movedim(self.spatial_dim + 2, 1).flatten(0, 1) for mask in (pred, label)
        )
        dice = compute_dice(pred, label, include_background=self.include_background)
        dice_by_slice = dice.unflatten(0, (len(y), -1))
        number_of_slices = dice_by_slice.isfinite().sum(dim=1).to(dice)
        return [dice_by_slice.nanmean(dim=1), number_of_slices]

    def get_buffer(self) -> torch.Tensor | None:
        """Each case's mean over its own slices (cases, classes), for reports per case."""
        buffers = super().get_buffer()
        return None if buffers is None else buffers[0]

    def aggregate(self) -> torch.Tensor:
        """Mean Dice over the slices of all cases, a fraction, of the classes in any reference."""
        means, slices = super().get_buffer()
        classes = (means * slices).nansum(dim=0) / slices.sum(dim=0)
        return classes.nanmean()


class SpacedHausdorffMetric(CumulativeIterationMetric):
    """Hausdorff distance in the unit of the image's spacing (millimetres for NIfTI).

    It is the 95th percentile. The spacing is read off each case's label. As in MONAI, the
    percentile is taken per direction (prediction to reference and back), then the larger. A missing
    structure is a failure and must not drop out of the mean as MONAI's NaN does: when exactly one
    of prediction and reference is empty, the distance is the diagonal of the image, which no real
    distance reaches; when both are empty it is 0.

    Args:
        include_background: whether the first of several channels counts.
        units: ``"spacing"`` for the unit of the spacing, ``"voxels"`` to ignore the spacing.

    Raises:
        ConfigError: when ``units`` is unknown, or, later, when the label carries no spacing.

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

    def __init__(self, include_background: bool = False, units: Units = "spacing") -> None:
        super().__init__()
        if units not in get_args(Units):
            raise ConfigError(f"units must be one of {get_args(Units)}, got {units!r}.")
        self.include_background = include_background
        self.units = units

    def _compute_tensor(  # type: ignore[override]
        self, y_pred: torch.Tensor, y: torch.Tensor
    ) -> torch.Tensor:
        """Distances (B, C) in the unit asked for."""
        pred, label = _binarised(y_pred, y)
        if not self.include_background:
            pred, label = ignore_background(pred, label)
        spacings = [[1.0] * (label.ndim - 2)] * len(label)
        if self.units == "spacing":
            spacings = _spacings(y)
        distances = torch.zeros(label.shape[:2], device=label.device)
        for case, channel in np.ndindex(*label.shape[:2]):
            found, reference = pred[case, channel], label[case, channel]
            if found.any() and reference.any():
                distances[case, channel] = compute_hausdorff_distance(
                    found[None, None],
                    reference[None, None],
                    include_background=True,
                    percentile=95.0,
                    spacing=spacings[case],
                )
            elif found.any() or reference.any():
                # The diagonal of the image.
                sides = [size * step for size, step in zip(reference.shape, spacings[case])]
                distances[case, channel] = math.hypot(*sides)
        return distances

    def aggregate(self) -> torch.Tensor:
        """Mean distance of all cases."""
        return do_metric_reduction(self.get_buffer(), "mean")[0]


class MetricHandler(IgniteMetricHandler):
    """The base of ignite handlers of one class of metric, whose arguments they take."""

    metric_class: type[CumulativeIterationMetric]

    def __init__(self, *, output_transform: Callable = lambda x: x, **arguments: Any) -> None:
        super().__init__(self.metric_class(**arguments), output_transform=output_transform)


class SliceDice(MetricHandler):
    """Ignite handler of :class:`SliceDiceMetric`, used like ``monai.handlers.MeanDice``.

    Args:
        output_transform: takes ``(prediction, label)`` from the engine's output:
            ``from_engine(["pred", "label"])``.
        arguments: of :class:`SliceDiceMetric`.

    >>> SliceDice(include_background=False).metric_fn.spatial_dim
    2
    """

    metric_class = SliceDiceMetric


class SpacedHausdorff(MetricHandler):
    """Ignite handler of :class:`SpacedHausdorffMetric`.

    It is used like ``monai.handlers.HausdorffDistance``.

    Args:
        output_transform: takes ``(prediction, label)`` from the engine's output:
            ``from_engine(["pred", "label"])``.
        arguments: of :class:`SpacedHausdorffMetric`.

    >>> SpacedHausdorff(units="voxels").metric_fn.units
    'voxels'
    """

    metric_class = SpacedHausdorffMetric


def _binarised(y_pred: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Prediction and label as plain tensors of 0 and 1.

    Anything else is refused: logits and class indices would be scored without complaint.
    """
    if y_pred.shape != y.shape:
        raise DataError(
            f"prediction {tuple(y_pred.shape)} and label {tuple(y.shape)} must have the same shape."
        )
    require_binary("prediction", y_pred)
    require_binary("label", y)
    pred = convert_to_tensor(y_pred, dtype=torch.float32, track_meta=False)
    return pred, convert_to_tensor(y, dtype=torch.float32, track_meta=False)


def require_binary(name: str, mask: torch.Tensor) -> None:
    """Refuse a mask with other values than 0 and 1, such as logits.

    Args:
        name: of the mask in the text, ``"prediction"`` or ``"label"``.
        mask: of any shape.

    Raises:
        DataError: naming the mask and the fix.

    >>> require_binary("prediction", torch.tensor([4.0, -4.0]))
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.DataError: the prediction must be 0 or 1 (one channel per class); ...
    """
    if not ((mask == 0) | (mask == 1)).all():
        raise DataError(
            f"the {name} must be 0 or 1 (one channel per class); add AsDiscreted to the "
            "postprocessing."
        )


def _spacings(label: torch.Tensor) -> list[list[float]]:
    """Spacing of each case of the batch."""
    if not isinstance(label, MetaTensor):
        raise ConfigError(
            "the label carries no spacing; keep MONAI's MetaTensor through the transforms (no "
            "ToTensord with track_meta=False), or set units to 'voxels'."
        )
    pixdims = label.pixdim if label.is_batch else [label.pixdim] * len(label)
    # A slice of a volume has the volume's three spacings.
    return [[float(step) for step in pixdim][: label.ndim - 2] for pixdim in pixdims]
