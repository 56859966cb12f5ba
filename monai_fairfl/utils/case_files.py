# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The image files of a case in a bundle's data list."""

from __future__ import annotations

import os
from collections.abc import Mapping


def image_files_of(case: object) -> tuple[str, ...] | None:
    """The files of one case's image, which may be made of several, one per channel.

    Args:
        case: an item of a dataset.

    Returns:
        ``None`` where the case names no file: its image may be in memory.

    >>> image_files_of({"image": "a.nii.gz"}), image_files_of({"image": ["t1.nii.gz", "t2.nii.gz"]})
    (('a.nii.gz',), ('t1.nii.gz', 't2.nii.gz'))
    >>> image_files_of({"image": [0.5, 0.25]}) is None
    True
    """
    image = case.get("image") if isinstance(case, Mapping) else None
    files = image if isinstance(image, (list, tuple)) else [image]
    if not files or not all(isinstance(file, (str, os.PathLike)) for file in files):
        return None
    return tuple(str(file) for file in files)
