# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .finished import FinishedRun as FinishedRun
from .finished import Panel as Panel
from .finished import Reconstruction as Reconstruction
from .finished import Retraining as Retraining
from .finished import RunValuation as RunValuation
from .free_riders import FreeRiders as FreeRiders
from .free_riders import flag_free_riders as flag_free_riders
from .free_riders import free_rider_history as free_rider_history
from .free_riders import free_rider_scores as free_rider_scores
from .free_riders import global_cosines as global_cosines
from .games import Game as Game
from .games import Valuation as Valuation
from .games import exact_shapley as exact_shapley
from .games import gtg_shapley as gtg_shapley
from .games import leave_one_out as leave_one_out
from .games import permutation_shapley as permutation_shapley
from .games import shapley_values as shapley_values
from .games import sum_over_rounds as sum_over_rounds
