# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Valuation: what each client is worth to the federation, as coalition games with the uncertainty
of the answer.

A valuation is a choice of parts: a :class:`Game` (who plays, what a coalition is worth), a method,
and for sampling methods a stopping rule.

>>> images = {"A": 600, "B": 300, "C": 100}
>>> game = Game(images, lambda coalition: sum(images[client] for client in coalition) ** 0.5)
>>> found = permutation_shapley(game, stop=StandardError(0.5) | MaxEvaluations(100))
>>> {client: round(share, 1) for client, share in found.shares().items()}
{'A': 0.5, 'B': 0.3, 'C': 0.2}
"""

from monai_fairfl.valuation.exact import exact_shapley, shapley_values
from monai_fairfl.valuation.fidelity import Fidelity, fidelity
from monai_fairfl.valuation.finished import FinishedRun, RunValuation
from monai_fairfl.valuation.free_riders import (
    FreeRiders,
    flag_free_riders,
    free_rider_history,
    free_rider_scores,
    global_cosines,
)
from monai_fairfl.valuation.game import Game, cosine_game
from monai_fairfl.valuation.gtg import GTGRound, GTGValuation, gtg_shapley
from monai_fairfl.valuation.leave_one_out import leave_one_out
from monai_fairfl.valuation.reconstruction import Reconstruction
from monai_fairfl.valuation.retraining import Retraining
from monai_fairfl.valuation.sampling import permutation_shapley, stratified_shapley
from monai_fairfl.valuation.stopping import (
    Hoeffding,
    MaxEvaluations,
    MaxSamples,
    Progress,
    RankStable,
    StandardError,
    StoppingRule,
)
from monai_fairfl.valuation.utility import Panel, Utility
from monai_fairfl.valuation.valuation import Valuation, rank_stability, sum_over_rounds

__all__ = [
    "Fidelity",
    "FinishedRun",
    "FreeRiders",
    "GTGRound",
    "GTGValuation",
    "Game",
    "Hoeffding",
    "MaxEvaluations",
    "MaxSamples",
    "Panel",
    "Progress",
    "RankStable",
    "Reconstruction",
    "Retraining",
    "RunValuation",
    "StandardError",
    "StoppingRule",
    "Utility",
    "Valuation",
    "cosine_game",
    "exact_shapley",
    "flag_free_riders",
    "fidelity",
    "free_rider_history",
    "free_rider_scores",
    "global_cosines",
    "gtg_shapley",
    "leave_one_out",
    "permutation_shapley",
    "rank_stability",
    "shapley_values",
    "stratified_shapley",
    "sum_over_rounds",
]
