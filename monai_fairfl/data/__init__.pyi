# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .channels import OneChanneld as OneChanneld
from .checks import check_cases as check_cases
from .checks import check_duplicates as check_duplicates
from .datalist import find_cases as find_cases
from .datalist import site_datalist as site_datalist
from .datalist import split_cases as split_cases
from .demonstration import DEMO_SITES as DEMO_SITES
from .demonstration import write_demo as write_demo
from .fundus import NormaliseFieldd as NormaliseFieldd
from .fundus import OneViewd as OneViewd
from .fundus import RandDiscCropd as RandDiscCropd
from .fundus import normalise_field as normalise_field
from .layouts import site_folders as site_folders
from .listed import listed_datalist as listed_datalist
from .parts import KeepPartd as KeepPartd
from .parts import surest_part as surest_part
from .resizing import SmoothResized as SmoothResized
from .slices import SampleSlicesd as SampleSlicesd
from .structures import LabelStructuresd as LabelStructuresd
from .structures import NestStructuresd as NestStructuresd
from .structures import grey_levels as grey_levels
from .structures import in_colours as in_colours
from .synthetic import SITES as SITES
from .synthetic import Site as Site
from .synthetic import make_case as make_case
from .synthetic import write_sites as write_sites
from .synthetic_fundus import CLINICS as CLINICS
from .synthetic_fundus import Clinic as Clinic
from .synthetic_fundus import make_photograph as make_photograph
from .synthetic_fundus import write_clinics as write_clinics
from .untracked import UntrackedCompose as UntrackedCompose
