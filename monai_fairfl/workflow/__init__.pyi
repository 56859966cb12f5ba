# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .answer import answer_text as answer_text
from .cases import Case as Case
from .cases import CaseOutput as CaseOutput
from .cases import Cases as Cases
from .dicom_seg import SaveDicomSegd as SaveDicomSegd
from .dicom_seg import write_dicom_seg as write_dicom_seg
from .findings import CheckBorderd as CheckBorderd
from .input_folder import file_cases as file_cases
from .model_values import ModelValues as ModelValues
from .network import network_of as network_of
from .network import placed_network as placed_network
from .network import require_model as require_model
from .outputs import MeasureVolumed as MeasureVolumed
from .outputs import SaveNiftid as SaveNiftid
from .outputs import SaveOverlayd as SaveOverlayd
from .overlays import overlay as overlay
from .photographs import MeasureCupToDiscd as MeasureCupToDiscd
from .photographs import SaveMaskd as SaveMaskd
from .photographs import find_photographs as find_photographs
from .processes import join_processes as join_processes
from .processes import require_case_per_process as require_case_per_process
from .running_recipe import training_recipe as training_recipe
from .training import check_data as check_data
from .training import save_model as save_model
from .training import write_recipe_file as write_recipe_file
from .volumes import find_images as find_images
