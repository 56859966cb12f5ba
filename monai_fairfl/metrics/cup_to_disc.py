# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Measures the vertical cup-to-disc ratio, which ophthalmologists read off an optic disc."""

from __future__ import annotations

import math

import torch
from monai.metrics import CumulativeIterationMetric

from monai_fairfl.errors import DataError
from monai_fairfl.metrics.segmentation import MetricHandler, require_binary


def vertical_cup_to_disc_ratio(masks: torch.Tensor) -> float:
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
        raise DataError(
            f"a cup-to-disc ratio needs masks (2, W, H), disc and cup, got {tuple(masks.shape)}: "
            "give one picture with these two channels in this order, without a background channel"
        )
    if bool((masks < 0).any()):
        return float("nan")
    disc_height = _height(masks[0] > 0.5)
    cup_height = _height(masks[1] > 0.5)
    if disc_height == 0:
        return float("nan")
    return cup_height / disc_height


class CupToDiscErrorMetric(CumulativeIterationMetric):
    """Absolute error of the vertical cup-to-disc ratio of each photograph, and its mean.

    A prediction without any disc counts as a ratio of 0. Photographs whose label has no cup do not
    count, whether the cup is empty or not labelled: in most of them nobody drew it. Predictions and
    labels are (B, 2, W, H), disc and cup, of 0 and 1; a structure that is not labelled is below 0
    in the label. Other shapes, and other values such as logits, are a ``DataError``.

    >>> label = torch.zeros(1, 2, 8, 8)
    >>> label[:, 0], label[:, 1, :, 2:6] = 1, 1
    >>> metric = CupToDiscErrorMetric()
    >>> _ = metric(label.cumprod(1), torch.ones(1, 2, 8, 8))
    >>> metric.aggregate().item()
    0.5
    """

    def _compute_tensor(  # type: ignore[override]
        self, y_pred: torch.Tensor, y: torch.Tensor
    ) -> torch.Tensor:
        require_binary("prediction", y_pred)
        # A structure that is not labelled is below 0, and has no ratio.
        require_binary("label", y[~(y < 0)])

        errors = []
        for prediction, reference in zip(y_pred, y, strict=True):
            predicted_ratio = vertical_cup_to_disc_ratio(prediction)
            if math.isnan(predicted_ratio):
                predicted_ratio = 0.0
            # A ratio of 0: no cup in the label.
            true_ratio = vertical_cup_to_disc_ratio(reference) or math.nan
            errors.append([abs(predicted_ratio - true_ratio)])
        return torch.tensor(errors)

    def aggregate(self) -> torch.Tensor:
        """The mean over photographs; NaN when no label has a cup."""
        return torch.as_tensor(self.get_buffer()).nanmean()


class CupToDiscError(MetricHandler):
    """Ignite handler of :class:`CupToDiscErrorMetric`, used like ``monai.handlers.MeanDice``.

    Args:
        output_transform: takes ``(prediction, label)`` from the engine's output:
            ``from_engine(["pred", "label"])``.

    >>> CupToDiscError().metric_fn.__class__.__name__
    'CupToDiscErrorMetric'
    """

    metric_class = CupToDiscErrorMetric


def _height(mask: torch.Tensor) -> int:
    """Pixels from the first to the last row of a mask (W, H); 0 for an empty one."""
    rows = torch.nonzero(mask.any(0)).flatten()
    return int(rows[-1] - rows[0]) + 1 if len(rows) else 0
