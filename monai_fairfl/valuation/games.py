# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Forwards the names of :mod:`monai_fairfl.games` that users of valuations need."""

from monai_fairfl.games import Game as Game
from monai_fairfl.games import Valuation as Valuation
from monai_fairfl.games import exact_shapley as exact_shapley
from monai_fairfl.games import gtg_shapley as gtg_shapley
from monai_fairfl.games import leave_one_out as leave_one_out
from monai_fairfl.games import permutation_shapley as permutation_shapley
from monai_fairfl.games import shapley_values as shapley_values
from monai_fairfl.games import sum_over_rounds as sum_over_rounds
