# Copyright (c) MONAI FairFL contributors
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#     http://www.apache.org/licenses/LICENSE-2.0
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Damaged cases: noisy or blurred images and wrong labels, the same ones in every epoch, process and order.

Both transforms are deterministic, so they belong among a bundle's deterministic transforms and are cached with them.
Put them after the resizing (noise of larger images is averaged away by it) and before slices are drawn. What is random
in them is seeded by their seed and the case's file, ``FOLDER/NAME``; so moving the data changes nothing.
"""

from monai_fairfl.data.corruption.labels import CorruptLabeld, corrupted_cases
from monai_fairfl.data.corruption.quality import BLUR_LENGTH, NOISE_STD, CorruptQualityd, motion_kernel

__all__ = ["BLUR_LENGTH", "NOISE_STD", "CorruptLabeld", "CorruptQualityd", "corrupted_cases", "motion_kernel"]
