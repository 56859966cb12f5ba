# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""One published method, one file, one class."""

from monai_fairfl.strategies.afl import AFL
from monai_fairfl.strategies.base import RoundResult, Rounds, Strategy
from monai_fairfl.strategies.cffl import CFFL
from monai_fairfl.strategies.cgsv import CGSV
from monai_fairfl.strategies.ditto import Ditto
from monai_fairfl.strategies.fairfed import FairFed
from monai_fairfl.strategies.fedavg import FedAvg
from monai_fairfl.strategies.fedce import FedCE
from monai_fairfl.strategies.fedci import FedCI
from monai_fairfl.strategies.fedga import FedGA
from monai_fairfl.strategies.fedism import FedISM
from monai_fairfl.strategies.fedlwr import FedLWR
from monai_fairfl.strategies.leave_one_out import LeaveOneOut
from monai_fairfl.strategies.parts import (
    BySamples,
    Proportional,
    Reward,
    Uniform,
    Weighting,
    compose,
)
from monai_fairfl.strategies.qfedavg import QFedAvg
from monai_fairfl.strategies.rewards import Mixed, Sparsified
from monai_fairfl.strategies.shapfed import ShapFed
from monai_fairfl.strategies.standalone import Standalone

__all__ = [
    "AFL",
    "BySamples",
    "CFFL",
    "CGSV",
    "Ditto",
    "FairFed",
    "FedAvg",
    "FedCE",
    "FedCI",
    "FedGA",
    "FedISM",
    "FedLWR",
    "LeaveOneOut",
    "Mixed",
    "Proportional",
    "QFedAvg",
    "Reward",
    "RoundResult",
    "Rounds",
    "ShapFed",
    "Sparsified",
    "Standalone",
    "Strategy",
    "Uniform",
    "Weighting",
    "compose",
]
