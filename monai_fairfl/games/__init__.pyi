# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .exact import exact_shapley as exact_shapley
from .exact import shapley_values as shapley_values
from .game import MOST_PLAYERS as MOST_PLAYERS
from .game import Coalition as Coalition
from .game import Game as Game
from .game import cosine_game as cosine_game
from .gtg import GTGRound as GTGRound
from .gtg import GTGValuation as GTGValuation
from .gtg import gtg_shapley as gtg_shapley
from .omission import leave_one_out as leave_one_out
from .sampling import permutation_shapley as permutation_shapley
from .sampling import stratified_shapley as stratified_shapley
from .stopping import MaxEvaluations as MaxEvaluations
from .stopping import MaxSamples as MaxSamples
from .stopping import SamplingProgress as SamplingProgress
from .stopping import StandardError as StandardError
from .stopping import StoppingRule as StoppingRule
from .valuation import Valuation as Valuation
from .valuation import rank_stability as rank_stability
from .valuation import sum_over_rounds as sum_over_rounds
