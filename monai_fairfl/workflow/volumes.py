# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Volumes of a folder, NIfTI or DICOM, each checked before the network sees it."""

from __future__ import annotations

import logging
import shutil
import signal
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from monai.data import NibabelReader

from monai_fairfl.bundle.configuration import errors_in_one_line
from monai_fairfl.data.image_files import (
    count_of_files,
    header_fault,
    is_nifti,
    kind_of_image,
    read_nifti,
)
from monai_fairfl.errors import DataError
from monai_fairfl.workflow.cases import Cases
from monai_fairfl.workflow.dicom import dicom_cases
from monai_fairfl.workflow.dicom_files import find_files
from monai_fairfl.workflow.input_folder import file_cases, files_without_case, require_folders
from monai_fairfl.workflow.nifti_orientation import orientation_remarks
from monai_fairfl.workflow.passed_over import kinds_of, passed_over

logger = logging.getLogger(__name__)

SCRATCH_PREFIX = ".volumes-"


def find_images(
    folder: str | Path,
    report: str | Path,
    pattern: str = "*.nii*",
    modality: str = "MR",
    series: str = "*",
) -> Cases:
    """Find the NIfTI volumes and DICOM series of a folder, and check that each can be used.

    A NIfTI volume must be undamaged, 3D, of one channel, finite as 32-bit numbers and not constant;
    a doubtful orientation, or slices that are not axial, are noted. A DICOM series, that is all
    files of one SeriesInstanceUID wherever they lie, must be of one patient and study, of the right
    modality, no localiser, and a complete stack of parallel slices at even distances; it is
    converted to NIfTI beside the report, so that the network reads images one way, and the copy is
    removed at the end of the run. What fails a check becomes a skipped case; so does a folder that
    may not be read, and a file that may not be read and may be an image. Volumes of other formats,
    and NIfTI files in subfolders, are passed over and named in the log.

    Args:
        folder: with NIfTI files, DICOM files in folders of any depth and mixture, or both.
        report: JSON file of the run's table, in the folder of its outputs.
        pattern: of the NIfTI files' names, relative to the folder, in any case of letters. Names
            with ``_segmentation`` are left out.
        modality: of the DICOM series.
        series: pattern of the SeriesDescription, as of file names (``*``, ``?``), in any case of
            letters. Other series are left out without a word.

    Returns:
        All cases, by name. A series is named after its folders; after its number too where they
        hold several.

    Raises:
        DataError: no such folder, or nothing in it.
        ConfigError: the report is to lie in it, or its folder cannot be made.

    >>> import tempfile
    >>> from monai_fairfl.data import SITES, write_sites
    >>> root = tempfile.mkdtemp()
    >>> _ = write_sites(root, sites=SITES[:1], size=(24, 24, 6), cases=2)
    >>> [case.name for case in find_images(f"{root}/alder", f"{root}/volumes.json")]
    ['Case00', 'Case01']
    """
    folder = Path(folder).expanduser()
    report = Path(report).expanduser()
    hint = (
        "name the folder that holds the NIfTI volumes or DICOM series themselves, as IMAGES of "
        "`monai-fairfl infer` or with --dataset_dir."
    )
    with errors_in_one_line():
        require_folders(folder, report, hint)
        scratch = _scratch_folder(report.parent)
        found = list(file_cases(folder, pattern, volume_problem, report))
        for case in found:
            # What somebody should know of a usable volume.
            for remark in orientation_remarks(case.image) if case.image else ():
                case.note(remark)
        files = find_files(folder)
        found += dicom_cases(folder, files, Path(scratch.name), modality, series, found)
        others = files_without_case(files.others, found, folder, report)
        notes = passed_over(folder, others, is_nifti, "NIfTI file(s)", "NIfTI")
        if not found:
            scratch.cleanup()
            there = ". ".join([kinds_of([*files.dicom, *others]), *notes])
            raise DataError(
                f"No file {pattern} in {folder}, and no DICOM series with description {series}: "
                f"{hint} In it and its subfolders are: {there}"
            )
        for note in notes:
            logger.warning("%s: %s", folder, note)
        used: set[str] = set()
        for case in found:
            used.update(case.files or [case.source] if case.image else [])
        rest = files_without_case(
            [*files.dicom, *files.unreadable, *files.others], [], folder, report
        )
        rest = [path for path in rest if str(path) not in used]
        refused = sum(bool(kind_of_image(path)) for path in rest)
        logger.info("%s: %s", folder, count_of_files(len(used), refused, len(rest) - refused))
    return Cases(sorted(found, key=lambda case: case.name), report, scratch)


def volume_problem(path: Path) -> str | None:
    """Return why a NIfTI file cannot be segmented, if so.

    The file is read to its end, as the network's pipeline does.

    >>> import tempfile
    >>> import nibabel as nib
    >>> path = Path(tempfile.mkdtemp(), "a.nii")
    >>> nib.save(nib.Nifti1Image(np.zeros((4, 4, 4)), np.eye(4)), path)
    >>> volume_problem(path)
    'the same value in all 64 voxels, read as 32-bit numbers; convert it again'
    """
    nifti, _ = read_nifti(path)
    reader = NibabelReader()
    values, meta = reader.get_data(reader.read(path))
    is_real = values.dtype.kind in "biuf"  # bool, integers, floating-point numbers
    if values.ndim != 3 or not is_real:
        return (
            f"{values.ndim}D with shape {values.shape} and type {values.dtype}; store one 3D "
            "volume of real numbers"
        )
    infinite = int(values.size - np.isfinite(values).sum())
    if infinite:
        return f"{infinite} values that are not finite; convert it again"
    # The network reads 32-bit numbers: what is beyond their range becomes infinite.
    with np.errstate(over="ignore"):
        network_values = values.astype(np.float32)
    too_large = int(values.size - np.isfinite(network_values).sum())
    if too_large:
        return (
            f"{too_large} values that are beyond {np.finfo(np.float32).max:.3g}, the range of "
            "32-bit numbers; convert it again, with another scale"
        )
    # What is too small for 32-bit numbers becomes 0.
    if not values.size or network_values.min() == network_values.max():
        return (
            f"the same value in all {values.size} voxels, read as 32-bit numbers; convert it again"
        )
    axes = meta["affine"][:3, :3]
    has_volume = abs(np.linalg.det(axes)) > 0  # false also for what is not a number
    if not has_volume:
        return f"an affine without volume, {axes.tolist()}; convert it again"
    return header_fault(nifti) or None


def _scratch_folder(outputs: Path) -> TemporaryDirectory[str]:
    """Make a folder for copies of images, in that of the outputs, where images of patients may be.

    Those that killed runs left there are removed. A SIGTERM from now on ends Python in order, which
    removes this one.
    """
    for leftover in outputs.glob(f"{SCRATCH_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    # Only the main thread may set a handler, and a handler of somebody else stays.
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        # 128 and its number: what a shell reports of a process that the signal ended.
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    return TemporaryDirectory(dir=outputs, prefix=SCRATCH_PREFIX)
