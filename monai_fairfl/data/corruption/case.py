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
"""What both corruptions need of a case: its identity, what is random in it, its voxels."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from pathlib import PurePath
from typing import Any

import numpy as np
from monai.data import MetaTensor
from monai.utils import convert_data_type

from monai_fairfl.errors import DataError


def name_of(file: str) -> str:
    """``FOLDER/NAME``: the same wherever the data lie."""
    return "/".join(PurePath(file).parts[-2:])


def file_of(value: object) -> str | None:
    """The file that an image was loaded from, if it still knows."""
    file = value.meta.get("filename_or_obj") if isinstance(value, MetaTensor) else None
    return None if file is None else str(file)


def generator_of(seed: int, identity: str) -> np.random.Generator:
    """Of a case: the same for the same ``identity`` in every process and order."""
    return np.random.default_rng(int.from_bytes(hashlib.sha256(f"{seed}/{identity}".encode()).digest(), "big"))


def array_of(key: Hashable, value: Any, dtype: type) -> np.ndarray:
    """Voxels of an image or label, C x H x W or C x H x W x D; another number of axes is a :class:`DataError`."""
    array: np.ndarray = convert_data_type(value, np.ndarray, dtype=dtype)[0]
    if array.ndim not in (3, 4):
        raise DataError(
            f"{key!r} has shape {array.shape}, not C x H x W or C x H x W x D. Put EnsureChannelFirstd before this"
            " transform and the drawing of slices after it."
        )
    return array
