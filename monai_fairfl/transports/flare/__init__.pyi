# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .aggregator import FairFLAggregator as FairFLAggregator
from .controller import FairFLController as FairFLController
from .recipe import FairFLRecipe as FairFLRecipe
from .sites import FairFLExecutor as FairFLExecutor
