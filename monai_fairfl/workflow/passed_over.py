# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Files of a folder that are no cases of a run, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from monai_fairfl.data.image_files import is_unreadable_kind


def passed_over(
    folder: Path,
    files: Sequence[Path],
    is_readable: Callable[[Path], bool],
    kind: str,
    form: str,
) -> list[str]:
    """Say how many images of a folder are no cases, and what makes them cases.

    Args:
        folder: that was searched.
        files: of the folder at any depth that are no cases.
        is_readable: whether a file would be a case if it lay in the folder.
        kind: what such files are called.
        form: what others are to be converted to.

    Returns:
        A sentence for each kind of file, and for readable ones in subfolders. Hidden files and
        names with ``_segmentation`` are left out.

    >>> from monai_fairfl.data.image_files import is_nifti
    >>> files = [Path("in/a.mha"), Path("in/b.mha"), Path("in/P1/t2.nii.gz"), Path("in/notes.txt")]
    >>> for note in passed_over(Path("in"), files, is_nifti, "NIfTI file(s)", "NIfTI"):
    ...     print(note)
    2 .mha file(s) are passed over; convert them to NIfTI
    1 NIfTI file(s) in subfolders, such as in/P1, are passed over; name the subfolder, or move them
    """
    deeper = []
    for_conversion: Counter[str] = Counter()
    for path in files:
        if path.name.startswith(".") or "_segmentation" in path.name.lower():
            continue
        if is_readable(path) and path.parent != folder:
            deeper.append(path)
        elif is_unreadable_kind(path.name):
            for_conversion[path.suffix.lower()] += 1

    notes = []
    for ending, number in sorted(for_conversion.items()):
        notes.append(f"{number} {ending} file(s) are passed over; convert them to {form}")
    if deeper:
        notes.append(
            f"{len(deeper)} {kind} in subfolders, such as {deeper[0].parent}, are passed over; "
            "name the subfolder, or move them"
        )
    return notes


def kinds_of(files: Sequence[Path]) -> str:
    """Count files by the endings of their names, hidden ones left out.

    >>> kinds_of([Path("a.png"), Path("b.PNG"), Path("c.nii.gz"), Path("README"), Path(".x")])
    '1 .nii.gz, 2 .png, 1 without an ending'
    >>> kinds_of([])
    'no files'
    """
    kinds: Counter[str] = Counter()
    for path in files:
        if path.name.startswith("."):
            continue
        ending = path.suffix.lower()
        if path.name.lower().endswith(".nii.gz"):
            ending = ".nii.gz"
        kinds[ending or "without an ending"] += 1
    return ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items())) or "no files"
