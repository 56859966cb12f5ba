# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .job.fairfl_recipe import FairFLRecipe as FairFLRecipe
from .server.aggregator import FairFLAggregator as FairFLAggregator
from .server.controller import FairFLController as FairFLController
from .site.executor import FairFLExecutor as FairFLExecutor
