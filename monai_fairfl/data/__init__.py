# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Data of a site: synthetic hospitals, data lists of public layouts, their checks, slices, crops
and structures.
"""

from __future__ import annotations

from monai_fairfl.data.channels import OneChanneld
from monai_fairfl.data.checks import check_cases, check_duplicates
from monai_fairfl.data.content import cup_to_disc_ratio, structure_size
from monai_fairfl.data.corruption import CorruptLabeld, CorruptQualityd, corrupted_cases
from monai_fairfl.data.datalist import find_cases, find_sites, site_datalist, split_cases
from monai_fairfl.data.demonstration import DEMO_SITES, write_demo
from monai_fairfl.data.fundus import NormaliseFieldd, OneViewd, RandDiscCropd, normalise_field
from monai_fairfl.data.layouts import site_folders
from monai_fairfl.data.partition import chosen_clients, partitioned_datalist, repeat_case
from monai_fairfl.data.resizing import SmoothResized
from monai_fairfl.data.slices import SampleSlicesd
from monai_fairfl.data.structures import LabelStructuresd, NestStructuresd, grey_levels
from monai_fairfl.data.synthetic import SITES, Site, make_case, write_sites
from monai_fairfl.data.synthetic_fundus import CLINICS, Clinic, make_photograph, write_clinics
from monai_fairfl.data.untracked import UntrackedCompose

__all__ = [
    "CLINICS",
    "DEMO_SITES",
    "SITES",
    "Clinic",
    "CorruptLabeld",
    "CorruptQualityd",
    "LabelStructuresd",
    "NestStructuresd",
    "NormaliseFieldd",
    "OneChanneld",
    "OneViewd",
    "RandDiscCropd",
    "SampleSlicesd",
    "Site",
    "SmoothResized",
    "UntrackedCompose",
    "check_cases",
    "check_duplicates",
    "chosen_clients",
    "corrupted_cases",
    "cup_to_disc_ratio",
    "find_cases",
    "find_sites",
    "grey_levels",
    "make_case",
    "make_photograph",
    "normalise_field",
    "partitioned_datalist",
    "repeat_case",
    "site_datalist",
    "site_folders",
    "split_cases",
    "structure_size",
    "write_clinics",
    "write_demo",
    "write_sites",
]
