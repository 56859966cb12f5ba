# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Computes the training loss of the trained model, as an ignite handler."""

from __future__ import annotations

from monai_fairfl.handlers.measuring import MeasurementHandler


class LocalLoss(MeasurementHandler):
    """The bundle's loss of the trained model on the training data, as ``fairfl/local_loss``.

    Args:
        board: name that the filter has, too.

    Example, in ``train#handlers``::

        {"_target_": "monai_fairfl.handlers.LocalLoss"}
    """

    name = "local_loss"
