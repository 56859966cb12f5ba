# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Moved to :mod:`monai_fairfl.statistics.fairness`."""

from monai_fairfl.statistics.fairness import Agreement as Agreement
from monai_fairfl.statistics.fairness import Correlation as Correlation
from monai_fairfl.statistics.fairness import LeaveOneOut as LeaveOneOut
from monai_fairfl.statistics.fairness import Performance as Performance
from monai_fairfl.statistics.fairness import agreement as agreement
from monai_fairfl.statistics.fairness import gain as gain
from monai_fairfl.statistics.fairness import leave_one_out_shares as leave_one_out_shares
from monai_fairfl.statistics.fairness import pearson as pearson
from monai_fairfl.statistics.fairness import performance as performance
from monai_fairfl.statistics.fairness import performance_distance as performance_distance
from monai_fairfl.statistics.fairness import (
    performance_fairness_pearson as performance_fairness_pearson,
)
