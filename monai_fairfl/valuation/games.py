# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Forwards the names of :mod:`monai_fairfl.games` that configurations of valuations use."""

from monai_fairfl.games.exact import exact_shapley as exact_shapley
from monai_fairfl.games.exact import shapley_values as shapley_values
from monai_fairfl.games.game import Game as Game
from monai_fairfl.games.game import cosine_game as cosine_game
from monai_fairfl.games.gtg import GTGRound as GTGRound
from monai_fairfl.games.gtg import GTGValuation as GTGValuation
from monai_fairfl.games.gtg import gtg_shapley as gtg_shapley
from monai_fairfl.games.omission import leave_one_out as leave_one_out
from monai_fairfl.games.sampling import permutation_shapley as permutation_shapley
from monai_fairfl.games.sampling import stratified_shapley as stratified_shapley
from monai_fairfl.games.stopping import MaxEvaluations as MaxEvaluations
from monai_fairfl.games.stopping import MaxSamples as MaxSamples
from monai_fairfl.games.stopping import SamplingProgress as SamplingProgress
from monai_fairfl.games.stopping import StandardError as StandardError
from monai_fairfl.games.stopping import StoppingRule as StoppingRule
from monai_fairfl.games.valuation import Valuation as Valuation
from monai_fairfl.games.valuation import rank_stability as rank_stability
from monai_fairfl.games.valuation import sum_over_rounds as sum_over_rounds
