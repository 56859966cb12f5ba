# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .cases import Case as Case
from .cases import CaseOutput as CaseOutput
from .cases import Cases as Cases
from .cases import CheckBorderd as CheckBorderd
from .cases import MeasureCupToDiscd as MeasureCupToDiscd
from .cases import MeasureVolumed as MeasureVolumed
from .cases import SaveDicomSegd as SaveDicomSegd
from .cases import SaveMaskd as SaveMaskd
from .cases import SaveNiftid as SaveNiftid
from .cases import SaveOverlayd as SaveOverlayd
from .cases import answer_text as answer_text
from .cases import overlay as overlay
from .inputs import find_images as find_images
from .inputs import find_photographs as find_photographs
from .recipes import ModelValues as ModelValues
from .recipes import check_data as check_data
from .recipes import network_of as network_of
from .recipes import placed_network as placed_network
from .recipes import require_model as require_model
from .recipes import training_recipe as training_recipe
