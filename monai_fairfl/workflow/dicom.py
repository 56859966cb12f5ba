# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""DICOM series of a folder as cases, each converted to NIfTI without resampling."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from monai.data import PydicomReader
from monai.utils import optional_import

from monai_fairfl.workflow.cases import Case
from monai_fairfl.workflow.dicom_checks import EXTRA, check_series
from monai_fairfl.workflow.dicom_files import (
    FolderFiles,
    HeaderedFile,
    description_of,
    frame_count,
    read_headers,
)
from monai_fairfl.workflow.dicom_names import folders_of_series, names_of_series
from monai_fairfl.workflow.volume_geometry import DICOM_TO_NIFTI, plane_remark, stack_affine


def dicom_cases(
    folder: Path,
    files: FolderFiles,
    scratch: Path,
    modality: str,
    series: str,
    others: Sequence[Case],
) -> list[Case]:
    """Make a case of every DICOM series of a folder, and of all that may be one and is unreadable.

    Args:
        folder: that was searched with its sub-folders.
        files: what was found in it.
        scratch: where usable series are written as NIfTI.
        modality: that a series must have.
        series: pattern of the SeriesDescription.
        others: the other cases of the run.
    """
    cases = []
    found: Mapping[str, Sequence[HeaderedFile]] = {}
    unreadable = dict(files.unreadable)
    if files.dicom and optional_import("pydicom")[1]:
        found, without_header = read_headers(files.dicom)
        unreadable.update(without_header)
    elif files.dicom:
        case = Case("DICOM", source=str(folder))
        case.skip(f"{len(files.dicom)} DICOM files, which need pydicom to be read: {EXTRA}")
        cases.append(case)

    taken = {case.name for case in others}
    wanted = {}
    for uid, members in found.items():
        if fnmatch(description_of(members).lower(), series.lower()):
            wanted[uid] = members
    folders = folders_of_series(wanted)
    names = names_of_series(folder, wanted, folders, taken)

    used_names = set(taken)
    for uid, members in wanted.items():
        case = Case(names[uid], source=str(folders[uid]), series=uid)
        case.results["series_description"] = description_of(members)
        cases.append(case)
        if case.name in used_names:
            case.skip(
                "its outputs would have the names of another's; rename its folder, or the file of "
                "this name"
            )
            continue
        used_names.add(case.name)
        _convert(case, members, modality, scratch)
        if case.image:
            # Files beside the series may be its first or last slices.
            its_folders = {file.path.parent for file in members}
            broken = [path.name for path in unreadable if path.parent in its_folders]
            if broken:
                case.note(
                    f"may lack slices at an end: {', '.join(broken)} beside it cannot be read"
                )
    named = {case.source for case in others}
    for path, problem in unreadable.items():
        if str(path) in named:
            continue
        case = Case("_".join(path.relative_to(folder).parts), source=str(path))
        cases.append(case)
        case.skip(problem)
    return cases


def _convert(case: Case, files: Sequence[HeaderedFile], modality: str, scratch: Path) -> None:
    """Give the case its files in order and its image, or note why there is none."""
    path = scratch / f"{case.name}.nii"
    hint = "send the series again, uncompressed"
    # pydicom raises many kinds of errors for broken files; the hint is of the step that failed.
    try:
        in_order, problem = check_series(files, modality)
        if problem:
            case.skip(problem)
            return
        case.files = tuple(str(file.path) for file in in_order)
        if frame_count(in_order[0].header) > 1:
            hint = "export it as single-frame images, one volume a series"
            volume = read_frames(case.files[0])
        else:
            volume = read_series(case.files)
        values = np.asanyarray(volume.dataobj)
        if not np.isfinite(values).all() or values.min() == values.max():
            case.skip("pixels that are not finite, or all the same; send the series again")
            return
        # Both forms, as the mask gets those of this copy; code 1 is that of a scanner.
        volume.set_sform(volume.affine, code=1)
        volume.set_qform(volume.affine, code=1)
        hint = f"make room in {scratch.parent}, or name another folder with --output_dir"
        nib.save(volume, path)
    except Exception as error:
        reason = " ".join(str(error).split())
        case.skip(f"{reason}; {hint}")
        return
    case.image = str(path)
    remark = plane_remark(volume.affine[:3, 2])
    if remark:
        case.note(remark)


def read_series(files: Sequence[str | Path]) -> nib.Nifti1Image:
    """Read a DICOM series as NIfTI volume (columns, rows, slices).

    Its values are rescaled by the slopes and intercepts of its headers.

    Args:
        files: in the order of the slices, two or more.

    Raises:
        ValueError: naming the file whose pixels cannot be read.
    """
    import pydicom  # an extra

    slices = []
    for number, file in enumerate(files):
        # The pixels are decoded at once, so that an error names the file.
        try:
            dataset = pydicom.dcmread(file, force=True)
            if "TransferSyntaxUID" not in dataset.file_meta:
                # A data set without the header of a file, whose pixels are then not compressed.
                is_implicit = dataset.original_encoding[0]
                uid = pydicom.uid
                syntax = uid.ImplicitVRLittleEndian if is_implicit else uid.ExplicitVRLittleEndian
                dataset.file_meta.TransferSyntaxUID = syntax
            dataset.pixel_array  # noqa: B018  (stores them in the dataset)
        except Exception as error:
            raise ValueError(f"{Path(file).name} cannot be decoded ({error})") from error
        # MONAI stacks by this number; the scanner's may be in another order.
        dataset.InstanceNumber = number
        slices.append(dataset)
    # First, because MONAI's reader appends a third number to the first slice's PixelSpacing.
    affine = stack_affine(
        np.array(slices[0].ImageOrientationPatient, dtype=float),
        np.array(slices[0].PixelSpacing, dtype=float),
        np.array([dataset.ImagePositionPatient for dataset in slices], dtype=float),
    )
    reader: Any = PydicomReader()
    # What its read() sets for a folder of one series.
    reader.has_series = True
    reader.filenames = [list(files)]
    with warnings.catch_warnings():
        # MONAI's reader drops numbers of more than 16 characters, which some converters write, and
        # then warns that it takes the identity for its affine. That affine is not used.
        warnings.filterwarnings("ignore", message="PydicomReader: Image", category=UserWarning)
        values, _ = reader.get_data(slices)
    return nib.Nifti1Image(values.astype(np.float32), affine)


def read_frames(file: str | Path) -> nib.Nifti1Image:
    """Read a DICOM file of several frames (enhanced MR) as :func:`read_series` reads slices.

    Args:
        file: its frames in any order.

    Raises:
        ValueError: they are no evenly spaced stack of one image each, or cannot be decoded.
    """
    import highdicom  # an extra

    try:
        stack = highdicom.imread(file).get_volume(
            dtype=np.float32, apply_real_world_transform=False
        )
    except Exception as error:
        raise ValueError(
            f"several frames in one file that cannot be read as a volume ({error})"
        ) from error
    # highdicom's (slice, row, column) is a right-handed system; ours is (column, row, slice).
    stack = stack.flip_spatial(0)
    affine = DICOM_TO_NIFTI @ stack.affine[:, [2, 1, 0, 3]]
    return nib.Nifti1Image(stack.array.transpose(2, 1, 0), affine)
