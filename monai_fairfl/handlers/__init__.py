# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Client halves as ignite handlers, each with ``attach(engine)`` and ``detach()``."""

from monai_fairfl.handlers.board import Board, MeasurementsFilter, board
from monai_fairfl.handlers.measuring import (
    GlobalLoss,
    GlobalScore,
    LeaveOneOutError,
    LocalLoss,
    LocalScore,
    Sharpness,
)
from monai_fairfl.handlers.proximal import Proximal
from monai_fairfl.handlers.sharpness_aware import SharpnessAware
from monai_fairfl.handlers.train_loss import TrainLoss

__all__ = [
    "Board",
    "GlobalLoss",
    "GlobalScore",
    "LeaveOneOutError",
    "LocalLoss",
    "LocalScore",
    "MeasurementsFilter",
    "Proximal",
    "Sharpness",
    "SharpnessAware",
    "TrainLoss",
    "board",
]
