# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .game import MOST_PLAYERS as MOST_PLAYERS
from .game import Coalition as Coalition
from .game import Game as Game
from .shapley import exact_shapley as exact_shapley
from .shapley import gtg_shapley as gtg_shapley
from .shapley import leave_one_out as leave_one_out
from .shapley import permutation_shapley as permutation_shapley
from .shapley import shapley_values as shapley_values
from .valuation import Valuation as Valuation
from .valuation import rank_stability as rank_stability
from .valuation import sum_over_rounds as sum_over_rounds
