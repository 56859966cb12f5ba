# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Images of a folder, NIfTI or DICOM, each checked before the network sees it."""

from __future__ import annotations

import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from monai.data import NibabelReader

from monai_fairfl.bundle.configuration import errors_told
from monai_fairfl.data.layouts.image_files import header_fault, stem
from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.workflow.cases import Case, Cases
from monai_fairfl.workflow.dicom import dicom_cases


def volume_problem(path: Path) -> str | None:
    """Why a NIfTI file cannot be segmented, if so; it is read to its end, as the network's pipeline
    does.

    >>> import tempfile
    >>> import nibabel as nib
    >>> path = Path(tempfile.mkdtemp(), "a.nii")
    >>> nib.save(nib.Nifti1Image(np.zeros((4, 4, 4)), np.eye(4)), path)
    >>> volume_problem(path)
    'the same value in all 64 voxels; convert it again'
    """
    reader = NibabelReader()
    values, meta = reader.get_data(reader.read(path))
    if values.ndim != 3 or values.dtype.kind not in "biuf":
        return f"{values.ndim}D with shape {values.shape} and type {values.dtype}; store one 3D volume of real numbers"
    infinite = int(values.size - np.isfinite(values).sum())
    if infinite:
        return f"{infinite} values that are not finite; convert it again"
    if not values.size or values.min() == values.max():
        return f"the same value in all {values.size} voxels; convert it again"
    axes = meta["affine"][:3, :3]
    if not abs(np.linalg.det(axes)) > 0:  # also when it is not a number
        return f"an affine without volume, {axes.tolist()}; convert it again"
    return header_fault(path) or None


def _checked(path: Path, problem: Callable[[Path], str | None]) -> str | None:
    try:
        return problem(path)
    except (
        Exception
    ) as error:  # readers have many ways to refuse a damaged file; MemoryError is one
        return f"cannot be read ({type(error).__name__}: {' '.join(str(error).split())}); copy it again from its source"


def _in_any_case(pattern: str) -> str:
    """A glob pattern that takes capital and small letters alike.

    >>> _in_any_case("*.n[i1]")
    '*.[nN][i1]'
    """
    return re.sub(
        r"\[.+?\]|[a-zA-Z]",
        lambda m: m[0] if len(m[0]) > 1 else f"[{m[0].lower()}{m[0].upper()}]",
        pattern,
    )


def require_folders(folder: Path, report: Path, hint: str) -> None:
    """Refuse a folder of images that is none, or that is also the one of the outputs, and make
    that.

    Raises:
        DataError: no such folder.
        ConfigError: the report is to lie in it, or its folder cannot be made.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: {hint}")
    if folder.resolve() == report.parent.resolve():
        raise ConfigError(
            f"{folder} is the folder of the images and of the outputs, which the next run would take for images;"
            " name another one with --output_dir"
        )
    try:
        report.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{report.parent} cannot be the folder of the outputs ({error}): name another one with --output_dir"
        ) from error


def file_cases(
    folder: Path, pattern: str, problem: Callable[[Path], str | None], report: Path | None = None
) -> Iterator[Case]:
    """The files of a folder as cases; those with a problem, or with the name of another, are
    skipped ones.

    Args:
        folder: where the files are.
        pattern: of their names, relative to the folder, in any case; hidden ones and
            ``_segmentation`` are left out.
        problem: says what is wrong with a file and what to do, or nothing; may raise on unreadable
            ones.
        report: the run's table. What lies in its folder, if that is within ``folder``, are outputs
            and left out.
    """
    outputs = report and report.parent.resolve()
    inside = outputs and folder.resolve() in outputs.parents
    seen: dict[str, Path] = {}
    for path in sorted(folder.glob(_in_any_case(pattern))):
        if "_segmentation" in path.name.lower() or path.name.startswith(".") or path.is_dir():
            continue  # a broken link is kept, and named as unreadable
        if outputs and inside and path.parent.resolve().is_relative_to(outputs):
            continue
        name = stem(path)
        first = seen.setdefault(name, path)
        if first == path:
            case, wrong = Case(name, source=str(path), image=str(path)), _checked(path, problem)
        else:
            case = Case(path.name, source=str(path))
            wrong = f"its outputs would have the names of those of {first}; rename one of the two"
        if wrong:
            case.skip(wrong)
        yield case


def find_images(
    folder: str | Path,
    report: str | Path,
    pattern: str = "*.nii*",
    modality: str = "MR",
    series: str = "*",
) -> Cases:
    """Find the images of a folder and check that each can be used: NIfTI volumes, and DICOM series
    at any depth.

    A NIfTI volume must be readable to its end, 3D, of one channel, finite and not constant. A DICOM
    series, that is all files of one SeriesInstanceUID wherever they lie, must be of the right
    modality, no localiser, and a complete stack of parallel slices at even distances; it is
    converted to NIfTI beside the report, so that the network reads images one way, and the copy is
    removed at the end of the run. What fails a check is kept as a skipped case.

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
    folder, report = Path(folder).expanduser(), Path(report).expanduser()
    hint = "name the folder of NIfTI volumes or DICOM series with --dataset_dir."
    with errors_told():
        require_folders(folder, report, hint)
        scratch = _scratch(report.parent)
        volumes = list(file_cases(folder, pattern, volume_problem, report))
        found = [
            *volumes,
            *dicom_cases(
                folder, Path(scratch.name), modality, series, {case.name for case in volumes}
            ),
        ]
        if not found:
            scratch.cleanup()
            raise DataError(
                f"No file {pattern} in {folder}, and no DICOM series with description {series}: {hint}"
            )
    return Cases(sorted(found, key=lambda case: case.name), report, scratch)


def _scratch(outputs: Path) -> TemporaryDirectory[str]:
    """A folder for copies of images, in that of the outputs, where images of patients may be.

    Those that killed runs left there are removed. A SIGTERM from now on ends Python in order, which
    removes this one.
    """
    for left in outputs.glob(".volumes-*"):
        shutil.rmtree(left, ignore_errors=True)
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    ):
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    return TemporaryDirectory(dir=outputs, prefix=".volumes-")
