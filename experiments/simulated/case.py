# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What both corruptions need of a case: its identity, its random generator, its voxels."""

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
    """The file that an image was loaded from; ``None`` where its metadata has none."""
    if not isinstance(value, MetaTensor):
        return None
    file = value.meta.get("filename_or_obj")
    return None if file is None else str(file)


def generator_of(seed: int, identity: str) -> np.random.Generator:
    """The generator of a case: the same for one ``identity`` in every process and order."""
    digest = hashlib.sha256(f"{seed}/{identity}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))


def array_of(key: Hashable, value: Any, dtype: type) -> np.ndarray:
    """Voxels of an image or label, C x H x W or C x H x W x D.

    Raises:
        DataError: there is another number of axes.
    """
    array: np.ndarray = convert_data_type(value, np.ndarray, dtype=dtype)[0]
    if array.ndim not in (3, 4):
        raise DataError(
            f"{key!r} has shape {array.shape}, not C x H x W or C x H x W x D. Put"
            " EnsureChannelFirstd before this transform and the drawing of slices after it."
        )
    return array
