# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .recipe import FusedNetwork as FusedNetwork
from .recipe import ModelRecipe as ModelRecipe
from .recipe import fused_weights as fused_weights
from .recipe import read_recipe as read_recipe
from .recipe import save_model_file as save_model_file
from .recipe import state_of_file as state_of_file
from .recipe import write_recipe_file as write_recipe_file
