# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .afl import AFL as AFL
from .base import RoundResult as RoundResult
from .base import Rounds as Rounds
from .base import Strategy as Strategy
from .base import compose as compose
from .cffl import CFFL as CFFL
from .cgsv import CGSV as CGSV
from .ditto import Ditto as Ditto
from .fairfed import FairFed as FairFed
from .fedavg import FedAvg as FedAvg
from .fedce import FedCE as FedCE
from .fedci import FedCI as FedCI
from .fedga import FedGA as FedGA
from .fedism import FedISM as FedISM
from .fedlwr import FedLWR as FedLWR
from .leave_one_out import LeaveOneOut as LeaveOneOut
from .parts import Average as Average
from .parts import BySamples as BySamples
from .parts import ClippedMean as ClippedMean
from .parts import GeometricMedian as GeometricMedian
from .parts import Krum as Krum
from .parts import Median as Median
from .parts import Mixed as Mixed
from .parts import Parts as Parts
from .parts import Proportional as Proportional
from .parts import Reward as Reward
from .parts import Sparsified as Sparsified
from .parts import TrimmedMean as TrimmedMean
from .parts import Uniform as Uniform
from .parts import Weighting as Weighting
from .qfedavg import QFedAvg as QFedAvg
from .shapfed import ShapFed as ShapFed
from .standalone import Standalone as Standalone

__all__: list[str]
