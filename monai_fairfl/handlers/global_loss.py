# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Computes the training loss of the received model, as an ignite handler."""

from __future__ import annotations

from monai_fairfl.handlers.measuring import MeasurementHandler


class GlobalLoss(MeasurementHandler):
    """The bundle's loss of the received model on the training data, as ``fairfl/global_loss``.

    It is q-FedAvg's F.

    Args:
        board: name that the filter has, too.

    Example, in ``train#handlers``::

        {"_target_": "monai_fairfl.handlers.GlobalLoss"}
    """

    name = "global_loss"
