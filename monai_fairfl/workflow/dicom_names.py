# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Names of DICOM series, with which the names of their output files begin."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from monai_fairfl.workflow.dicom_files import HeaderedFile

LONGEST_NAME = 240  # bytes: 255 are allowed of NAME_overlay.png


def folders_of_series(series: Mapping[str, Sequence[HeaderedFile]]) -> dict[str, Path]:
    """Find the innermost folder that holds all files of a series, for each UID."""
    folders = {}
    for uid, files in series.items():
        parents = [file.path.parent for file in files]
        folders[uid] = Path(os.path.commonpath(parents))
    return folders


def names_of_series(
    root: Path,
    series: Mapping[str, Sequence[HeaderedFile]],
    folders: Mapping[str, Path],
    taken: Collection[str],
) -> dict[str, str]:
    """Name every series after its folders, its number where they hold several, at last its UID.

    Args:
        root: the searched folder, below which names begin.
        series: UID -> its files.
        folders: UID -> the innermost folder of the series.
        taken: names of other cases.
    """
    series_in_folder = Counter(folders.values())
    short_names = {}
    for uid, folder in folders.items():
        parts = list(folder.relative_to(root).parts)
        if series_in_folder[folder] > 1 or not parts:
            number = series[uid][0].header.get("SeriesNumber") or ""
            parts.append(f"series{number}")
        short_names[uid] = "_".join(parts)

    uses = Counter([*short_names.values(), *taken])
    names = {}
    for uid, name in short_names.items():
        if uses[name] > 1:
            name = f"{name}_{uid}"
        names[uid] = _shortened(name, uid)
    return names


def _shortened(name: str, uid: str) -> str:
    """Cut a name that is too long for a file; it then ends in a hash of the UID.

    >>> _shortened("P1_T2", "1.2.3"), len(_shortened("P1_T2" * 60, "1.2.3"))
    ('P1_T2', 240)
    """
    encoded = os.fsencode(name)
    if len(encoded) <= LONGEST_NAME:
        return name
    end = f"_{hashlib.sha256(uid.encode()).hexdigest()[:12]}"
    # A character that is cut in its middle is left out.
    return encoded[: LONGEST_NAME - len(end)].decode("utf-8", "ignore") + end
