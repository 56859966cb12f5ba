# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .measuring import GlobalLoss as GlobalLoss
from .measuring import GlobalScore as GlobalScore
from .measuring import LeaveOneOutError as LeaveOneOutError
from .measuring import LocalLoss as LocalLoss
from .measuring import LocalScore as LocalScore
from .measuring import Sharpness as Sharpness
from .proximal import Proximal as Proximal
from .sharpness_aware import SharpnessAware as SharpnessAware
from .stock_client import Board as Board
from .stock_client import MeasurementsFilter as MeasurementsFilter
from .stock_client import board as board
from .train_loss import TrainLoss as TrainLoss
