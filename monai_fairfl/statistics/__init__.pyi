# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .fairness import Interval as Interval
from .fairness import performance as performance
from .paired import CaseScore as CaseScore
from .paired import bootstrap_seeds_and_cases as bootstrap_seeds_and_cases
from .paired import compare_paired as compare_paired
from .paired import holm as holm
