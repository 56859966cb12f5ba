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
from typing import Any, Literal

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
        reduction: ``"mean"`` over classes, ``"mean_batch"`` for each class, ``"none"`` for each
            case and class.

    Raises:
        ConfigError: when an argument is not one of these.

    >>> import torch
    >>> reference = torch.zeros(1, 1, 4, 4, 3)
    >>> reference[..., :2, 1:] = 1
    >>> prediction = reference.clone()
    >>> prediction[..., 2] = 0
    >>> metric = SliceDiceMetric()
    >>> metric(prediction, reference), metric.aggregate()
    ([tensor([[0.5000]]), tensor([[2.]])], tensor(0.5000))
    """

    def __init__(
        self, include_background: bool = False, spatial_dim: int = 2, reduction: str = "mean"
    ) -> None:
        super().__init__()
        if spatial_dim not in (0, 1, 2):
            raise ConfigError(f"spatial_dim must be 0, 1 or 2, got {spatial_dim}.")
        _check_option("reduction", reduction, ("mean", "mean_batch", "none"))
        self.include_background = include_background
        self.spatial_dim = spatial_dim
        self.reduction = reduction

    def _compute_tensor(
        self, y_pred: torch.Tensor, y: torch.Tensor | None = None, **_: Any
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
        # MONAI's Dice of images is NaN where the reference is empty.
        dice = compute_dice(
            self._slices_of(pred),
            self._slices_of(label),
            include_background=self.include_background,
        )
        dice_by_slice = dice.unflatten(0, (len(label), -1))
        number_of_slices = dice_by_slice.isfinite().sum(dim=1).to(dice)
        return [dice_by_slice.nanmean(dim=1), number_of_slices]

    def _slices_of(self, volumes: torch.Tensor) -> torch.Tensor:
        """All slices of volumes (B, C, H, W, D) as images (B * slices, C, ...)."""
        return volumes.movedim(self.spatial_dim + 2, 1).flatten(0, 1)

    def get_buffer(self) -> torch.Tensor | None:
        """Each case's mean over its own slices (cases, classes), for reports per case."""
        buffers = super().get_buffer()
        return None if buffers is None else buffers[0]

    def aggregate(self, reduction: str | None = None) -> torch.Tensor:
        """Mean over the slices of all cases.

        Args:
            reduction: replaces the reduction given to the constructor.

        Returns:
            The reduced Dice, a fraction; NaN for a class that is in no reference.

        Raises:
            ConfigError: when nothing was measured yet.
        """
        means, slices = require_measured(super().get_buffer())
        reduction = reduction or self.reduction
        if reduction == "none":
            return means
        # Mean over the slices of all cases, for each class.
        classes = (means * slices).nansum(dim=0) / slices.sum(dim=0)
        if reduction == "mean_batch":
            return classes
        return classes.nanmean()


class SpacedHausdorffMetric(CumulativeIterationMetric):
    """Hausdorff distance in the unit of the image's spacing (millimetres for NIfTI).

    It is the 95th percentile by default. The spacing is read off each case's label, or its
    prediction where the label carries none. As in MONAI, the percentile is taken per direction
    (prediction to reference and back), then the larger. A missing structure is a failure and must
    not drop out of the mean as MONAI's NaN does: when exactly one of prediction and reference is
    empty, the distance is the diagonal of the image, which no real distance reaches; when both are
    empty it is 0.

    Args:
        include_background: whether the first of several channels counts.
        percentile: percentile of the surface distances, 0 to 100.
        units: ``"spacing"`` for the unit of the spacing, ``"voxels"`` to ignore the spacing.
        reduction: MONAI's reductions: ``"mean"``, ``"mean_batch"`` for one value per class,
            ``"none"``, ...

    Raises:
        ConfigError: when ``units`` is unknown, or, later, when no image carries a spacing.

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

    def __init__(
        self,
        include_background: bool = False,
        percentile: float = 95.0,
        units: Units = "spacing",
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        _check_option("units", units, ("spacing", "voxels"))
        self.include_background = include_background
        self.percentile = percentile
        self.units = units
        self.reduction = reduction

    def _compute_tensor(
        self, y_pred: torch.Tensor, y: torch.Tensor | None = None, **_: Any
    ) -> torch.Tensor:
        """Distances (B, C) in the unit asked for."""
        pred, label = _binarised(y_pred, y)
        if not self.include_background:
            pred, label = ignore_background(pred, label)
        spacings = [[1.0] * (label.ndim - 2)] * len(label)
        if self.units == "spacing":
            spacings = _spacings(y_pred, y)
        distances = torch.zeros(label.shape[:2], device=label.device)
        for case, channel in np.ndindex(*label.shape[:2]):
            found, reference = pred[case, channel], label[case, channel]
            if found.any() and reference.any():
                distances[case, channel] = compute_hausdorff_distance(
                    found[None, None],
                    reference[None, None],
                    include_background=True,
                    percentile=self.percentile,
                    spacing=spacings[case],
                )
            elif found.any() or reference.any():
                # The diagonal of the image.
                sides = [size * step for size, step in zip(reference.shape, spacings[case])]
                distances[case, channel] = math.hypot(*sides)
        return distances

    def aggregate(self, reduction: str | None = None) -> torch.Tensor:
        """Reduces the distances of all cases.

        Args:
            reduction: replaces the reduction given to the constructor.

        Returns:
            The reduced distance.

        Raises:
            ConfigError: when nothing was measured yet.
        """
        distances = require_measured(self.get_buffer())
        return do_metric_reduction(distances, reduction or self.reduction)[0]


class MetricHandler(IgniteMetricHandler):
    """The base of ignite handlers of one class of metric, whose arguments they take."""

    metric_class: type[CumulativeIterationMetric]

    def __init__(
        self,
        *,
        output_transform: Callable = lambda x: x,
        save_details: bool = True,
        **arguments: Any,
    ) -> None:
        super().__init__(
            self.metric_class(**arguments),
            output_transform=output_transform,
            save_details=save_details,
        )


class SliceDice(MetricHandler):
    """Ignite handler of :class:`SliceDiceMetric`, used like ``monai.handlers.MeanDice``.

    Args:
        output_transform: takes ``(prediction, label)`` from the engine's output:
            ``from_engine(["pred", "label"])``.
        save_details: whether each case's values go to ``engine.state.metric_details``.
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
        save_details: whether each case's values go to ``engine.state.metric_details``.
        arguments: of :class:`SpacedHausdorffMetric`.

    >>> SpacedHausdorff(units="voxels").metric_fn.percentile
    95.0
    """

    metric_class = SpacedHausdorffMetric


def _check_option(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} must be one of {list(allowed)}, got {value!r}.")


def _binarised(y_pred: torch.Tensor, y: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Prediction and label as plain tensors of 0 and 1.

    Anything else is refused: logits and class indices would be scored without complaint.
    """
    label = require_label(y)
    if y_pred.shape != label.shape:
        raise DataError(
            f"prediction {tuple(y_pred.shape)} and label {tuple(label.shape)} must have the same "
            "shape."
        )
    pred = convert_to_tensor(y_pred, dtype=torch.float32, track_meta=False)
    label = convert_to_tensor(label, dtype=torch.float32, track_meta=False)
    require_binary("prediction", pred)
    require_binary("label", label)
    return pred, label


def require_label(y: torch.Tensor | None) -> torch.Tensor:
    """The label that a metric was given.

    Raises:
        DataError: when there is none.
    """
    if y is None:
        raise DataError(
            "the label is missing; give output_transform both keys, from_engine(['pred', 'label'])."
        )
    return y


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


def require_measured(buffer: Any) -> Any:
    """What a metric has measured.

    Raises:
        ConfigError: when it is nothing.
    """
    if buffer is None:
        raise ConfigError(
            "no case was measured since the last reset; run the evaluator on at least one case."
        )
    return buffer


def _spacings(*images: torch.Tensor | None) -> list[list[float]]:
    """Spacing of each case of the batch, of the label, else of the prediction."""
    for image in reversed(images):
        if isinstance(image, MetaTensor):
            pixdims = image.pixdim if image.is_batch else [image.pixdim] * len(image)
            # A slice of a volume has the volume's three spacings.
            return [[float(step) for step in pixdim][: image.ndim - 2] for pixdim in pixdims]
    raise ConfigError(
        "neither label nor prediction carries a spacing; keep MONAI's MetaTensor through the "
        "transforms (no ToTensord with track_meta=False), or set units to 'voxels'."
    )
