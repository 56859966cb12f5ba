# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Moved to :mod:`monai_fairfl.model_files.recipe`."""

from monai_fairfl.model_files.recipe import ModelRecipe as ModelRecipe
from monai_fairfl.model_files.recipe import digests_of_files as digests_of_files
from monai_fairfl.model_files.recipe import is_torchscript as is_torchscript
from monai_fairfl.model_files.recipe import read_recipe as read_recipe
from monai_fairfl.model_files.recipe import recipe_file as recipe_file
from monai_fairfl.model_files.recipe import recipe_of_json as recipe_of_json
from monai_fairfl.model_files.recipe import save_model_file as save_model_file
from monai_fairfl.model_files.recipe import state_of_file as state_of_file
from monai_fairfl.model_files.recipe import write_recipe_file as write_recipe_file
