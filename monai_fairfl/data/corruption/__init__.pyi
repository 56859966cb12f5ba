# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .labels import CorruptLabeld as CorruptLabeld
from .labels import corrupted_cases as corrupted_cases
from .quality import BLUR_LENGTH as BLUR_LENGTH
from .quality import NOISE_STD as NOISE_STD
from .quality import CorruptQualityd as CorruptQualityd
from .quality import motion_kernel as motion_kernel
