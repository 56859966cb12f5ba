# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The images of a folder as cases of a run, each checked before the network sees it.

Every file of the folder is used, or an image that is refused with the reason, or no image.
"""

from __future__ import annotations

import logging
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import nibabel as nib
import numpy as np
from PIL import Image

from monai_fairfl.bundle.configuration import errors_in_one_line
from monai_fairfl.data.fundus import is_pair
from monai_fairfl.data.image_files import (
    count_of_files,
    fault_of,
    files_under,
    forms_fault,
    has_qform,
    has_sform,
    header_fault,
    is_nifti,
    is_picture,
    kind_of_image,
    read_nifti,
    sort_files,
    stem,
)
from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.workflow.cases import Case, Cases, why_unreadable
from monai_fairfl.workflow.dicom import dicom_cases, plane_remark

SCRATCH_PREFIX = ".volumes-"
LEAST_COLOUR = 8  # of 255, between a pixel's channels; compression of a grey picture stays below
SMALLEST_SIDE = 32  # pixels

logger = logging.getLogger(__name__)


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
    volumes of other formats and NIfTI files in subfolders, are named in the log and the table.

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
        ConfigError: the report is to lie in it, or its folder cannot be made.

    >>> import tempfile
    >>> from monai_fairfl.data import SITES, write_sites
    >>> root = tempfile.mkdtemp()
    >>> _ = write_sites(root, sites=SITES[:1], size=(24, 24, 6), cases=2)
    >>> [case.name for case in find_images(f"{root}/alder", f"{root}/volumes.json")]
    ['Case00', 'Case01']
    """
    with errors_in_one_line():
        search = _Search(Path(folder), Path(report), is_nifti, "NIfTI")
        scratch = _scratch_folder(search.report.parent)
        search.check(pattern, _check_volume)
        others = [path for path in search.files if not is_nifti(path)]
        taken = [case.name for case in search.cases]
        copies = Path(scratch.name)
        found = dicom_cases(search.folder, others, copies, modality, series, taken)
        search.cases += found[0]
        search.left_out |= found[1]
        return search.end(scratch)


def find_photographs(
    folder: str | Path, report: str | Path, pattern: str = "*", stereo: bool | None = None
) -> Cases:
    """Find the photographs of a folder, and check that each can be used.

    A photograph is a PNG, JPEG, TIFF or BMP, in colour. Pictures of other formats, and those in
    subfolders, are named in the log and the table.

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
        ConfigError: the report is to lie in it, or its folder cannot be made.

    >>> find_photographs("/no/such/folder", "table.json")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.DataError: /no/such/folder is not a folder...
    """
    with errors_in_one_line():
        search = _Search(Path(folder), Path(report), is_picture, "PNG")
        search.check(pattern, lambda case: _check_photograph(case, stereo))
        return search.end()


@dataclass
class _Search:
    """The files of a folder, and the cases that are made of them.

    Args:
        folder: of the images.
        report: file of the run's table, in the folder of the outputs.
        is_kind: whether a file's name is that of an image that is read.
        kind: its format, to which others are to be converted.
        cases: that were found.
        left_out: path of an image that is no case -> why.

    Raises:
        DataError: no such folder.
        ConfigError: the report is to lie in it, or its folder cannot be made.
    """

    folder: Path
    report: Path
    is_kind: Callable[[Path], bool]
    kind: str
    cases: list[Case] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder, self.report = self.folder.expanduser(), self.report.expanduser()
        outputs = self.report.parent
        if not self.folder.is_dir():
            raise DataError(f"{self.folder} is not a folder: name another with --dataset_dir")
        if self.folder.resolve() == outputs.resolve():
            raise ConfigError(
                f"{self.folder} is the folder of the images and of the outputs, which the next run "
                "would take for images; name another one with --output_dir"
            )
        try:
            outputs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{outputs} cannot be the folder of the outputs ({error}): name another one with "
                "--output_dir"
            ) from error
        self.files = sorted(files_under(self.folder, self._note_folder))
        inside = outputs.resolve()
        if self.folder.resolve() in inside.parents:
            self.files = [path for path in self.files if inside not in path.resolve().parents]

    def _note_folder(self, error: OSError) -> None:
        path = Path(error.filename)
        name = "_".join(path.relative_to(self.folder).parts) or path.name
        case = Case(name, source=str(path))
        case.skip(why_unreadable(error))
        self.cases.append(case)

    def check(self, pattern: str, check: Callable[[Case], None]) -> None:
        """Make a case of each image; ``check`` raises an error where it cannot be used."""
        try:
            chosen = set(self.folder.glob(pattern))
        except (NotImplementedError, ValueError) as error:
            raise ConfigError(
                f"pattern {pattern!r} is none of file names, such as *.nii.gz: {error}"
            ) from error
        for path in self.files:
            if path not in chosen or not self.is_kind(path) or path.name.startswith("."):
                continue
            if "_segmentation" in path.name.lower():
                continue
            case = Case(stem(path), source=str(path), image=str(path), files=(str(path),))
            self.cases.append(case)
            # Readers have many ways to refuse a damaged file; MemoryError is one.
            try:
                check(case)
            except Exception as error:
                case.skip(why_unreadable(error))

    def end(self, scratch: TemporaryDirectory[str] | None = None) -> Cases:
        """Sort every file into one of the three, and name the images that are no case.

        Raises:
            DataError: when there is no case.
        """
        first: dict[str, Case] = {}
        for case in self.cases:
            if first.setdefault(case.name, case) is not case:
                other = first[case.name].source
                if not case.series:
                    case.name = Path(case.source).name
                case.skip(
                    f"its outputs would have the names of those of {other}; rename one of "
                    "the two"
                )
        used: set[str] = set()
        for case in self.cases:
            if case.image:
                used.update(case.files)
            else:
                self.left_out.update(dict.fromkeys(case.files, case.problems[-1]))
        # Reason -> one of the images that it is of.
        first_of: dict[str, Path] = {}
        for path in self.files:
            known = str(path) in used or str(path) in self.left_out
            if not known and kind_of_image(path):
                self.left_out[str(path)] = reason = self._reason(path)
                first_of.setdefault(reason, path)
        notes = [f"{path}: {reason}" for reason, path in first_of.items()]
        files = sort_files(map(str, self.files), used, self.left_out, "")
        if not self.cases:
            raise DataError(
                f"no images in {self.folder}: name the folder that holds them, with --dataset_dir. "
                f"{'; '.join([count_of_files(files), *notes])}"
            )
        for note in notes:
            logger.warning("not used: %s", note)
        return Cases(sorted(self.cases, key=lambda case: case.name), self.report, scratch, files)

    def _reason(self, path: Path) -> str:
        """Why an image that nothing was made of is no case."""
        if "_segmentation" in path.name.lower():
            return "it is a mask by its name"
        if not self.is_kind(path):
            return f"convert it to {self.kind}"
        if path.parent != self.folder:
            return f"it lies in a subfolder, {path.parent}: name that, or move the file"
        return "its name is not as in the pattern of names"


def _check_volume(case: Case) -> None:
    """Note what somebody should know of a NIfTI volume, which is read to its end.

    Raises:
        DataError: why it cannot be segmented.
    """
    nifti, values = read_nifti(case.image)
    if values.ndim != 3 or values.dtype.kind not in "biuf":
        raise DataError(
            f"{values.ndim}D with shape {values.shape} and type {values.dtype}; store one 3D "
            "volume of real numbers"
        )
    # The network reads 32-bit numbers: what is beyond their range becomes infinite, and what is too
    # small for them 0.
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)
    if lost := int(values.size - np.isfinite(values).sum()):
        raise DataError(f"{lost} values that are not finite as 32-bit numbers; convert it again")
    if not values.size or values.min() == values.max():
        raise DataError(f"the same value in all {values.size} voxels; convert it again")
    # False also for what is not a number.
    if not abs(np.linalg.det(nifti.affine[:3, :3])) > 0:
        raise DataError(f"an affine without volume, {nifti.affine.tolist()}; convert it again")
    if fault := header_fault(nifti):
        raise DataError(fault)
    if not has_sform(nifti) and not has_qform(nifti):
        case.note(
            "no orientation stored (sform_code and qform_code are 0); it is taken for "
            f"{''.join(nib.aff2axcodes(nifti.affine))}: look at the overlay, and convert it again "
            "with its orientation"
        )
    elif fault := forms_fault(nifti):
        case.note(f"it {fault}; the sform is used here: look at the overlay")
    if remark := plane_remark(nifti.affine):
        case.note(remark)


def _check_photograph(case: Case, stereo: bool | None) -> None:
    """Note what somebody should know of a photograph, which is read to its end.

    Raises:
        DataError: why it cannot be outlined.
    """
    with Image.open(case.image) as image:
        fault = fault_of(image)
        frames, mode = getattr(image, "n_frames", 1), image.mode
        pixels = np.asarray(image.convert("RGB"))
    height, width = pixels.shape[:2]
    if frames > 1:
        raise DataError(f"{frames} pictures in one file; store each in a file of its own")
    if fault:
        raise DataError(fault)
    if mode not in ("L", "LA", "P", "RGB", "RGBA"):
        raise DataError(f"mode {mode!r} instead of colour of 8 bits; export the colour photograph")
    if min(width, height) < SMALLEST_SIDE:
        raise DataError(f"{width} x {height} pixels; export it at full size")
    if (pixels == pixels[0, 0]).all():
        raise DataError(f"the same colour in all {width} x {height} pixels; export it again")
    if not in_colour(pixels):
        raise DataError("no colour; a fundus photograph is orange to red: export it in colour")
    if stereo is None and is_pair(width, height):
        case.note(
            "taken for a stereo pair by its shape: only the left half is used; for single views "
            "--stereo False"
        )


def in_colour(pixels: np.ndarray) -> bool:
    """Return whether a picture, (height, width, 3) of 8 bits, is more than grey.

    >>> in_colour(np.full((4, 4, 3), 90, np.uint8))
    False
    """
    return bool(np.ptp(pixels, axis=2).max() >= LEAST_COLOUR)


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
