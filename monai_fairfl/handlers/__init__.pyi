# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .boards import Board as Board
from .boards import board as board
from .global_loss import GlobalLoss as GlobalLoss
from .global_score import GlobalScore as GlobalScore
from .leave_one_out_error import LeaveOneOutError as LeaveOneOutError
from .local_loss import LocalLoss as LocalLoss
from .local_score import LocalScore as LocalScore
from .measurements_filter import MeasurementsFilter as MeasurementsFilter
from .measuring import MeasurementHandler as MeasurementHandler
from .measuring import ScoreHandler as ScoreHandler
from .proximal import Proximal as Proximal
from .random_update import RandomUpdate as RandomUpdate
from .sharpness import Sharpness as Sharpness
from .sharpness_aware import SharpnessAware as SharpnessAware
from .train_loss import TrainLoss as TrainLoss
