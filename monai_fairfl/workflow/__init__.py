# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a hospital runs alone.

Training checks the data first; inference finds and checks the images, and writes masks, overlays,
DICOM-SEG and one table per run.
"""

from __future__ import annotations

from monai_fairfl.workflow.cases import Case, CaseOutput, Cases
from monai_fairfl.workflow.dicom_seg import SaveDicomSegd, write_dicom_seg
from monai_fairfl.workflow.inputs import file_cases, find_images
from monai_fairfl.workflow.model import ModelValues, network_of, require_model, training_recipe
from monai_fairfl.workflow.outputs import MeasureVolumed, SaveNiftid, SaveOverlayd
from monai_fairfl.workflow.overlays import overlay
from monai_fairfl.workflow.photographs import MeasureCupToDiscd, SaveMaskd, find_photographs
from monai_fairfl.workflow.training import check_data, save_model, write_recipe_file

__all__ = [
    "Case",
    "CaseOutput",
    "Cases",
    "MeasureCupToDiscd",
    "MeasureVolumed",
    "ModelValues",
    "SaveDicomSegd",
    "SaveMaskd",
    "SaveNiftid",
    "SaveOverlayd",
    "check_data",
    "file_cases",
    "find_images",
    "find_photographs",
    "network_of",
    "overlay",
    "require_model",
    "save_model",
    "training_recipe",
    "write_dicom_seg",
    "write_recipe_file",
]
