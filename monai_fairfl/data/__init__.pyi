# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .checks import check_cases as check_cases
from .checks import overview as overview
from .datalist import listed_datalist as listed_datalist
from .datalist import site_datalist as site_datalist
from .datalist import split_cases as split_cases
from .layouts import find_cases as find_cases
from .layouts import site_folders as site_folders
from .layouts import sites_at as sites_at
from .pelvis import DEMO_SITES as DEMO_SITES
from .pelvis import SITES as SITES
from .pelvis import Site as Site
from .pelvis import make_case as make_case
from .pelvis import write_demo as write_demo
from .pelvis import write_sites as write_sites
from .retina import CLINICS as CLINICS
from .retina import Clinic as Clinic
from .retina import make_photograph as make_photograph
from .retina import write_clinics as write_clinics
from .transforms import KeepPartd as KeepPartd
from .transforms import LabelStructuresd as LabelStructuresd
from .transforms import NestStructuresd as NestStructuresd
from .transforms import NormaliseFieldd as NormaliseFieldd
from .transforms import OneChanneld as OneChanneld
from .transforms import OneViewd as OneViewd
from .transforms import RandDiscCropd as RandDiscCropd
from .transforms import SampleSlicesd as SampleSlicesd
from .transforms import SmoothResized as SmoothResized
from .transforms import UntrackedCompose as UntrackedCompose
from .transforms import grey_levels as grey_levels
from .transforms import in_colours as in_colours
from .transforms import normalise_field as normalise_field
from .transforms import surest_part as surest_part
