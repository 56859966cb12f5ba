# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The images of a folder as cases of a run, each checked before the network sees it.

Every file of the folder is used, or an image that is refused with the reason, or no image.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import nibabel as nib
import numpy as np
from PIL import Image

from monai_fairfl.bundle.configuration import errors_in_one_line
from monai_fairfl.data import image_files
from monai_fairfl.data.fundus import is_pair
from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.workflow.cases import Case, Cases, why_unreadable
from monai_fairfl.workflow.dicom import dicom_cases, plane_remark

SCRATCH_PREFIX = ".volumes-"
MODES = ("L", "LA", "P", "RGB", "RGBA")  # of Pillow, with 8 bits
LEAST_COLOUR = 8  # of 255, between a pixel's channels; compression of a grey picture stays below
SMALLEST_SIDE = 32  # pixels
MOST_NAMED = 5  # images, where there is no table


def find_images(
    folder: str | Path,
    report: str | Path,
    pattern: str = "*",
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
    may not be read, and a file that may not be read and may be an image. All other images, such as
    volumes of other formats and NIfTI files in subfolders, are named in the table.

    Args:
        folder: with NIfTI files, DICOM files in folders of any depth and mixture, or both.
        report: JSON file of the run's table, in the folder of its outputs. What lies in that
            folder is left out.
        pattern: of the NIfTI files' names, relative to the folder. Names with ``_segmentation`` are
            left out.
        modality: of the DICOM series.
        series: pattern of the SeriesDescription, as of file names (``*``, ``?``), in any case of
            letters.

    Returns:
        All cases, by name. A series is named after its folders; after its number too where they
        hold several.

    Raises:
        DataError: no such folder, or nothing in it.
        ConfigError: the report is to lie in it.

    >>> import tempfile
    >>> from monai_fairfl.data import SITES, write_sites
    >>> root = tempfile.mkdtemp()
    >>> _ = write_sites(root, sites=SITES[:1], size=(24, 24, 6), cases=2)
    >>> [case.name for case in find_images(f"{root}/alder", f"{root}/volumes.json")]
    ['Case00', 'Case01']
    """

    with errors_in_one_line():
        of_kind = (image_files.is_nifti, "NIfTI", pattern, _check_volume)
        return _find(Path(folder), Path(report), *of_kind, dicom=(modality, series))


def find_photographs(
    folder: str | Path, report: str | Path, pattern: str = "*", stereo: bool | None = None
) -> Cases:
    """Find the photographs of a folder, and check that each can be used.

    A photograph is a PNG, JPEG, TIFF or BMP, in colour. Pictures of other formats, and those in
    subfolders, are named in the table.

    Args:
        folder: of photographs.
        report: JSON file of the run's table, in the folder of its outputs.
        pattern: of file names, relative to the folder. Names with ``_segmentation`` are left out.
        stereo: whether they are pairs of views; where it is not given, one taken for a pair by its
            shape is noted.

    Returns:
        All cases, by name; those with a problem as skipped ones.

    Raises:
        DataError: no such folder, or nothing in it.
        ConfigError: the report is to lie in it.

    >>> find_photographs("/no/such/folder", "table.json")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.DataError: /no/such/folder is not a folder...
    """

    def check(case: Case) -> None:
        _check_photograph(case, stereo)

    with errors_in_one_line():
        return _find(Path(folder), Path(report), image_files.is_picture, "PNG", pattern, check)


def _find(
    folder: Path,
    report: Path,
    is_kind: Callable[[str | Path], bool],
    kind: str,
    pattern: str,
    check: Callable[[Case], None],
    dicom: tuple[str, str] | None = None,
) -> Cases:
    """Make a case of each image of a folder, and sort every file into one of the three.

    Args:
        folder: of the images.
        report: file of the run's table, in the folder of the outputs.
        is_kind: whether a file's name is that of an image that is read.
        kind: its format, to which others are to be converted.
        pattern: of file names.
        check: raises an error where an image cannot be used.
        dicom: modality and description of series that are used, too.
    """
    folder, report = folder.expanduser(), report.expanduser()
    outputs = report.parent.resolve()
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: name another with --dataset_dir")
    if folder.resolve() == outputs:
        raise ConfigError(
            f"{folder} is the folder of the images and of the outputs, which the next run would "
            "take for images; name another one with --output_dir"
        )
    outputs.mkdir(parents=True, exist_ok=True)
    cases: list[Case] = []

    def skip_folder(error: OSError) -> None:
        path = Path(error.filename)
        case = Case("_".join(path.relative_to(folder).parts) or path.name, source=str(path))
        case.skip(why_unreadable(error))
        cases.append(case)

    inside = outputs if folder.resolve() in outputs.parents else None
    found = sorted(image_files.files_under(folder, skip_folder))
    files = [path for path in found if inside not in path.resolve().parents]
    chosen = set(folder.glob(pattern))
    reasons: dict[str, str] = {}
    for path in files:
        if path.name.startswith("."):
            continue
        if not is_kind(path):
            if image_files.kind_of_image(path):
                reasons[str(path)] = f"convert it to {kind}"
        elif "_segmentation" in path.name.lower():
            reasons[str(path)] = "it is a mask by its name"
        elif path not in chosen:
            reasons[str(path)] = f"only {pattern} of {folder} is read: move or rename it"
        else:
            case = Case(image_files.stem(path), source=str(path), files=(str(path),))
            case.image = case.source
            cases.append(case)
            # Readers have many ways to refuse a damaged file; MemoryError is one.
            try:
                check(case)
            except Exception as error:
                case.skip(why_unreadable(error))
    scratch = None
    if dicom is not None:
        # Copies of images that a killed run left.
        for left in outputs.glob(f"{SCRATCH_PREFIX}*"):
            shutil.rmtree(left)
        scratch = TemporaryDirectory(dir=outputs, prefix=SCRATCH_PREFIX)
        others = [path for path in files if not is_kind(path)]
        series, of_no_series = dicom_cases(folder, others, Path(scratch.name), *dicom)
        cases += series
        reasons |= of_no_series

    first: dict[str, Case] = {}
    for case in cases:
        if first.setdefault(case.name, case) is not case:
            other = first[case.name].source
            case.name = Path(case.source).name
            case.skip(
                f"its outputs would have the names of those of {other}; rename one of the two"
            )
        if not case.image:
            reasons |= dict.fromkeys(case.files, case.problems[-1])
    used = {file for case in cases if case.image for file in case.files}
    known = image_files.sort_files(map(str, files), used, reasons, "")
    if not cases:
        named = "".join(f"\n{file}: {why}" for file, why in list(reasons.items())[:MOST_NAMED])
        raise DataError(
            f"no images in {folder}: name the folder that holds them, with --dataset_dir. "
            f"{image_files.count_of_files(known)}{named}"
        )
    return Cases(sorted(cases, key=lambda case: case.name), report, scratch, known)


def _check_volume(case: Case) -> None:
    """Note what somebody should know of a NIfTI volume, which is read to its end.

    Raises:
        DataError: why it cannot be segmented.
    """
    nifti, values = image_files.read_nifti(case.image)
    if values.ndim != 3 or values.dtype.kind not in "biuf":
        raise DataError(f"{values.dtype} of shape {values.shape}; store one 3D volume of numbers")
    # The network reads 32-bit numbers: what is beyond their range becomes infinite, and what is too
    # small for them 0.
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)
    if not np.isfinite(values).all() or values.min() == values.max():
        raise DataError("values not finite as 32-bit numbers, or all the same; convert it again")
    if fault := image_files.header_fault(nifti):
        raise DataError(f"it {fault}")
    if not image_files.has_sform(nifti) and not image_files.has_qform(nifti):
        axes = "".join(nib.aff2axcodes(nifti.affine))
        case.note(f"no orientation stored, it is taken for {axes}: look at the overlay")
    if fault := image_files.forms_fault(nifti):
        case.note(f"it {fault}; the sform is used here: look at the overlay")
    if remark := plane_remark(nifti.affine):
        case.note(remark)


def _check_photograph(case: Case, stereo: bool | None) -> None:
    """Note what somebody should know of a photograph, which is read to its end.

    Raises:
        DataError: why it cannot be outlined.
    """
    with Image.open(case.image) as image:
        if fault := image_files.fault_of(image):
            raise DataError(f"it {fault}")
        frames, mode = getattr(image, "n_frames", 1), image.mode
        pixels = np.asarray(image.convert("RGB"))
    height, width = pixels.shape[:2]
    if frames > 1:
        raise DataError(f"{frames} pictures in one file; store each in a file of its own")
    if mode not in MODES or not in_colour(pixels):
        raise DataError(f"no colour of 8 bits (mode {mode}); export the colour photograph")
    if min(width, height) < SMALLEST_SIDE:
        raise DataError(f"{width} x {height} pixels; export it at full size")
    if stereo is None and is_pair(width, height):
        case.note("used is the left half, as of a stereo pair; for single views --stereo False")


def in_colour(pixels: np.ndarray) -> bool:
    """Return whether a picture, (height, width, 3) of 8 bits, is more than grey.

    >>> in_colour(np.full((4, 4, 3), 90, np.uint8))
    False
    """
    return bool(np.ptp(pixels, axis=2).max() >= LEAST_COLOUR)
