# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .boards import Board as Board
from .boards import MeasurementsFilter as MeasurementsFilter
from .boards import board as board
from .measuring import GlobalLoss as GlobalLoss
from .measuring import GlobalScore as GlobalScore
from .measuring import LeaveOneOutError as LeaveOneOutError
from .measuring import LocalLoss as LocalLoss
from .measuring import LocalScore as LocalScore
from .measuring import MeasurementHandler as MeasurementHandler
from .measuring import ScoreHandler as ScoreHandler
from .measuring import Sharpness as Sharpness
from .training import Proximal as Proximal
from .training import RandomUpdate as RandomUpdate
from .training import SharpnessAware as SharpnessAware
from .training import TrainLoss as TrainLoss
